"""Schemas that would cost time, memory or the process: refused soon, or of no consequence."""

import json
import resource
import time
from typing import Any

import pytest
from byte_vocabulary import COMPILER, allowed, matcher
from hostile_schemas import HARMLESS, REFUSED

from localrun.errors import BadRequest
from localrun.runner.structured.constraint import Constraint, json_grammar
from localrun.schemas.check import check_schema

# What they may take; a hang guard for a slow machine, where they take a tenth of it.
LIMIT_S = 10.0
LIMIT_BYTES = 300 << 20


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
    assert not one.problem


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
