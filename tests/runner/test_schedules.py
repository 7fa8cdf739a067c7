"""Random schedules on the scripted model: whatever arrives, leaves and lacks cells, all ends well.

The scripted model refuses what llama.cpp would abort on (a gap in positions, a cell too many), so
a schedule that runs through is one that llama.cpp would have survived.
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localrun.core import SamplingParams
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import Remove, StepOutput, TokenOut
from localrun.runner.fake import FakeModel
from localrun.runner.model import State
from localrun.spec import LoadSpec

# The short run plays the same schedules every time that the same modules are loaded, from which
# Hypothesis takes numbers too: which corners 300 random ones come to differs more than tenfold.
# The full run looks for new ones.
IS_FULL = bool(os.environ.get("LOCALRUN_TEST_FULL"))
N_EXAMPLES = 10_000 if IS_FULL else 300
N_CTX = 128

# Few letters and few lengths, so that prefixes meet: below and above what is worth a copy.
COMMON = "abbabaab" * 12
PROMPTS = st.builds(
    lambda n, own: COMMON[:n] + own,
    st.sampled_from([0, 0, 17, 17, 40, 80]),
    st.text("ab", min_size=1, max_size=10) | st.text("ab", min_size=1, max_size=30),
)

REQUESTS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        # Goes on where that request is by then, as the next turn of a chat does.
        "follows": st.none() | st.none() | st.integers(0, 5),
        "num_predict": st.integers(1, 30) | st.integers(60, 100),
        "scope": st.sampled_from(["", "", "", "key"]),
        "client": st.sampled_from(["x", "y"]),
        "is_special": st.booleans(),
        "at_step": st.sampled_from([0, 0, 0, 5, 50]) | st.integers(0, 40),
        "leaves_after": st.none() | st.none() | st.none() | st.integers(0, 25),
    }
)

SCHEDULES = st.fixed_dictionaries(
    {
        "requests": st.lists(REQUESTS, min_size=1, max_size=14)
        | st.lists(REQUESTS, min_size=6, max_size=14),
        # What the special ones ask for. It makes another context, so it is rare.
        "special": st.sampled_from([{}, {}, {"deterministic": True}, {"n_ctx": 2 * N_CTX}]),
        "kv_layout": st.sampled_from(["unified", "unified", "split"]),
        "kv_pool": st.none() | st.integers(N_CTX, 2 * N_CTX) | st.integers(N_CTX, 2 * N_CTX),
        "n_parallel": st.integers(1, 6) | st.integers(3, 6),
        "host_tier_bytes": st.sampled_from([0, 0, 1000, 1 << 20]),
        "admission": st.sampled_from(["continuous", "continuous", "static", "dynamic"]),
        "n_batch": st.sampled_from([8, 32, 512]),
        "shares_prefixes": st.sampled_from([True, True, False]),
        "endless": st.sampled_from([True, True, False]),
        "n_cells_lost": st.sampled_from([0, 0, 0, 7, 50]),
    }
)

# What must have happened in at least one of a hundred schedules of the full run, and at all in the
# short one, or they test too little.
CORNERS = {
    "preemptions_swap_total",
    "preemptions_recompute_total",
    "context_rebuilds_total",
    "donors_dropped_total",
    "forward_errors_total",
    "requests_cancelled_total",
    "held for a prefix",
    "forked",
    "went on in a donor's cells",
    "restored a donor",
}


SCRIPTED = ("n_batch", "shares_prefixes", "n_cells_lost", "endless")


class Watched(FakeModel):
    """Counts how cells come to a sequence other than by a forward."""

    n_copied = 0
    n_restored = 0

    def copy(self, source: int, target: int, n: int) -> None:
        self.n_copied += 1
        super().copy(source, target, n)

    def restore(self, kv_id: int, state: State) -> bool:
        self.n_restored += 1
        return super().restore(kv_id, state)


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
        self.model = Watched(spec, lambda _fraction: None)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(self.model, spec, self.outputs.append, clock_ns=Clock())
        self.sequences: dict[int, Sequence] = {}
        self.texts: dict[int, bytes] = {}
        self.ended: dict[int, str] = {}
        self.left: set[int] = set()
        self.seen: set[str] = set()

    def play(self) -> set[str]:
        """Which corners it came to."""
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
        return self.seen | {name for name, n in self.engine.stats().values.items() if n}

    def _submit(self, number: int, request: dict[str, Any]) -> None:
        special = self.schedule["special"] if request["is_special"] else {}
        params = SamplingParams(
            temperature=0,
            num_predict=request["num_predict"],
            deterministic=special.get("deterministic", False),
            top_logprobs=1 if number % 2 else None,
        )
        tokens = list(request["prompt"].encode())
        before = self.sequences.get(request["follows"])
        if before is not None:
            tokens = before.tokens[: N_CTX - len(tokens) - 1] + tokens
        sequence = Sequence(
            number,
            tokens,
            params,
            special.get("n_ctx", N_CTX),
            client=request["client"],
            scope=request["scope"],
        )
        self.sequences[number] = sequence
        self.engine.inbox.put(sequence)

    def _check_likelihoods(self, out: TokenOut) -> None:
        if out.sequence.sampling.top_logprobs is None:
            assert out.likelihoods is None
            return
        assert out.likelihoods is not None
        ((likeliest, _),) = out.likelihoods.top
        assert out.token in (likeliest, None)  # the scripted model takes the likeliest

    def _step(self) -> None:
        oldest = self._oldest()
        before = None if oldest is None else (oldest.n_done, oldest.n_completion)
        shape = self.engine.shape
        self.outputs.clear()
        copied, restored = self.model.n_copied, self.model.n_restored
        lacking = {s for s in self._live() if s.n_evaluated and s.kv_id < 0}
        self.engine.step()
        self._note(lacking, self.model.n_copied - copied, self.model.n_restored - restored)
        for output in self.outputs:
            for out in output.tokens:
                assert out.sequence.id not in self.ended
                self._check_likelihoods(out)
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

    def _note(self, lacking: set[Sequence], n_copied: int, n_restored: int) -> None:
        admitted = [s for output in self.outputs for s in output.admitted if s.n_cached]
        resumed = [s for s in lacking if s.kv_id >= 0 and s.n_done > 1]
        happened = {
            "held for a prefix": any(s.is_held for s in self._live()),
            "forked": n_copied,
            "went on in a donor's cells": len(admitted) > n_copied + n_restored,
            "restored a donor": n_restored > len(resumed),
        }
        self.seen |= {name for name, is_true in happened.items() if is_true}

    def _live(self) -> list[Sequence]:
        gone = self.left | self.ended.keys()
        return [s for number, s in self.sequences.items() if number not in gone]

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
            prompt = sequence.tokens[: sequence.n_prompt]
            n_tokens = min(request["num_predict"], sequence.n_ctx - len(prompt))
            read = b"".join(map(self.model.vocab.token_bytes, prompt))
            if number not in self.left:
                if self.schedule["endless"]:
                    read *= n_tokens
                assert self.texts.get(number, b"") == read[:n_tokens]
                reason = "length" if n_tokens <= len(read) else "stop"
                assert self.ended[number] == reason
        gauges = self.engine.gauges()
        assert gauges["kv_cells_used"] == gauges["kv_cells_retained"]


@pytest.mark.soak
@pytest.mark.timeout(120 + N_EXAMPLES // 10)
def test_every_sequence_ends_once_and_nothing_is_left(fake_model: Callable[..., Path]) -> None:
    paths: dict[tuple[Any, ...], Path] = {}
    n_played = 0
    seen: Counter[str] = Counter()

    @given(schedule=SCHEDULES)
    @settings(
        max_examples=N_EXAMPLES,
        derandomize=not IS_FULL,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def play(schedule: dict[str, Any]) -> None:
        nonlocal n_played
        script = {key: schedule[key] for key in SCRIPTED}
        key = tuple(script.values())
        if key not in paths:
            paths[key] = fake_model(echo=True, **script)
        seen.update(Run(paths[key], schedule).play())
        n_played += 1

    play()
    n_least = n_played / 100 if IS_FULL else 1
    rare = {name: seen[name] for name in CORNERS if seen[name] < n_least}
    assert not rare, f"of {n_played} schedules"
