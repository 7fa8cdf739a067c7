"""The prompt thread: a request's text → the token ids that the engine starts from.

Templates, fitting and tokenizing take from microseconds to seconds, and a template may never come
back. They run here, beside the thread that sends the running streams' text, which therefore never
waits for somebody else's prompt. What comes of a request goes to the text thread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from localrun.core import SCHEMA_PATH, Count, CountPrompt, EmbedTexts
from localrun.errors import BadRequest, LocalrunError
from localrun.ipc.messages import Answered, Ask, Cancel, Rendered, Rendering, Submit
from localrun.runner.engine.embedder import EmbedJob
from localrun.runner.model import Vocab
from localrun.runner.prompt.composer import Composer, Prepared
from localrun.runner.prompt.questions import Questions
from localrun.runner.prompt.rendering import Counting

if TYPE_CHECKING:
    from localrun.runner.structured.compiler import Compiler


@dataclass(frozen=True, slots=True)
class Refused:
    """The request ends before it reached the engine."""

    id: int
    error: LocalrunError


@dataclass(frozen=True, slots=True)
class _Count:
    """A prompt whose tokens are being counted."""

    id: int
    counting: Counting


@dataclass(frozen=True, slots=True)
class Settled:
    """A cancelled request will not come out of this thread any more."""

    id: int


FromPrompt = Rendering | Rendered | Prepared | EmbedJob | Answered | Refused | Settled


class PromptThread:
    """Prepares requests in order of arrival; `run` is the thread."""

    def __init__(
        self,
        vocab: Vocab,
        inbox: "SimpleQueue[Submit | Ask | Cancel]",
        tell: Callable[[FromPrompt], None],
        window: Callable[[int], int] = lambda n_ctx: n_ctx,
        questions: Questions | None = None,
    ) -> None:
        """`window` bounds what a request asks for; it may raise errors of `localrun.errors`."""
        self._vocab = vocab
        self._questions = questions or Questions(vocab)
        self._inbox = inbox
        self._tell = tell
        self._window = window
        self._pending: deque[Submit | Ask | _Count] = deque()
        self._composer = Composer(vocab, lambda number: tell(Rendering(number)))

    def run(self) -> None:
        """Prepares requests for ever."""
        while True:
            self.turn(block=True)

    def turn(self, *, block: bool = False) -> None:
        """Looks for what is new, then prepares one request; `block` waits if there is none.

        Of a prompt that is only counted, a part: then it is the others' turn.
        """
        self._drain(block=block and not self._pending)
        if self._pending:
            wanted = self._pending.popleft()
            try:
                if isinstance(wanted, Ask) and isinstance(wanted.question, CountPrompt):
                    counting = self._composer.count(wanted.id, wanted.question)
                    self._count(_Count(wanted.id, counting))
                elif isinstance(wanted, Ask):
                    self._tell(self._asked(wanted))
                elif isinstance(wanted, _Count):
                    self._count(wanted)
                else:
                    n_ctx = self._window(wanted.n_ctx)
                    submit = msgspec.structs.replace(wanted, n_ctx=n_ctx)
                    self._tell(self._matched(self._composer.compose(submit)))
            except LocalrunError as error:
                self._tell(Refused(wanted.id, error))

    def _matched(self, prepared: Prepared) -> Prepared:
        if prepared.constraint is None:
            return prepared
        try:
            return replace(prepared, matcher=self._compiler.matcher(prepared.constraint))
        except BadRequest as error:
            path = "tools" if prepared.submit.schema is None else SCHEMA_PATH
            raise BadRequest(path, error.problem) from None

    @cached_property
    def _compiler(self) -> "Compiler":
        # Most runners never see a constraint: neither the engine for them nor its vocabulary is
        # there before the first one.
        from localrun.runner.structured.compiler import Compiler

        return Compiler(self._vocab)

    def _asked(self, wanted: Ask) -> Answered | EmbedJob:
        match wanted.question:
            case EmbedTexts() as question:
                return self._questions.job(wanted.id, question)
            case question:
                assert not isinstance(question, CountPrompt)
                return Answered(wanted.id, self._questions.answer(question))

    def _count(self, wanted: _Count) -> None:
        """Counts one part more."""
        try:
            next(wanted.counting)
        except StopIteration as end:
            self._tell(Answered(wanted.id, Count(end.value)))
        else:
            self._pending.append(wanted)
            self._tell(Rendered(wanted.id))

    def _drain(self, *, block: bool) -> None:
        try:
            while True:
                message = self._inbox.get(block=block)
                block = False
                if isinstance(message, Cancel):
                    self._forget(message.id)
                else:
                    self._pending.append(message)
        except Empty:
            pass

    def _forget(self, request_id: int) -> None:
        self._pending = deque(one for one in self._pending if one.id != request_id)
        self._tell(Settled(request_id))
