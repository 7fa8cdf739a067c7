"""The engine of a model that makes vectors only: no sequences, no KV cache, no steps to plan."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from localrun.errors import Unsupported
from localrun.ipc.messages import Share
from localrun.runner.engine.embedder import Embedder, EmbedJob
from localrun.runner.engine.lanes import Ended, Lane, part
from localrun.runner.engine.layout import side_shape
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.threads import Governor
from localrun.runner.engine.traffic import EngineMessage, Remove, Report, StepOutput
from localrun.runner.measure import process_cpu_s, used_cpu_s
from localrun.runner.model import Embeddings, Model
from localrun.spec import LoadSpec

# How often to look whether texts have waited long enough.
_LOOK_S = 0.001


class EmbeddingEngine:
    """As `engine.Engine` for those who feed it and read what it emits."""

    def __init__(
        self,
        model: Model,
        spec: LoadSpec,
        emit: Callable[[StepOutput], None],
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Makes the context for the window of `spec`. Raises LoadRefused."""
        self.inbox: SimpleQueue[EngineMessage | Ended] = SimpleQueue()
        self._model = model
        self._emit = emit
        self._clock_ns = clock_ns
        self._n_slots = spec.n_parallel
        self._governor = Governor(spec.n_threads, used_cpu_s, process_cpu_s, clock_ns() / 1e9)
        self._meter = Meter()
        self._embedder = Embedder(model, spec, self._meter, self._n_threads, clock_ns)
        self._report = Report(lambda: self._meter.stats(self._gauges()), clock_ns)
        shape = model.embeddings(spec.n_ctx).shape
        self._shares, self._n_short = shape.n_ids > 1, side_shape(shape).n_rows
        self._main, self._side = (Lane(self.inbox.put, clock_ns) for _ in range(2))
        self._has_side = spec.n_threads > 1  # its context comes with the first load that needs it
        self._busy: dict[Lane, int] = {}  # compute threads of the forward that runs there
        self._n_running, self._needs = 0, model.info.needs  # as emitted last

    def run(self) -> None:
        """Steps for ever; sleeps in the inbox while there is nothing to do."""
        while True:
            self.step(wait_s=None if self._busy or self._embedder.is_idle else _LOOK_S)

    def step(self, *, wait_s: float | None) -> None:
        """Takes what has come, at least one message or after `wait_s`, and starts what can be."""
        self._drain_inbox(wait_s)
        self._start_forwards()
        answers = self._embedder.take_answers()
        n_running = min(self._embedder.n_jobs, self._n_slots)
        needs = self._model.info.needs
        if answers or (n_running, needs) != (self._n_running, self._needs):
            info = self._model.info if needs != self._needs else None
            self._n_running, self._needs = n_running, needs
            is_last = self._embedder.is_idle
            self._emit(self._report.take(n_running, info, answers, is_last=is_last))

    def _start_forwards(self) -> None:
        n_threads = self._n_threads()
        if self._embedder.has_waiting and self._main not in self._busy:
            context = self._embedder.open()
            if context is not None:
                self._start(self._main, context, n_threads)
        # Beside that, if it has left threads and texts.
        has_left = self._embedder.has_waiting and 0 < self._busy.get(self._main, 0) < n_threads
        if has_left and self._has_side and self._side not in self._busy:
            context = self._model.side_embeddings()
            self._has_side = context is not None
            if context is not None:
                self._start(self._side, context, n_threads)

    def _start(self, lane: Lane, context: Embeddings, n_threads: int) -> None:
        n_rows = self._embedder.n_short_rows(self._n_short) if self._has_side else 0
        n_used = sum(self._busy.values())
        found = part(n_rows, shares=self._shares, n_threads=n_threads, n_used=n_used)
        if found is None:
            return
        n_rows = found.n_rows or context.shape.n_shared
        forward = self._embedder.begin(context, n_rows, found.n_threads)
        if forward is not None:
            self._busy[lane] = found.n_threads
            lane.start(forward)

    def _n_threads(self) -> int:
        return self._governor.look(self._clock_ns() / 1e9)

    def _gauges(self) -> dict[str, float]:
        return {"threads": self._governor.n_threads}

    def _drain_inbox(self, wait_s: float | None) -> None:
        try:
            self._handle(self.inbox.get(timeout=wait_s))
            while True:
                self._handle(self.inbox.get_nowait())
        except Empty:
            pass

    def _handle(self, message: EngineMessage | Ended) -> None:
        match message:
            case Ended(lane=lane, forward=forward, code=code, elapsed_s=elapsed_s, error=error):
                del self._busy[lane]
                if error is not None:
                    raise error
                self._embedder.end(forward, code, elapsed_s)
            case EmbedJob():
                self._embedder.add(message)
            case Remove(id=number):
                self._embedder.remove(number)
            case Share(n_active=n_active, siblings=siblings):
                self._governor.share(n_active, siblings)
            case Sequence():
                error = Unsupported("", "generate")
                self._emit(StepOutput((), (), ((message, error),), n_running=0))
