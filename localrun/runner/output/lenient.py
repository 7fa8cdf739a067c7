"""JSON as models write it, which is nearly JSON. Pure.

What is JSON is read by the standard library. Else a reader of our own forgives what can mean one
thing only: raw line breaks in texts, single quotes, trailing commas, names of Python's constants,
keys without quotes, and brackets that are missing at the very end.
"""

import json
import math
import re
from typing import Any

# Calls are not nested deeper than people can read; beyond, a text is no call.
_MAX_DEPTH = 64
# About what Python reads and writes by itself, and what a request may have.
_MAX_INTEGER_BITS = 14_000

_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_$][\w$.-]*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
# Gemma's models have texts between these instead of quotes, and take nothing in them for special.
_VERBATIM = ("<escape>", '<|"|>')


class NotReadable(ValueError):
    """The text is no value, or could be several."""


def read_value(text: str, start: int = 0, *, is_whole: bool = False) -> tuple[Any, int]:
    """(value that begins at `start`, where it ends).

    With `is_whole` the text is all that there will be, and closing brackets may be missing.
    Raises NotReadable.
    """
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        value, end = _Lenient(text, is_whole=is_whole).read(start)
    return sound(value), end


def read_objects(text: str, *, is_whole: bool = False) -> list[Any]:
    """All values of a text that holds nothing else, but for commas and brackets too many.

    Raises NotReadable.
    """
    values = []
    at = _skip(text, 0)
    while at < len(text):
        if text[at] not in "{[":
            raise NotReadable(text[at : at + 20])
        value, end = read_value(text, at, is_whole=is_whole)
        values.append(value)
        at = _skip(text, end)
    return values


def _skip(text: str, at: int) -> int:
    while at < len(text) and (text[at].isspace() or (at and text[at] in ",;]}")):
        at += 1
    return at


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError as error:  # too many of them
        raise NotReadable(str(error)) from None


_STRICT = json.JSONDecoder(strict=False, parse_int=_integer)


def sound(value: Any, depth: int = 0) -> Any:
    """The value without halves of characters, which JSON can spell and no encoder takes.

    Raises NotReadable for one that is nested too deeply, and for numbers that are too large, which
    would become others or null.
    """
    if depth > _MAX_DEPTH:
        raise NotReadable("it is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise NotReadable("a number is too large")
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        raise NotReadable("a number is too large")
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {sound(key): sound(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [sound(item, depth + 1) for item in value]
    return value


class _Lenient:
    def __init__(self, text: str, *, is_whole: bool) -> None:
        self._text = text
        self._is_whole = is_whole

    def read(self, start: int) -> tuple[Any, int]:
        return self._value(start, 0)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        at = self._blanks(at)
        if depth > _MAX_DEPTH:
            raise NotReadable("it is nested too deeply")
        match self._text[at : at + 1]:
            case "{":
                return self._object(at + 1, depth)
            case "[":
                return self._array(at + 1, depth)
            case _:
                return self._scalar(at)

    def _object(self, at: int, depth: int) -> tuple[Any, int]:
        found: dict[str, Any] = {}
        while True:
            at = self._blanks(at)
            if (end := self._end(at, "}")) is not None:
                return found, end
            key, at = self._key(at)
            at = self._expect(self._blanks(at), ":")
            found[key], at = self._value(at, depth + 1)
            at = self._comma(at, "}")

    def _array(self, at: int, depth: int) -> tuple[Any, int]:
        found: list[Any] = []
        while True:
            at = self._blanks(at)
            if (end := self._end(at, "]")) is not None:
                return found, end
            value, at = self._value(at, depth + 1)
            found.append(value)
            at = self._comma(at, "]")

    def _end(self, at: int, bracket: str) -> int | None:
        """Behind the closing bracket, which may be missing at the end of everything."""
        if self._text[at : at + 1] == bracket:
            return at + 1
        return at if self._is_whole and at >= len(self._text) else None

    def _comma(self, at: int, bracket: str) -> int:
        at = self._blanks(at)
        if self._text[at : at + 1] == ",":
            return at + 1
        if self._end(at, bracket) is None:
            raise NotReadable(self._text[at : at + 20])
        return at

    def _expect(self, at: int, char: str) -> int:
        if self._text[at : at + 1] != char:
            raise NotReadable(self._text[at : at + 20])
        return at + 1

    def _key(self, at: int) -> tuple[str, int]:
        if word := _WORD.match(self._text, at):
            return word.group(), word.end()
        return self._string(at)

    def _scalar(self, at: int) -> tuple[Any, int]:
        if number := _NUMBER.match(self._text, at):
            value, n_read = _STRICT.raw_decode(number.group())
            return value, self._expect_end(number, n_read)
        if (word := _WORD.match(self._text, at)) and word.group() in _WORDS:
            return _WORDS[word.group()], word.end()
        return self._string(at)

    @staticmethod
    def _expect_end(number: re.Match[str], n_read: int) -> int:
        if n_read != len(number.group()):
            raise NotReadable(number.group())
        return number.end()

    def _string(self, at: int) -> tuple[str, int]:
        for quote in _VERBATIM:
            if self._text.startswith(quote, at):
                end = self._text.find(quote, at + len(quote))
                if end < 0:
                    raise NotReadable("a text does not end")
                return self._text[at + len(quote) : end], end + len(quote)
        quote = self._text[at : at + 1]
        if quote not in ('"', "'"):
            raise NotReadable(self._text[at : at + 20])
        return self._quoted(at + 1, quote)

    def _quoted(self, at: int, quote: str) -> tuple[str, int]:
        pieces = []
        stops = re.compile(rf"[{quote}\\]")
        while match := stops.search(self._text, at):
            pieces.append(self._text[at : match.start()])
            if match.group() == quote:
                self._check_end_of_text(match.end())
                return "".join(pieces), match.end()
            char, at = self._escape(match.end())
            pieces.append(char)
        raise NotReadable("a text does not end")

    def _check_end_of_text(self, at: int) -> None:
        """A quote ends a text only where it could: else one inside was not escaped."""
        at = self._blanks(at)
        if at < len(self._text) and self._text[at] not in ",:]}":
            raise NotReadable("a quote inside of a text")

    def _escape(self, at: int) -> tuple[str, int]:
        char = self._text[at : at + 1]
        if char == "u":
            digits = self._text[at + 1 : at + 5]
            if re.fullmatch("[0-9a-fA-F]{4}", digits):
                return chr(int(digits, 16)), at + 5
            raise NotReadable("an escape is not whole")
        return _ESCAPES.get(char, char), at + 1

    def _blanks(self, at: int) -> int:
        match = _BLANKS.match(self._text, at)
        assert match is not None
        return match.end()
