"""Values that would go on for ever in a small model's hands: they end, and still are valid."""

import json
import random
import re
from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from byte_vocabulary import END, allowed, matcher, matches, takes
from pydantic import AnyUrl, TypeAdapter

from localrun.runner.structured.digits import MAX_DIGITS
from localrun.schemas.formats import HELD, WIDER

_CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def _zoned(text: str) -> None:
    assert datetime.fromisoformat(text).tzinfo is not None


# What reads them, besides jsonschema: each raises for what it does not take.
_READERS: dict[str, Callable[[str], Any]] = {
    "time": TypeAdapter(time).validate_python,
    "date-time": _zoned,
    "duration": TypeAdapter(timedelta).validate_python,
    "uri": TypeAdapter(AnyUrl).validate_python,
    "url": TypeAdapter(AnyUrl).validate_python,
    "uri-reference": urlsplit,
}


def _endless(form: str, seed: int) -> str:
    """An answer that goes on as long as it may."""
    chance = random.Random(seed)
    one = matcher(json.dumps({"type": "string", "format": form}))
    data = bytearray()
    while not one.is_finished:
        assert len(data) < 3000
        choice = [token for token in allowed(one) if token not in (END, ord('"'), ord("\\"))]
        token = chance.choice(choice or allowed(one))
        assert one.take(token)
        data.append(token)
        if data[-1] == ord('"') and len(data) > 1:
            break
    return json.loads(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("form", sorted(HELD.keys() - {"json-pointer", "relative-json-pointer"}))
def test_formats_end_and_are_valid(form: str) -> None:
    for seed in range(6):
        text = _endless(form, seed)
        assert len(text) <= 2000
        _CHECKER.check(text, form)
        _READERS.get(form, str)(text)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "0476-09-04"],
         ["2023-02-29", "1900-02-29", "0000-01-01", "2023-04-31"]),
        ("time", ["23:59:59Z", "01:02:03.123456789+05:30"], ["24:00:00Z", "1:2:3Z", "01:02:03",
                                                             "01:02:03.1234567890Z"]),
        ("date-time", ["2024-02-29T01:02:03.5Z"], ["2024-02-29", "2023-02-29T01:02:03Z"]),
        ("duration", ["P1DT12H", "PT86400S", "P3W", "P1Y2M"], ["P", "PT", "P1DT", "1D", "P1W2D"]),
        ("email", ["ann@example.org", "a.b-c+d@mail.example.co.uk"],
         ["ann", "a..b@c.de", ".a@b.de", "a@b", "a@-b.de"]),
        ("hostname", ["localhost", "a-b.example.org"], ["-a", "a..b", "a_b"]),
        ("uri", ["https://example.org/a?b=c#d", "http://127.0.0.1:8080/", "urn:isbn:123",
                 "mailto:ann@example.org"], ["/a", "example.org", "https://", "https://a b/"]),
        ("uri-reference", ["/a/b?c", "https://example.org", "a.html#b"], ["", "a b"]),
        ("json-pointer", ["", "/a/0", "/a~1b"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["", "/a", "01"]),
    ],
)  # fmt: skip
def test_what_a_format_has_room_for(form: str, good: list[str], bad: list[str]) -> None:
    schema = json.dumps({"type": "string", "format": form})
    assert [text for text in good if not matches(schema, json.dumps(text))] == []
    assert [text for text in bad if matches(schema, json.dumps(text))] == []


def test_a_value_that_is_told_needs_no_format() -> None:
    told = "HTTPS://example.org/caf\u00e9"
    for schema in ({"const": told}, {"enum": ["x", told]}):
        assert matches(json.dumps({"type": "string", "format": "uri", **schema}), f'"{told}"')


@pytest.mark.parametrize("form", WIDER)
def test_patterns_that_need_not_hold_do_so_by_themselves(form: str) -> None:
    for pattern in WIDER[form]:
        for seed in range(40):
            assert re.search(pattern, _endless(form, seed))


# ---- numbers


@pytest.mark.parametrize(
    "schema",
    [{"type": "integer"}, {"type": "number"}, {"type": "integer", "minimum": 0}, {},
     {"type": "number", "minimum": 0}, {"type": "number", "exclusiveMaximum": 5}],
)  # fmt: skip
def test_numbers_end(schema: dict[str, Any]) -> None:
    one = matcher(json.dumps({"type": "array", "items": schema}))
    assert takes(one, "[1")
    while one.take(ord("1")):
        pass
    assert not set(allowed(one)) & set(b"0123456789")
    if one.take(ord(".")):
        n = 0
        while one.take(ord("3")):
            n += 1
        assert n == MAX_DIGITS
        assert takes(one, "]") or takes(one, ", 5]")
    else:
        assert takes(one, "]")


def test_exponents_end() -> None:
    one = matcher('{"type":"array","items":{"type":"number"}}')
    assert takes(one, "[6.02e" + "2" * MAX_DIGITS)
    assert not one.take(ord("2"))
    assert takes(one, "]")


def test_a_number_at_the_top_ends_too() -> None:
    one = matcher('{"type":"integer"}')
    assert takes(one, "1" * MAX_DIGITS)
    assert allowed(one) == [END]


def test_digits_of_strings_are_the_schemas_business() -> None:
    digits = "0" * 100
    assert matches('{"type":"string"}', f'"{digits}"')
    assert matches('{"type":"string"}', f'"\\"{digits}"')
    assert matches('{"type":"array"}', f'["\\\\", "{digits}", 5]')


def test_digits_go_on_where_nothing_else_may_come() -> None:
    digits = "0000000000000000008673617379884035"
    assert len(digits) > MAX_DIGITS
    assert matches(json.dumps({"const": float(f"0.{digits}")}), f"0.{digits}")
