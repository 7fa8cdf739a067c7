"""The formats of calls, two calls to say in them, and what readers make of an answer."""

from collections.abc import Iterator

from answers import Outcome, call_reader, cuts, outcome, read

from localrun.runner.output.formats import FORMATS, GENERIC, CallFormat

OSLO = ("get_weather", {"city": "Oslo"})
LIMA = ("get_weather", {"city": "Lima"})
JSON_OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
JSON_LIMA = '{"name": "get_weather", "arguments": {"city": "Lima"}}'

ROWS = {row.name: row for row in FORMATS} | {"json": GENERIC}


def results(
    form: CallFormat, answer: str, *, is_cut: bool = False
) -> Iterator[tuple[Outcome, int, list[str]]]:
    for pieces in cuts(answer):
        found, n_chars = outcome(read(call_reader(form), pieces, is_cut=is_cut))
        yield found, n_chars, pieces
