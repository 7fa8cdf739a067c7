"""Harmony, the markup of gpt-oss: an answer is a row of messages, each with a head. No I/O.

A head names a channel and, of a call, who is called: `<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{…}<|call|>`. The channel `analysis` is thinking, the others are text.
Source: OpenAI's description of the format.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from localrun.core import ToolCall
from localrun.runner.output.calls import CallReader, new_call_id
from localrun.runner.output.formats import GENERIC
from localrun.runner.output.lenient import NotReadable, read_value
from localrun.runner.output.offered import Found, Offered
from localrun.runner.output.parts import Called, Part, Plain, Reader, Said, Stepping, Thought
from localrun.runner.output.scan import Collected, agree, first, n_begun

_MESSAGE = "<|message|>"
_CHANNEL = "<|channel|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", _CHANNEL)
MARKERS = (*_ENDS, _MESSAGE, "<|constrain|>")

_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
# Between the texts of two messages, which have nothing between them but heads.
_GAP = "\n\n"
_IS_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis")
# No head is longer: beyond, the model does not write in this format.
_MAX_HEAD_CHARS = 256
_HEAD_STARTS = (*MARKERS, "to=", "assistant")


class HarmonyReader(Stepping):
    """Reads messages; see `Reader`. Their text may call in plain JSON, too."""

    def __init__(
        self,
        offered: Offered,
        new_id: Callable[[], str] = new_call_id,
        *,
        is_forced: bool = False,
    ) -> None:
        """Calls get their ids from `new_id`; `is_forced` when the answer has to be calls."""
        super().__init__(self._head)
        self._is_forced = is_forced
        self._offered = offered
        self._new_id = new_id
        self._head_text = ""
        self._name = ""
        self._arguments = Collected()
        self._text = self._text_reader()
        self._has_said = False
        self._gap = ""

    def _text_reader(self) -> Reader:
        if not self._offered.names:
            return Plain()
        return CallReader(GENERIC, self._offered, self._new_id, is_forced=self._is_forced)

    def finish(self, *, is_cut: bool) -> Iterator[Part]:
        """See `Reader.finish`."""
        held, self._held = self._held, ""
        if self._step == self._call:
            # The marker behind a call also ends the answer, and is not part of it then.
            self._arguments.add(held, ())
            yield from self._apart(self._called(self._arguments.text(), is_cut=is_cut))
        elif self._step == self._thought:
            yield Thought(held, len(held))
        elif self._step == self._said or not _has_head(held):
            yield from self._apart(self._text.feed(held))
        else:
            yield Said("", len(held))
        yield from self._apart(self._text.finish(is_cut=is_cut))

    # ---- steps: each takes what it is sure of from what is held

    def _head(self) -> Iterator[Part]:
        place = self._held.find(_MESSAGE)
        if place >= 0 and _has_head(self._held):
            head = self._take(place + len(_MESSAGE))
            self._gap = _GAP if self._has_said else ""
            recipient = _RECIPIENT.search(head)
            self._step = self._thought if _IS_ANALYSIS.search(head) else self._said
            if recipient and recipient[1] in self._offered.names:
                self._name, self._head_text = recipient[1], head
                self._arguments = Collected()
                self._step = self._call
            else:
                yield Said("", len(head))
        elif not _has_head(self._held) or len(self._held) > _MAX_HEAD_CHARS:
            self._step = self._said

    def _thought(self) -> Iterator[Part]:
        for text in self._to_end():
            yield Thought(text, len(text))

    def _said(self) -> Iterator[Part]:
        for text in self._to_end():
            yield from self._apart(self._text.feed(text))
        if self._step == self._head:
            # The order of what is handed on is that of the answer.
            yield from self._apart(self._text.finish(is_cut=False))
            self._text = self._text_reader()

    def _apart(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts, the first text of a message apart from that of the messages before."""
        for part in parts:
            if isinstance(part, Said) and part.text:
                self._has_said = True
                part = Said(self._gap + part.text, part.n_chars)
                self._gap = ""
            yield part

    def _to_end(self) -> Iterator[str]:
        """What of the message is certain; goes on to the next head at its end."""
        end = first(self._held, _ENDS)
        if end is not None:
            self._step = self._head
        n_sure = end[0] if end else len(self._held) - n_begun(self._held, _ENDS)
        if n_sure:
            yield self._take(n_sure)

    def _call(self) -> Iterator[Part]:
        held, self._held = self._held, ""
        end = self._arguments.add(held, _ENDS)
        if end is None:
            return
        place, _ = end
        whole = self._arguments.text()
        self._held = whole[place:]
        self._step = self._head
        yield from self._apart(self._called(whole[:place], is_cut=False))

    def _called(self, body: str, *, is_cut: bool) -> Iterator[Part]:
        found = self._read(body, is_whole=not is_cut)
        n_chars = len(self._head_text) + len(body)
        if found is None:
            yield Said("" if is_cut and self._is_forced else body, n_chars)
        else:
            yield Called(ToolCall(found.name, found.arguments, self._new_id()), n_chars)

    def _read(self, body: str, *, is_whole: bool) -> Found | None:
        body = body.strip()
        if not body:
            return self._offered.call(self._name, {})
        try:
            value, end = read_value(body, is_whole=is_whole)
        except NotReadable:
            return None
        return None if body[end:].strip("]} \n") else self._offered.call(self._name, value)

    def _take(self, n_chars: int) -> str:
        text, self._held = self._held[:n_chars], self._held[n_chars:]
        return text


def _has_head(text: str) -> bool:
    """Whether text at the place of a head looks like one."""
    text = text.lstrip()
    return any(agree(text, start) for start in _HEAD_STARTS)
