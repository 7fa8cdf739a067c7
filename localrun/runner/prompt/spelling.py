"""Keeps text that only looks like a control token from becoming one.

A prompt is a template's text with the messages' content in it, and only the former may hold
control tokens: somebody who writes `<|im_end|>` must not end his own turn. Templates look into
content (they trim, search and cut it), so they get it with a mark inside each such spelling, and
what they have made of it is tokenized in pieces: around a mark without control tokens.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from localrun.core import Message, Tool, ToolCall

# A noncharacter, which no text may hold. What holds it all the same loses it.
MARK = "\ufdd0"

# So many characters decide whether to look closer: some vocabularies have thousands of control
# tokens, and most of them begin alike.
_N_PREFIX = 3


class Piece(NamedTuple):
    """Part of a prompt; `has_control`: what is spelled like a control token is one."""

    text: str
    has_control: bool


class Spellings:
    """How the control tokens of one vocabulary are spelled. Immutable."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(filter(None, texts))
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[:_N_PREFIX], set()).add(len(text))
        # Longest first. Some thousand tokens that begin alike have a handful of lengths.
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        prefixes = sorted(self._lengths, key=len, reverse=True)
        self._prefix = re.compile("|".join(map(re.escape, prefixes)) if prefixes else "(?!)")

    def marked(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with a mark behind the first character of every control token's spelling."""
        return [self._marked_message(message) for message in messages]

    def marked_tools(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """As `marked`, for the definitions of tools."""
        mark = self.mark
        return tuple(
            Tool(mark(tool.name), mark(tool.description), self._marked_value(tool.parameters))
            for tool in tools
        )

    def mark(self, text: str) -> str:
        """As `marked`, for one text."""
        if MARK in text:
            text = text.replace(MARK, "")
        starts = [start for start, _ in self._occurrences(text, overlapping=True)]
        if not starts:
            return text
        begins, ends = [0, *(start + 1 for start in starts)], [start + 1 for start in starts]
        return MARK.join(text[a:b] for a, b in zip(begins, [*ends, len(text)], strict=True))

    def pieces(self, rendered: str) -> list[Piece]:
        """What to tokenize how; the texts together are `rendered` without marks."""
        if MARK not in rendered:
            return [Piece(rendered, has_control=True)]
        pieces: list[Piece] = []
        begin = at = 0  # of what will be a piece with control tokens; of the text behind the last
        for start, spelling in (*self._occurrences(rendered), (len(rendered), "")):
            if MARK in rendered[at:start]:
                pieces.append(Piece(rendered[begin:at], has_control=True))
                plain = rendered[at:start].replace(MARK, "")
                pieces.append(Piece(plain, has_control=False))
                begin = start
            at = start + len(spelling)
        pieces.append(Piece(rendered[begin:], has_control=True))
        return [piece for piece in pieces if piece.text]

    def _occurrences(self, text: str, *, overlapping: bool = False) -> Iterator[tuple[int, str]]:
        """(place, spelling) of each, from the left; the longest where several begin."""
        match = self._prefix.search(text)
        while match:
            start = match.start()
            # A longer prefix may hide a shorter spelling that begins at the same place.
            found = self._longest_at(text, start)
            if found:
                yield start, found
            step = len(found) if found and not overlapping else 1
            match = self._prefix.search(text, start + step)

    def _longest_at(self, text: str, start: int) -> str:
        for n in range(_N_PREFIX, 0, -1):
            for length in self._lengths.get(text[start : start + n], ()):
                found = text[start : start + length]
                if found in self._texts:
                    return found
        return ""

    def _marked_message(self, message: Message) -> Message:
        mark = self.mark
        return Message(
            role=mark(message.role),
            content=mark(message.content),
            thinking=mark(message.thinking),
            tool_calls=tuple(
                ToolCall(mark(call.name), self._marked_value(call.arguments), mark(call.id))
                for call in message.tool_calls
            ),
            tool_name=mark(message.tool_name),
            tool_call_id=mark(message.tool_call_id),
        )

    def _marked_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, dict):
            return {self.mark(key): self._marked_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked_value(item) for item in value]
        return value
