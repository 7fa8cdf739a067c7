"""The prompt thread: a request's text → the token ids that the engine starts from.

Templates, fitting and tokenizing take from microseconds to seconds, and a template may never come
back. They run here, beside the thread that sends the running streams' text, which therefore never
waits for somebody else's prompt. What comes of a request goes to the text thread.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import msgspec

from localrun.core import ChatPrompt, Message, RawPrompt
from localrun.errors import BadRequest, ContextOverflow, LocalrunError, TemplateFailed
from localrun.ipc.messages import Cancel, Rendering, Submit
from localrun.runner.limits import bounded_memory
from localrun.runner.model import Vocab
from localrun.runner.prompt.fit import check_size, fit
from localrun.runner.prompt.templates import JinjaTemplate, render_plain


@dataclass(frozen=True, slots=True)
class Prepared:
    """The request's prompt as token ids, shorter than its window."""

    submit: Submit
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Refused:
    """The request ends before it reached the engine."""

    id: int
    error: LocalrunError


@dataclass(frozen=True, slots=True)
class Settled:
    """A cancelled request will not come out of this thread any more."""

    id: int


FromPrompt = Rendering | Prepared | Refused | Settled


class PromptThread:
    """Prepares requests in order of arrival; `run` is the thread."""

    def __init__(
        self,
        vocab: Vocab,
        inbox: "SimpleQueue[Submit | Cancel]",
        tell: Callable[[FromPrompt], None],
        window: Callable[[int], int] = lambda n_ctx: n_ctx,
    ) -> None:
        """`window` bounds what a request asks for; it may raise errors of `localrun.errors`."""
        self._vocab = vocab
        self._inbox = inbox
        self._tell = tell
        self._window = window
        self._pending: deque[Submit] = deque()
        self._own_template: JinjaTemplate | None = None

    def run(self) -> None:
        """Prepares requests for ever."""
        while True:
            self.turn(block=True)

    def turn(self, *, block: bool = False) -> None:
        """Looks for what is new, then prepares one request; `block` waits if there is none."""
        self._drain(block=block and not self._pending)
        if self._pending:
            submit = self._pending.popleft()
            try:
                submit = msgspec.structs.replace(submit, n_ctx=self._window(submit.n_ctx))
                self._tell(Prepared(submit, self._tokens_of(submit)))
            except LocalrunError as error:
                self._tell(Refused(submit.id, error))

    def _drain(self, *, block: bool) -> None:
        try:
            while True:
                message = self._inbox.get(block=block)
                block = False
                if isinstance(message, Submit):
                    self._pending.append(message)
                else:
                    self._forget(message.id)
        except Empty:
            pass

    def _forget(self, request_id: int) -> None:
        self._pending = deque(s for s in self._pending if s.id != request_id)
        self._tell(Settled(request_id))

    def _tokens_of(self, submit: Submit) -> list[int]:
        """Raises BadRequest, ContextOverflow, TemplateFailed."""
        prompt = submit.prompt
        if isinstance(prompt, RawPrompt):
            check_size(len(prompt.text), submit.n_ctx)
            tokens = self._vocab.tokenize(prompt.text)
        else:
            self._tell(Rendering(submit.id))
            try:
                with bounded_memory():
                    tokens = self._chat_tokens(prompt, submit)
            except MemoryError:
                raise TemplateFailed("it takes too much memory") from None
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

        def tokenize(messages: Sequence[Message]) -> list[int]:
            return [*context, *self._vocab.tokenize(render(messages), is_start=not context)]

        return fit(prompt.messages, submit.n_ctx, tokenize)

    def _renderer(self, go_source: str | None) -> Callable[[Sequence[Message]], str]:
        if go_source is not None:
            # Few models have one, and the engine for them takes 3 MB of every runner.
            from localrun.runner.prompt.go_template import go_template

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
