"""Answers in every way to cut them, and what a reader makes of them."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from localrun.core import Tool
from localrun.runner.output.calls import CallReader
from localrun.runner.output.formats import GENERIC, CallFormat
from localrun.runner.output.offered import Offered
from localrun.runner.output.parts import Called, Part, Reader, Said, Thought

TOOLS = (
    Tool(
        "get_weather",
        "Tells the weather.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"]},
                "exact": {"type": "boolean"},
                "places": {"type": "array"},
            },
        },
    ),
    Tool("write", "Writes a file.", {"type": "object", "properties": {"text": {"type": "string"}}}),
    Tool("now"),
)


@dataclass
class Outcome:
    """What an answer came to; equal however the text was cut."""

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def outcome(parts: Iterable[Part]) -> tuple[Outcome, int]:
    """The parts put together, and how many characters they stand for."""
    found, n_chars = Outcome(), 0
    for part in parts:
        n_chars += part.n_chars
        match part:
            case Said(text=text):
                found.text += text
            case Thought(text=text):
                found.thinking += text
            case Called(call=call):
                found.calls.append((call.name, call.arguments))
    return found, n_chars


def cuts(text: str) -> Iterator[list[str]]:
    """Whole, by characters, and in two at every place."""
    yield [text]
    yield list(text)
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]


def read(reader: Reader, pieces: Iterable[str], *, is_cut: bool = False) -> list[Part]:
    """All parts of an answer that arrives in pieces."""
    fed = itertools.chain.from_iterable(reader.feed(piece) for piece in pieces)
    return [*fed, *reader.finish(is_cut=is_cut)]


def call_reader(form: CallFormat = GENERIC, tools: Iterable[Tool] = TOOLS) -> CallReader:
    """A reader of calls without thinking."""
    return CallReader(form, Offered(tools))
