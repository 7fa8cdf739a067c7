"""The text thread: requests → token ids for the engine, the engine's tokens → text for clients.

Everything about text happens here, beside the forward: templates, fitting, tokenizing, UTF-8,
stop strings. It owns the requests by id and is the only writer of the socket once the model is
loaded. One `Outbox` frame leaves per engine step, not one per token.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from localrun.core import ChatPrompt, Done, DoneReason, Message, RawPrompt, TextDelta, Usage
from localrun.errors import BadRequest, ContextOverflow, LocalrunError, to_fields
from localrun.ipc.messages import (
    Admitted,
    Cancel,
    Failed,
    Outbox,
    Progressed,
    Rendering,
    Submit,
    ToDaemon,
    ToRunner,
    Waiting,
)
from localrun.runner.engine.engine import Remove, StepOutput, TokenOut
from localrun.runner.engine.sequence import Sequence
from localrun.runner.model import Vocab
from localrun.runner.output.detokenizer import Detokenizer
from localrun.runner.prompt.fit import fit
from localrun.runner.prompt.templates import JinjaTemplate, go_template, render_plain

# What the text thread's inbox carries: the daemon's messages and the engine's steps.
TextMessage = ToRunner | StepOutput


@dataclass(slots=True)
class _Request:
    submit: Submit
    sequence: Sequence
    detokenizer: Detokenizer
    n_tokens: int = 0


class TextThread:
    """Owns the requests of this runner. `run` is the thread; everything else happens inside it."""

    def __init__(
        self,
        vocab: Vocab,
        inbox: "SimpleQueue[TextMessage]",
        engine_inbox: "SimpleQueue[Sequence | Remove]",
        send: Callable[[Outbox], None],
    ) -> None:
        self._inbox = inbox
        self._vocab = vocab
        self._engine_inbox = engine_inbox
        self._send = send
        self._requests: dict[int, _Request] = {}
        self._own_template: JinjaTemplate | None = None
        self._items: list[ToDaemon] = []
        self._n_running = 0
        self._n_running_sent = 0

    def run(self) -> None:
        """Handles messages for ever."""
        while True:
            self.turn(self._receive())

    def _receive(self) -> list[TextMessage]:
        messages = [self._inbox.get()]
        try:
            while True:
                messages.append(self._inbox.get_nowait())
        except Empty:
            return messages

    def turn(self, messages: Seq[TextMessage]) -> None:
        """Handles what has arrived: cancels first, running streams next, new prompts last.

        So a cancelled prompt is never rendered and a long one holds up no text that is ready.
        """
        cancelled = {message.id for message in messages if isinstance(message, Cancel)}
        for request_id in cancelled:
            self._cancel(request_id)
        for message in messages:
            if isinstance(message, StepOutput):
                self._after_step(message)
        self._flush()
        for message in messages:
            if isinstance(message, Submit) and message.id not in cancelled:
                self._submit(message)
                self._flush()

    def _flush(self) -> None:
        if self._items or self._n_running != self._n_running_sent:
            self._send(Outbox(tuple(self._items), self._n_running))
            self._items.clear()
            self._n_running_sent = self._n_running

    # ---- a request arrives

    def _submit(self, submit: Submit) -> None:
        try:
            tokens = self._tokens_of(submit)
        except LocalrunError as error:
            self._fail(submit.id, error)
            return
        sequence = Sequence(submit.id, tokens, submit.sampling, submit.n_ctx)
        request = _Request(submit, sequence, Detokenizer(submit.sampling.stop))
        self._items.append(Waiting(submit.id))
        if sequence.n_predict == 0:
            self._finish(request, "length")
            return
        self._requests[submit.id] = request
        self._engine_inbox.put(sequence)

    def _tokens_of(self, submit: Submit) -> list[int]:
        """Token ids of the prompt, shorter than the window.

        Raises BadRequest, ContextOverflow, TemplateFailed.
        """
        prompt = submit.prompt
        if isinstance(prompt, RawPrompt):
            tokens = self._vocab.tokenize(prompt.text)
        else:
            self._items.append(Rendering(submit.id))
            self._flush()
            tokens = self._chat_tokens(prompt, submit)
        if not tokens:
            # llama.cpp needs a token to start from; an empty prompt without BOS has none.
            tokens = self._vocab.tokenize(" ")
        if len(tokens) >= submit.n_ctx:
            raise ContextOverflow(len(tokens), submit.n_ctx)
        return tokens

    def _chat_tokens(self, prompt: ChatPrompt, submit: Submit) -> list[int]:
        render = self._renderer(submit.template)
        context = prompt.context
        if context and not 0 <= min(context) <= max(context) < self._vocab.n_tokens:
            raise BadRequest("context", "holds token ids that the model does not have")

        def tokenize(messages: Seq[Message]) -> list[int]:
            return [*context, *self._vocab.tokenize(render(messages), is_start=not context)]

        return fit(prompt.messages, submit.n_ctx, tokenize)

    def _renderer(self, go_source: str | None) -> Callable[[Seq[Message]], str]:
        if go_source is not None:
            return go_template(go_source).render
        if self._vocab.chat_template is None:
            return render_plain
        if self._own_template is None:
            self._own_template = JinjaTemplate(
                self._vocab.chat_template,
                bos_text=self._vocab.bos_text,
                eos_text=self._vocab.eos_text,
            )
        return self._own_template.render

    # ---- the engine has done a step

    def _after_step(self, step: StepOutput) -> None:
        self._n_running = step.n_running
        self._items += [
            Admitted(sequence.id) for sequence in step.admitted if sequence.id in self._requests
        ]
        for out in step.tokens:
            # A request that ended here may still get a token from a step that was under way.
            request = self._requests.get(out.sequence.id)
            if request is not None:
                self._take(request, out)
        for sequence, error in step.failed:
            if self._requests.pop(sequence.id, None):
                self._fail(sequence.id, error)

    def _take(self, request: _Request, out: TokenOut) -> None:
        text = ""
        if out.token is not None:
            request.n_tokens += 1
            text = request.detokenizer.feed(self._vocab.token_bytes(out.token))
        reason = out.reason
        if request.detokenizer.is_stopped:
            if reason is None:
                self._engine_inbox.put(Remove(request.submit.id))
            reason = "stop"
        elif reason is not None:
            text += request.detokenizer.finish()
        if text:
            self._items.append(Progressed(request.submit.id, TextDelta(text)))
        if reason is not None:
            del self._requests[request.submit.id]
            self._finish(request, reason)

    # ---- a request ends

    def _finish(self, request: _Request, reason: DoneReason) -> None:
        sequence = request.sequence
        n_prompt = sequence.n_prompt
        usage = Usage(
            prompt_count=n_prompt,
            completion_count=request.n_tokens,
            prompt_ns=sequence.first_token_ns - sequence.admitted_ns,
            completion_ns=sequence.last_token_ns - sequence.first_token_ns,
        )
        context: tuple[int, ...] = ()
        if request.submit.return_context:
            context = tuple(sequence.tokens[: n_prompt + request.n_tokens])
        self._items.append(Progressed(request.submit.id, Done(reason, usage, context)))

    def _fail(self, request_id: int, error: LocalrunError) -> None:
        kind, fields = to_fields(error)
        self._items.append(Failed(request_id, kind, fields))

    def _cancel(self, request_id: int) -> None:
        if self._requests.pop(request_id, None):
            self._engine_inbox.put(Remove(request_id))
