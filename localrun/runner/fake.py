"""A scripted model behind the same seam as llama.py: exact bytes, delays, endless text, crashes.

Tests use it; no weights are involved. What is to happen stands in a `fake_script.Script`; this file
plays it, and checks what the engine must never do.
"""

import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from localrun.core import SamplingParams
from localrun.errors import NO_TOKEN
from localrun.ipc.messages import DevicesListed, Planned
from localrun.memory import CPU, Fit, Need, Plan, Split
from localrun.runner.engine.layout import ModelFacts, Shape, embedding_shape, side_shape
from localrun.runner.fake_embeddings import FakeEmbeddings
from localrun.runner.fake_script import (
    ECHO,
    END,
    FIRST_PIECE,
    FakeVocab,
    Script,
    is_said,
    read_script,
)
from localrun.runner.model import (
    Likelihoods,
    LoadRefused,
    Matcher,
    Model,
    OnProgress,
    State,
    Wanted,
)
from localrun.spec import LoadSpec, RunnerInfo

T = TypeVar("T")

# What llama.cpp returns when a graph could not be computed.
_FAILED = -3


class FakeSampler:
    """Takes the scripted token, whatever the parameters, unless a matcher allows others only.

    Then it is the first that is allowed: a byte, if one is.
    """

    def __init__(self, model: "FakeModel", matcher: Matcher | None) -> None:
        self._model = model
        self._matcher = matcher

    def sample(self, row: int) -> int:
        """The token for output `row`."""
        token = self._model.next_token(row)
        if self._matcher is None or self._matcher.take(token):
            return token
        allowed = int.from_bytes(self._matcher.allowed(), "little")
        first = (allowed & -allowed).bit_length() - 1
        return first if first >= 0 and self._matcher.take(first) else NO_TOKEN

    def close(self) -> None:
        """Nothing to free."""


@dataclass(slots=True, eq=False)
class _Cell:
    token: int
    n_owners: int = 1


class FakeLibrary:
    """Plans and loads scripts; see `loading.Library`. Looks at no memory."""

    def list_devices(self, rpc_servers: tuple[str, ...]) -> DevicesListed:
        """None: a script computes nothing."""
        return DevicesListed(())

    def plan(self, spec: LoadSpec, held: Mapping[str, int]) -> Planned:
        """How the script would be loaded beside the `held` bytes of other models."""
        script = read_script(spec.weights_path)
        n_bytes = _size(script, spec)
        free_bytes = max(0, script.machine_bytes - held.get(CPU, 0))
        fit: Fit = "now" if n_bytes <= free_bytes else "crowded"
        plan = Plan(
            fit=fit if n_bytes <= script.machine_bytes else "never",
            split=Split(),
            needs={CPU: Need(weights_bytes=n_bytes)},
            available={CPU: free_bytes},
            n_ctx=spec.n_ctx,
            n_cells=spec.n_ctx * spec.n_parallel,
            reasons=("the script says so",),
        )
        return Planned(plan)

    def load(
        self,
        spec: LoadSpec,
        split: Split | None,
        on_progress: OnProgress,
        start: Callable[[LoadSpec, Model], T],
    ) -> T:
        """Plays the load. Raises LoadRefused."""
        return start(spec, FakeModel(spec, on_progress))


class FakeModel:
    """Plays the script and checks what the engine must never do."""

    def __init__(self, spec: LoadSpec, on_progress: OnProgress) -> None:
        self._script = script = read_script(spec.weights_path)
        for tenth in range(10):
            time.sleep(script.load_s / 10)
            if not script.load_silent:
                on_progress((tenth + 1) / 10)
        if script.crash_on_load:
            os.abort()
        if script.refuse:
            raise LoadRefused(script.refuse)
        self.vocab = FakeVocab(script)
        self.n_batch = script.n_batch
        self.facts = ModelFacts(
            1,
            script.shares_prefixes,
            pad=1,
            n_vocab=FIRST_PIECE,
            pooling=script.pooling,
            is_causal=script.is_causal,
        )
        self._spec = spec
        self._embeddings: FakeEmbeddings | None = None
        self._side: FakeEmbeddings | None = None
        self.host_tier_bytes = _or(spec.host_tier_bytes, 1 << 20)
        self._n_bytes = _size(script, spec)
        self._outputs: list[int] = []  # ids of the last forward's output rows
        self._n_forwards = 0

    first_shape: Shape | None = None

    def free_bytes(self) -> int:
        """Enough for whatever a test asks."""
        return 1 << 40

    def open(self, shape: Shape) -> None:
        """Empties everything; see `Model.open`."""
        self._shape = shape
        self._cells: dict[int, list[_Cell]] = {kv_id: [] for kv_id in range(shape.n_ids)}
        self.n_free = shape.n_cells - self._script.n_cells_lost
        self.info = RunnerInfo(
            n_ctx=shape.n_ctx,
            n_slots=shape.n_slots,
            n_cells=shape.n_cells,
            layout=shape.layout,
            needs={CPU: Need(self._n_bytes)},
        )

    def embeddings(self, n_ctx: int) -> FakeEmbeddings:
        """See `Model.embeddings`."""
        shape = embedding_shape(self._spec, self.facts, n_ctx)
        if self._embeddings is None or self._embeddings.shape.n_ctx < shape.n_ctx:
            script = self._script
            self._embeddings = FakeEmbeddings(shape, script.step_s, script.fail_on)
            if self._spec.embeds:
                needs = {CPU: Need(self._n_bytes)}
                n_slots = self._spec.n_parallel
                self.info = RunnerInfo(shape.n_ctx, n_slots, shape.n_cells, needs=needs)
        return self._embeddings

    def side_embeddings(self) -> FakeEmbeddings | None:
        """See `Model.side_embeddings`."""
        if self._side is None and self._embeddings is not None:
            script = self._script
            shape = side_shape(self._embeddings.shape)
            self._side = FakeEmbeddings(shape, script.step_s, script.fail_on)
        return self._side

    def use_threads(self, n: int) -> None:
        """Nothing is computed."""

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        kv_ids: Sequence[int],
        outputs: Sequence[bool],
    ) -> int:
        """Writes the rows into their cells; see `Model.forward`."""
        if not 0 < len(tokens) <= self.n_batch:
            raise ValueError(f"{len(tokens)} rows do not fit a batch of {self.n_batch}")
        self._n_forwards += 1
        time.sleep(self._script.step_s + self._script.row_s * len(tokens))
        if self._n_forwards == self._script.fail_at_forward:
            return _FAILED
        if len(tokens) > self.n_free:
            return 1
        for token, position, kv_id in zip(tokens, positions, kv_ids, strict=True):
            cells = self._cells[kv_id]
            if position != len(cells):
                raise ValueError(f"row at position {position} of id {kv_id} leaves a gap")
            if self._shape.layout == "split" and position >= self._shape.n_ctx:
                raise ValueError(f"row at position {position} is outside of the window")
            cells.append(_Cell(token))
        self.n_free -= len(tokens)
        self._outputs = [kv_id for kv_id, wanted in zip(kv_ids, outputs, strict=True) if wanted]
        self._crash_if_due()
        return 0

    def _crash_if_due(self) -> None:
        script = self._script
        poisoned = script.crash_on and any(
            script.crash_on in bytes(cell.token for cell in cells if cell.token < FIRST_PIECE)
            for cells in self._cells.values()
        )
        if poisoned or self._n_forwards == script.crash_at_forward:
            os.abort()

    def greedy(self) -> list[int]:
        """The scripted token of every output row."""
        return [self.next_token(row) for row in range(len(self._outputs))]

    def next_token(self, row: int) -> int:
        """The scripted token of one output row."""
        tokens = [cell.token for cell in self._cells[self._outputs[row]]]
        index = 0
        while index < len(tokens) and is_said(tokens[-1 - index]):
            index += 1
        said: Sequence[int] = range(FIRST_PIECE, FIRST_PIECE + len(self._script.pieces))
        if self._script.echo:
            said = [
                ECHO + token % ECHO
                for token in tokens[: len(tokens) - index]
                if not END <= token < ECHO
            ]
        if self._script.endless and said:
            return said[index % len(said)]
        return said[index] if index < len(said) else END

    def likelihoods(self, wanted: Sequence[Wanted]) -> list[Likelihoods]:
        """As scripted; see `Script`."""
        return [self._likelihoods_of(token, n_top) for _, token, n_top in wanted]

    def _likelihoods_of(self, token: int, n_top: int) -> Likelihoods:
        n, number = len(self._script.pieces), token - FIRST_PIECE
        if not 0 <= number < n:
            return Likelihoods(0.0, ((token, 0.0),)[:n_top])
        taken = self._script.logprobs[number] if number < len(self._script.logprobs) else 0.0
        others = (FIRST_PIECE + (number + i) % n for i in range(min(n_top, n)))
        return Likelihoods(taken, tuple((other, taken - i) for i, other in enumerate(others)))

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], matcher: Matcher | None = None
    ) -> FakeSampler:
        """A sampler without choices."""
        return FakeSampler(self, matcher)

    def n_positions(self, kv_id: int) -> int:
        """See `Model.n_positions`."""
        return len(self._cells[kv_id])

    def trim(self, kv_id: int, n: int) -> bool:
        """See `Model.trim`."""
        cells = self._cells[kv_id]
        if 0 < n < len(cells) and not self.facts.shares_prefixes:
            return False
        for cell in cells[n:]:
            cell.n_owners -= 1
            self.n_free += cell.n_owners == 0
        del cells[n:]
        return True

    def copy(self, source: int, target: int, n: int) -> None:
        """See `Model.copy`."""
        shared = self._cells[source][:n]
        if self._shape.layout == "split" or self._cells[target] or len(shared) != n:
            raise ValueError(f"id {target} cannot share {n} cells of id {source}")
        for cell in shared:
            cell.n_owners += 1
        self._cells[target] = list(shared)

    def state_bytes(self, kv_id: int) -> int:
        """See `Model.state_bytes`."""
        return 8 * len(self._cells[kv_id])

    def save(self, kv_id: int) -> State:
        """See `Model.save`."""
        return array("q", (cell.token for cell in self._cells[kv_id])).tobytes()

    def restore(self, kv_id: int, state: State) -> bool:
        """See `Model.restore`."""
        cells = [_Cell(token) for token in array("q", bytes(state))]
        if len(cells) > self.n_free:
            return False
        self.n_free -= len(cells)
        self._cells[kv_id] = cells
        return True


def _size(script: Script, spec: LoadSpec) -> int:
    return _or(script.needs_bytes, os.path.getsize(spec.weights_path))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
