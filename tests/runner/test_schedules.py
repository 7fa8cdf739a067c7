"""Random schedules on the scripted model: whatever arrives, leaves and lacks cells, all ends well.

The scripted model refuses what llama.cpp would abort on (a gap in positions, a cell too many), so
a schedule that runs through is one that llama.cpp would have survived.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localrun.core import LoadSpec, SamplingParams
from localrun.runner.engine.engine import Engine, Remove, StepOutput
from localrun.runner.engine.sequence import Sequence
from localrun.runner.fake import FakeModel

N_EXAMPLES = 10_000 if os.environ.get("LOCALRUN_TEST_FULL") else 300
N_CTX = 64

# Few letters and few lengths, so that prefixes meet.
COMMON = "abbabaab" * 5
PROMPTS = st.builds(
    lambda n, own: COMMON[:n] + own,
    st.sampled_from([0, 0, 17, 24, 40]),
    st.text("ab", min_size=1, max_size=10) | st.text("ab", min_size=1, max_size=23),
)

REQUESTS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "num_predict": st.integers(1, 30),
        "scope": st.sampled_from(["", "", "key"]),
        "client": st.sampled_from(["x", "y"]),
        "deterministic": st.sampled_from([False, False, True]),
        "n_ctx": st.sampled_from([N_CTX, N_CTX, N_CTX, 2 * N_CTX]),
        "at_step": st.integers(0, 40),
        "leaves_after": st.none() | st.none() | st.integers(0, 25),
    }
)

SCHEDULES = st.fixed_dictionaries(
    {
        "requests": st.lists(REQUESTS, min_size=1, max_size=14),
        "kv_layout": st.sampled_from(["unified", "unified", "split"]),
        "kv_pool": st.none() | st.integers(N_CTX, 300) | st.integers(N_CTX, 100),
        "n_parallel": st.integers(1, 6),
        "host_tier_bytes": st.sampled_from([0, 500, 1 << 20]),
        "admission": st.sampled_from(["continuous", "continuous", "static", "dynamic"]),
        "n_batch": st.sampled_from([8, 32, 512]),
        "shares_prefixes": st.booleans(),
        "n_cells_lost": st.sampled_from([0, 0, 0, 7]),
    }
)


class Clock:
    """A millisecond for every look at it."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns


class Run:
    """One schedule, step by step, with everything checked after each."""

    def __init__(self, path: Path, schedule: dict[str, Any]) -> None:
        self.schedule = schedule
        spec = LoadSpec(
            str(path),
            "digest",
            n_ctx=N_CTX,
            n_parallel=schedule["n_parallel"],
            n_threads=1,
            kv_layout=schedule["kv_layout"],
            kv_pool=schedule["kv_pool"],
            host_tier_bytes=schedule["host_tier_bytes"],
            admission=schedule["admission"],
        )
        self.model = FakeModel(spec, lambda _fraction: None)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(self.model, spec, self.outputs.append, clock_ns=Clock())
        self.sequences: dict[int, Sequence] = {}
        self.texts: dict[int, bytes] = {}
        self.ended: dict[int, str] = {}
        self.left: set[int] = set()

    def play(self) -> None:
        requests = self.schedule["requests"]
        last_step = max(r["at_step"] for r in requests)
        leaving: dict[int, list[int]] = {}
        for step in range(20_000):
            for number, request in enumerate(requests):
                if request["at_step"] == step:
                    self._submit(number, request)
                    if request["leaves_after"] is not None:
                        leaving.setdefault(step + request["leaves_after"], []).append(number)
            for number in leaving.pop(step, []):
                self.left.add(number)
                self.engine.inbox.put(Remove(number))
            self._step()
            if step > last_step and not leaving and self.engine.is_idle:
                break
        self._check_end()

    def _submit(self, number: int, request: dict[str, Any]) -> None:
        params = SamplingParams(
            temperature=0,
            num_predict=request["num_predict"],
            deterministic=request["deterministic"],
        )
        sequence = Sequence(
            number,
            list(request["prompt"].encode()),
            params,
            request["n_ctx"],
            client=request["client"],
            scope=request["scope"],
        )
        self.sequences[number] = sequence
        self.engine.inbox.put(sequence)

    def _step(self) -> None:
        oldest = self._oldest()
        before = None if oldest is None else (oldest.n_done, oldest.n_completion)
        shape = self.engine.shape
        self.outputs.clear()
        self.engine.step()
        for output in self.outputs:
            for out in output.tokens:
                assert out.sequence.id not in self.ended
                text = b"" if out.token is None else self.model.vocab.token_bytes(out.token)
                self.texts[out.sequence.id] = self.texts.get(out.sequence.id, b"") + text
                if out.reason:
                    self.ended[out.sequence.id] = out.reason
            for sequence, _error in output.failed:
                assert sequence.id not in self.ended
                self.ended[sequence.id] = "failed"
        self._check_books()
        is_same = oldest is self._oldest() and shape is self.engine.shape
        if oldest is not None and is_same and not self.schedule["n_cells_lost"]:
            assert (oldest.n_done, oldest.n_completion) != before, "the oldest did not advance"

    def _oldest(self) -> Sequence | None:
        running = self.engine.running
        return running[0] if running else None

    def _check_books(self) -> None:
        gauges = self.engine.gauges()
        lost = self.schedule["n_cells_lost"]
        assert gauges["kv_cells_free"] == self.model.n_free + lost
        assert gauges["kv_cells_used"] + gauges["kv_cells_free"] == self.engine.shape.n_cells
        for sequence in self.engine.running:
            assert self.model.n_positions(sequence.kv_id) == sequence.n_done
        assert len(self.engine.running) <= self.engine.shape.n_slots

    def _check_end(self) -> None:
        assert self.engine.is_idle, "somebody never ends"
        lost = self.schedule["n_cells_lost"]
        for number, sequence in self.sequences.items():
            if number in self.left and number not in self.ended:
                continue
            if lost and self.ended[number] == "failed":
                continue  # a context with fewer cells than it says cannot serve all
            request = self.schedule["requests"][number]
            n_tokens = min(request["num_predict"], sequence.n_ctx - len(request["prompt"]))
            expected = request["prompt"].encode()[:n_tokens]
            if number not in self.left:
                assert self.texts.get(number, b"") == expected
                reason = "length" if n_tokens <= len(request["prompt"]) else "stop"
                assert self.ended[number] == reason
        gauges = self.engine.gauges()
        assert gauges["kv_cells_used"] == gauges["kv_cells_retained"]


@given(schedule=SCHEDULES)
@settings(
    max_examples=N_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_sequence_ends_once_and_nothing_is_left(
    fake_model: Callable[..., Path], schedule: dict[str, Any]
) -> None:
    script = {key: schedule[key] for key in ("n_batch", "shares_prefixes", "n_cells_lost")}
    Run(fake_model(echo=True, **script), schedule).play()
