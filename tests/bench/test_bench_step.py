"""`bench.step`: the measurement of Python's part of a step still measures something."""

import pytest

from bench import step


@pytest.mark.parametrize("layout", ["split", "unified"])
def test_the_engine_and_the_text_thread_are_measured(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(step, "_N_STEPS", 20)
    engine_us, text_us = step.measure(2, layout)
    assert engine_us > 0
    assert text_us > 0
