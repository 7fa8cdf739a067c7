"""`localrun run` of a model that makes vectors."""

import json

import pytest
from live import Daemon


def test_run_prints_one_vector(vectors_daemon: Daemon) -> None:
    code, out, _ = vectors_daemon.cli("run", "minilm", "a", "fox")
    body = {"model": "minilm", "input": "a fox"}
    (expected,) = vectors_daemon.json("POST", "/api/embed", body)["embeddings"]
    assert code == 0
    assert json.loads(out) == pytest.approx(expected, abs=1e-6)
    code, out, _ = vectors_daemon.cli("run", "minilm", "--dimensions", "8", stdin="a fox")
    assert (code, len(json.loads(out))) == (0, 8)


def test_run_needs_a_text_and_says_when_it_is_too_long(vectors_daemon: Daemon) -> None:
    code, out, err = vectors_daemon.cli("run", "minilm")
    assert (code, out) == (2, "")
    assert "needs a text" in err
    code, out, err = vectors_daemon.cli("run", "minilm", "--no-truncate", stdin="fox " * 600)
    assert (code, out) == (2, "")
    assert "exceeds the context length of 512" in err
    code, out, err = vectors_daemon.cli("run", "minilm", stdin="fox " * 600)
    assert (code, len(json.loads(out))) == (0, 384)
    assert "the last 90 tokens" in err


def test_run_of_a_model_for_text_makes_text(vectors_daemon: Daemon) -> None:
    code, out, _ = vectors_daemon.cli("run", "smol", "Say hi")
    assert code == 0
    assert not out.startswith("[")


def test_what_has_no_effect_on_vectors_is_noted(vectors_daemon: Daemon) -> None:
    code, out, err = vectors_daemon.cli("run", "minilm", "a fox", "--format", "json", "--think")
    assert (code, len(json.loads(out))) == (0, 384)
    assert err == "note: --format, --think have no effect: `minilm` makes vectors, not text\n"


def test_a_model_for_vectors_cannot_be_measured(vectors_daemon: Daemon) -> None:
    code, out, err = vectors_daemon.cli("bench", "minilm")
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
