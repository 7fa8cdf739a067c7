"""The text thread: the engine's tokens → text, thinking and calls for clients.

It owns the requests by id, from the moment their prompts are prepared, and writes the socket once
the model is loaded, a frame at a time. Answers are read (`output`) here, beside the forward. One
`Outbox` frame leaves for all tokens of a forward, not one per token.

A token that is alone is read by the engine's thread itself: waking another one takes as long, and
keeps the next forward waiting as well.
"""

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from queue import SimpleQueue

from localrun.core import Done, DoneReason, Likelihood, TokenLogprob, Usage, Vectors
from localrun.errors import BadRequest, LocalrunError, to_fields
from localrun.ipc.messages import (
    Admitted,
    Answered,
    Cancel,
    Failed,
    Outbox,
    Pace,
    Progressed,
    Rendered,
    Rendering,
    Resized,
    Share,
    Submit,
    Tested,
    ToDaemon,
    Waiting,
)
from localrun.runner.engine.embedder import EmbedJob
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import EngineMessage, Remove, StepOutput, TokenOut
from localrun.runner.model import Likelihoods, Vocab
from localrun.runner.output.answer import AnswerReader
from localrun.runner.prompt.composer import Prepared
from localrun.runner.prompt.prepare import FromPrompt, Refused, Settled
from localrun.spec import RunnerStats

# What the text thread's inbox carries, from the reader, the prompt thread and the engine.
TextMessage = Cancel | Pace | Share | FromPrompt | StepOutput


@dataclass(slots=True)
class _Request:
    submit: Submit
    sequence: Sequence
    answer: AnswerReader
    n_dropped: int = 0
    n_tokens: int = 0


class TextThread:
    """Owns the requests of this runner. `run` is the thread; `tell` alone is called in another."""

    def __init__(
        self,
        vocab: Vocab,
        inbox: "SimpleQueue[TextMessage]",
        tell_engine: Callable[[EngineMessage], None],
        send: Callable[[Outbox], None],
    ) -> None:
        self._inbox = inbox
        self._vocab = vocab
        self._tell_engine = tell_engine
        self._send = send
        self._requests: dict[int, _Request] = {}
        self._jobs: set[int] = set()
        self._cancelled: set[int] = set()
        self._items: list[ToDaemon] = []
        self._n_running = 0
        self._n_running_sent = 0
        self._stats: RunnerStats | None = None
        self._is_at_work = threading.Lock()
        # Outputs of the engine: `tell` counts those that it queues, this thread those it has read.
        self._n_queued = self._n_read = 0

    def run(self) -> None:
        """Handles messages for ever."""
        while True:
            self.read()

    def read(self) -> None:
        """Handles what has arrived, at least one message."""
        messages = [self._inbox.get()]
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        with self._is_at_work:
            self.turn(messages)
            self._n_read += sum(isinstance(message, StepOutput) for message in messages)

    def tell(self, output: StepOutput) -> None:
        """What the engine has done, from its thread: read at once, or queued for this one.

        At once only behind all that came before, and while this thread has nothing else to do.
        """
        is_next = len(output.tokens) == 1 and self._n_read == self._n_queued
        if is_next and self._is_at_work.acquire(blocking=False):
            try:
                self._after_step(output)
                self._flush()
            finally:
                self._is_at_work.release()
        else:
            self._n_queued += 1
            self._inbox.put(output)

    def turn(self, messages: Seq[TextMessage]) -> None:
        """Handles what has arrived together and sends one frame about it.

        Cancels go first: nobody reads what a step has made for a request that is gone.
        """
        for message in messages:
            if isinstance(message, Cancel):
                self._cancel(message.id)
        for message in messages:
            self._handle(message)
        self._flush()

    def _handle(self, message: TextMessage) -> None:
        match message:
            case StepOutput():
                self._after_step(message)
            case Rendering() | Rendered() | Answered():
                self._items.append(message)
            case Prepared():
                self._accept(message)
            case EmbedJob():
                self._accept_job(message)
            case Refused(id=request_id, error=error):
                self._fail(request_id, error)
            case Share() | Pace():
                self._tell_engine(message)
            case Settled(id=request_id):
                self._cancelled.discard(request_id)

    def _flush(self) -> None:
        if self._items or self._stats or self._n_running != self._n_running_sent:
            self._send(Outbox(tuple(self._items), self._n_running, self._stats))
            self._items.clear()
            self._stats = None
            self._n_running_sent = self._n_running

    # ---- a request arrives

    def _accept(self, prepared: Prepared) -> None:
        submit = prepared.submit
        if submit.id in self._cancelled:
            # Nobody waits for it, but for its template's deadline.
            self._items.append(Waiting(submit.id, len(prepared.tokens)))
            return
        foreign = [token for token in submit.sampling.logit_bias if token >= self._vocab.n_tokens]
        if foreign:
            problem = (
                f"the model has no token id {foreign[0]}; ids end at {self._vocab.n_tokens - 1}"
            )
            self._fail(submit.id, BadRequest("logit_bias", problem))
            return
        sequence = Sequence(
            submit.id,
            prepared.tokens,
            submit.sampling,
            submit.n_ctx,
            shifts=submit.overflow.shifts,
            n_keep=prepared.n_keep,
            client=submit.client,
            scope=submit.scope,
            matcher=prepared.matcher,
        )
        sampling = submit.sampling
        request = _Request(
            submit,
            sequence,
            AnswerReader(
                prepared.style, sampling.stop, has_logprobs=sampling.top_logprobs is not None
            ),
            prepared.n_dropped,
        )
        loosened = prepared.constraint.loosened if prepared.constraint is not None else ()
        self._items.append(Waiting(submit.id, len(prepared.tokens), loosened))
        if sequence.n_predict == 0:
            self._finish(request, "length")
            return
        self._requests[submit.id] = request
        self._tell_engine(sequence)

    def _accept_job(self, job: EmbedJob) -> None:
        if job.id not in self._cancelled:
            self._jobs.add(job.id)
            self._tell_engine(job)

    def _cancel(self, request_id: int) -> None:
        if self._requests.pop(request_id, None) or request_id in self._jobs:
            self._jobs.discard(request_id)
            self._tell_engine(Remove(request_id))
        else:
            # Its prompt may still come out of the prompt thread, which says when it will not.
            self._cancelled.add(request_id)

    # ---- the engine has done a step

    def _after_step(self, step: StepOutput) -> None:
        self._n_running = step.n_running
        self._stats = step.stats or self._stats
        if step.info is not None:
            self._items.append(Resized(step.info))
        if step.verdict is not None:
            self._items.append(Tested(step.verdict))
        self._items += [
            Admitted(sequence.id) for sequence in step.admitted if sequence.id in self._requests
        ]
        for out in step.tokens:
            # A request that ended here may still get a token from a step that was under way.
            request = self._requests.get(out.sequence.id)
            if request is not None:
                self._take(request, out)
        for job_id, answer in step.vectors:
            self._end_job(job_id, answer)
        for sequence, error in step.failed:
            if self._requests.pop(sequence.id, None):
                self._fail(sequence.id, error)

    def _end_job(self, job_id: int, answer: Vectors | LocalrunError) -> None:
        if job_id not in self._jobs:
            return
        self._jobs.discard(job_id)
        if isinstance(answer, Vectors):
            self._items.append(Answered(job_id, answer))
        else:
            self._fail(job_id, answer)

    def _take(self, request: _Request, out: TokenOut) -> None:
        answer, reason = request.answer, out.reason
        data, logprob = b"", None
        if out.token is not None:
            request.n_tokens += 1
            data = self._vocab.token_bytes(out.token)
            if not data:
                data = answer.shown(self._vocab.token_name(out.token))
            if out.likelihoods is not None:
                logprob = self._logprob(data, out.likelihoods)
        events = answer.feed(data, logprob, is_last=reason is not None, is_cut=reason == "length")
        self._items += [Progressed(request.submit.id, event) for event in events]
        if answer.is_stopped:
            if reason is None:
                self._tell_engine(Remove(request.submit.id, is_cancel=False))
            reason = "stop"
        if reason is not None:
            del self._requests[request.submit.id]
            self._finish(request, reason)

    def _logprob(self, data: bytes, likelihoods: Likelihoods) -> TokenLogprob:
        top = tuple(
            Likelihood(self._vocab.token_name(token), logprob) for token, logprob in likelihoods.top
        )
        return TokenLogprob(data, likelihoods.taken, top)

    # ---- a request ends

    def _finish(self, request: _Request, reason: DoneReason) -> None:
        sequence = request.sequence
        n_prompt = sequence.n_prompt
        usage = Usage(
            prompt_count=n_prompt,
            cached_count=sequence.n_cached,
            dropped_count=request.n_dropped,
            completion_count=request.n_tokens,
            prompt_ns=sequence.first_token_ns - sequence.admitted_ns,
            # Clients divide by it, also when the only token came with the prompt.
            completion_ns=max(
                1 if request.n_tokens else 0, sequence.last_token_ns - sequence.first_token_ns
            ),
        )
        context: tuple[int, ...] = ()
        if request.submit.return_context:
            n_read = n_prompt + request.n_tokens - sequence.n_shifted
            context = tuple(sequence.tokens[:n_read])
        done = Done(reason, usage, context, stop_text=request.answer.stop_text)
        self._items.append(Progressed(request.submit.id, done))

    def _fail(self, request_id: int, error: LocalrunError) -> None:
        kind, fields = to_fields(error)
        self._items.append(Failed(request_id, kind, fields))
