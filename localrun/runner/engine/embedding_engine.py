"""The engine of a model that makes vectors only: no sequences, no KV cache, no steps to plan."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from localrun.errors import Unsupported
from localrun.ipc.messages import Share
from localrun.runner.engine.embedder import Embedder, EmbedJob
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.threads import Governor
from localrun.runner.engine.traffic import EngineMessage, Remove, Report, StepOutput
from localrun.runner.measure import process_cpu_s, used_cpu_s
from localrun.runner.model import Model
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
        self.inbox: SimpleQueue[EngineMessage] = SimpleQueue()
        self._model = model
        self._emit = emit
        self._clock_ns = clock_ns
        self._n_slots = spec.n_parallel
        self._governor = Governor(spec.n_threads, used_cpu_s, process_cpu_s, clock_ns() / 1e9)
        self._meter = Meter()
        self._embedder = Embedder(
            model, spec, self._meter, lambda: self._governor.look(clock_ns() / 1e9), clock_ns
        )
        self._report = Report(self._meter, self._gauges, clock_ns)
        self._n_running = 0  # as emitted last
        model.embeddings(spec.n_ctx)

    def run(self) -> None:
        """Steps for ever; sleeps in the inbox while there is nothing to do."""
        while True:
            if not self.step(block=self._embedder.is_idle):
                self._drain_inbox(timeout_s=_LOOK_S)

    def step(self, *, block: bool = False) -> bool:
        """One forward, or none: False. `block` waits for a message first."""
        if block:
            self._handle(self.inbox.get())
        self._drain_inbox(timeout_s=None)
        needs = self._model.info.needs
        has_embedded = self._embedder.step(None)
        answers = self._embedder.take_answers()
        n_running = min(self._embedder.n_jobs, self._n_slots)
        if has_embedded or answers or n_running != self._n_running:
            self._n_running = n_running
            info = self._model.info if self._model.info.needs != needs else None
            is_last = self._embedder.is_idle
            self._emit(self._report.take(n_running, info, answers, is_last=is_last))
        return has_embedded

    def _gauges(self) -> dict[str, float]:
        return {"threads": self._governor.n_threads}

    def _drain_inbox(self, *, timeout_s: float | None) -> None:
        try:
            while True:
                self._handle(self.inbox.get(block=timeout_s is not None, timeout=timeout_s))
                timeout_s = None
        except Empty:
            pass

    def _handle(self, message: EngineMessage) -> None:
        match message:
            case EmbedJob():
                self._embedder.add(message)
            case Remove(id=number):
                self._embedder.remove(number)
            case Share(n_active=n_active, siblings=siblings):
                self._governor.share(n_active, siblings)
            case Sequence():
                error = Unsupported("", "generate")
                self._emit(StepOutput((), (), ((message, error),), n_running=0))
