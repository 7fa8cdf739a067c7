"""Schemas that would cost time, memory or the process: refused soon, or of no consequence."""

import json
import resource
import time
from typing import Any

import pytest
from byte_vocabulary import COMPILER, allowed, matcher
from schema_features import of

from localrun.errors import BadRequest
from localrun.runner.structured.constraint import Constraint, json_grammar
from localrun.schemas.check import check_schema

# What they may take; a hang guard for a slow machine, where they take a tenth of it.
LIMIT_S = 10.0
LIMIT_BYTES = 300 << 20


def nested(n: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(n):
        schema = of(schema)
    return schema


def pattern(text: str, **more: Any) -> Any:
    return of({"type": "string", "pattern": text, **more})


def doubled(keyword: str, n: int) -> Any:
    steps = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)}
    return {"$defs": {**steps, f"d{n}": of({"type": "string"})}, "$ref": "#/$defs/d0"}


def crossed(n: int) -> Any:
    """`n` choices of three that all hold at once."""
    return {
        "allOf": [{"anyOf": [of({}) | {"required": [f"{i}{j}"]} for j in "abc"]} for i in range(n)]
    }


def chain(n: int) -> Any:
    """References of which only the last ends, told in the order that takes longest."""
    steps = {f"d{i}": of({"$ref": f"#/$defs/d{i - 1}"}) for i in range(1, n)}
    return {"$defs": {**steps, "d0": {"type": "null"}}, "$ref": f"#/$defs/d{n - 1}"}


REFUSED: dict[str, Any] = {
    "5000 levels": nested(5000 // 20),  # Python's own JSON cannot write more
    "5000 parentheses": pattern("(" * 400 + "a" + ")" * 400),
    "a long pattern": pattern("(" * 5000 + "a" + ")" * 5000),
    "a repeated anchor": pattern("^+a$"),
    "a counted anchor": pattern("^{2}x$"),
    "a repeated lookbehind": pattern("(?<=x)*"),
    "nothing repeated": pattern("a|*b"),
    "a reference to itself": {"$ref": "#"},
    "a key that holds itself": of({"$ref": "#"}),
    "an enum of a megabyte": {"enum": [f"x{i}" for i in range(110_000)]},
    "a billion items": {"type": "array", "maxItems": 10**9},
    "a billion characters": of({"type": "string", "minLength": 10**9}),
    "a large divisor": of({"multipleOf": 9_999_991}),
    "choices multiplied": crossed(12),
    "a wide object": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    "entangled references": chain(2000),
}
HARMLESS: dict[str, Any] = {
    "40 levels": nested(40),
    "a thousand items of a thousand": {
        "type": "array",
        "maxItems": 1000,
        "items": {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000}},
    },
    "a long string": of({"type": "string", "minLength": 90_000, "maxLength": 100_000}),
    "counted repetitions": pattern("^((a|b|c){1,500}d){1,500}$"),
    "a pattern that doubles its states": pattern("(.*a.{300}){20}"),
    "references doubled": doubled("allOf", 30),
    "choices doubled": doubled("anyOf", 30),
    "400 optional keys": {"type": "object", "properties": {f"p{i}": {} for i in range(400)}},
    "1000 required keys": {
        "type": "object",
        "properties": {f"p{i}": {"type": "null"} for i in range(1000)},
        "required": [f"p{i}" for i in range(1000)],
    },
    "a chain of references": chain(100),
}


@pytest.fixture(autouse=True)
def _bounded() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < LIMIT_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < LIMIT_BYTES


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_would_cost_too_much_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        json_grammar(json.dumps(REFUSED[name]))


@pytest.mark.parametrize("name", HARMLESS)
def test_a_large_schema_costs_little(name: str) -> None:
    one = matcher(json.dumps(HARMLESS[name]))
    for _ in range(300):
        if one.is_finished or not (choice := allowed(one)):
            break
        assert one.take(choice[0])


def test_levels_beyond_what_python_reads_are_counted_without_recursion() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(BadRequest, match="levels"):
        check_schema(schema)
    while schema:  # else its end is a recursion too
        schema = schema.pop("items")


def test_a_grammar_too_large_for_the_engine_is_refused() -> None:
    with pytest.raises(BadRequest, match="too large"):
        COMPILER.matcher(Constraint('start: "' + "x" * (1 << 20) + '"'))


def test_a_mask_beyond_the_limits_is_a_problem_of_that_answer_alone() -> None:
    many = {
        "anyOf": [
            {"type": "object", "properties": {f"{i}_{j}": {} for j in range(300)}} for i in range(3)
        ]
    }
    one, other = matcher(json.dumps(many)), matcher('{"type":"null"}')
    while not one.problem:
        choice = allowed(one)
        assert one.problem or one.take(choice[0]) or one.problem
    assert "complex" in one.problem
    assert allowed(other) == [ord("n")]
