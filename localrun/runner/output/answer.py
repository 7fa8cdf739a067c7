"""Token bytes of one answer → events: the whole way that text takes in a runner. No I/O.

bytes → whole characters, stop strings (`detokenizer`) → thinking and calls (a `Reader`) → events,
with the log-probabilities of the tokens that they consist of (`alignment`). Stop strings are
looked for in all that the model says, thinking and calls included, as in Ollama.
"""

from collections.abc import Iterable, Iterator

from localrun.core import Delta, TextDelta, ThinkingDelta, TokenLogprob, ToolCallDelta
from localrun.runner.output.alignment import Alignment
from localrun.runner.output.detokenizer import Detokenizer
from localrun.runner.output.parts import Called, Part, Reader, Said, Thought
from localrun.runner.output.style import Style, reader_of


class AnswerReader:
    """Reads one answer. With `has_logprobs` each token comes with its log-probability."""

    def __init__(self, style: Style, stop: tuple[str, ...], *, has_logprobs: bool) -> None:
        self._style = None if style.is_plain else style
        # Most answers are text and nothing else.
        self._reader: Reader | None = None if style.is_plain else reader_of(style)
        # How a call is written nobody sees, so where the answer has to be calls a stop string would
        # end what was not meant, and leave nothing of it.
        self._detokenizer = Detokenizer(() if style.is_forced else stop)
        self._alignment = Alignment() if has_logprobs else None
        self._n_calls = 0

    @property
    def is_stopped(self) -> bool:
        """True when a stop string has ended the answer."""
        return self._detokenizer.is_stopped

    @property
    def stop_text(self) -> str:
        """The stop string that has ended the answer, if one has."""
        return self._detokenizer.stop_text

    def shown(self, control_text: bytes) -> bytes:
        """What a control token adds to the text: nothing, but for markup that has to be read."""
        if self._style is None:
            return b""
        return control_text if self._style.shows(control_text.decode("utf-8", "replace")) else b""

    def feed(
        self,
        data: bytes,
        logprob: TokenLogprob | None = None,
        *,
        is_last: bool = False,
        is_cut: bool = False,
    ) -> Iterable[Delta]:
        """The events that a token's bytes make certain; all the rest with the last one.

        A stop string makes it the last. `is_cut` when the model would have said more.
        """
        if self._alignment is not None and logprob is not None:
            self._alignment.add(logprob)
        text = self._detokenizer.feed(data)
        is_last = is_last or self._detokenizer.is_stopped
        if is_last:
            text += self._detokenizer.finish()
        if self._reader is not None:
            is_cut = is_cut or self._detokenizer.is_stopped
            return self._events(self._parts(self._reader, text, is_last, is_cut), is_last)
        logprobs = self._logprobs(len(text), is_last=is_last)
        return (TextDelta(text, logprobs=logprobs),) if text or logprobs else ()

    @staticmethod
    def _parts(reader: Reader, text: str, is_last: bool, is_cut: bool) -> Iterator[Part]:
        yield from reader.feed(text)
        if is_last:
            yield from reader.finish(is_cut=is_cut)

    def _events(self, parts: Iterable[Part], is_last: bool) -> Iterator[Delta]:
        for part in parts:
            logprobs = self._logprobs(part.n_chars)
            match part:
                case Thought(text=text) if text:
                    yield ThinkingDelta(text, logprobs=logprobs)
                    continue
                case Said(text=text) if text:
                    yield TextDelta(text, logprobs=logprobs)
                    continue
                case Called(call=call):
                    yield ToolCallDelta(call, self._n_calls)
                    self._n_calls += 1
            if logprobs:
                yield TextDelta("", logprobs=logprobs)
        if last := self._logprobs(0, is_last=is_last):
            yield TextDelta("", logprobs=last)

    def _logprobs(self, n_chars: int, *, is_last: bool = False) -> tuple[TokenLogprob, ...]:
        """Of the tokens that `n_chars` more characters complete; what a stop cuts comes last."""
        if self._alignment is None:
            return ()
        sent = self._alignment.sent(n_chars)
        return sent + self._alignment.finish() if is_last else sent
