"""Schemas: those that are supported hold every answer, the others are refused with their place."""

import json
from typing import Any

import jsonschema
import pytest
from byte_vocabulary import drawn, matcher, matches, takes
from schema_features import GENERATED, REFUSED, SUPPORTED, of

from localrun.errors import BadRequest
from localrun.runner.structured.constraint import json_grammar

ALL = SUPPORTED | GENERATED
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.mark.parametrize("name", ALL)
def test_every_answer_matches_its_schema(name: str) -> None:
    schema = ALL[name]
    text = json.dumps(schema)
    answers = [answer for seed in range(40) if (answer := drawn(matcher(text), seed)) is not None]
    assert len(answers) > 5
    for answer in answers:
        jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(json.loads(answer))


@pytest.mark.parametrize(("schema", "path", "part"), REFUSED)
def test_what_cannot_be_expressed_is_refused_with_its_place(
    schema: Any, path: str, part: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        json_grammar(json.dumps(schema))
    assert caught.value.path == path
    assert part in caught.value.problem
    assert "(And" not in caught.value.problem


def test_a_long_path_ends_behind_a_name() -> None:
    schema: Any = {"type": "integer"}
    for _ in range(60):
        schema = of(schema) | {"properties": {"a_name": schema}, "required": []}
    with pytest.raises(BadRequest, match="levels") as caught:
        json_grammar(json.dumps(schema))
    *names, last = caught.value.path.split(".")
    assert {*names} == {"properties", "a_name"}
    assert last in ("properties…", "a_name…")
    assert len(caught.value.path) <= 81


# ---- what is accepted, text by text


def test_keys_come_in_the_order_of_the_schema() -> None:
    properties = {"z": {"const": 1}, "a": {"const": 2}, "m": {"const": 3}}
    schema = json.dumps({"properties": properties, "required": ["a", "m", "z"], "type": "object"})
    assert matches(schema, '{"z":1,"a":2,"m":3}')
    assert not matches(schema, '{"a":2,"m":3,"z":1}')


@pytest.mark.parametrize("text", ["{}", '{"e":1}', '{"s":1}', '{"e":1,"s":1}', '{"e": 1, "s": 1}'])
def test_optional_keys_may_be_left_out_and_block_no_later_ones(text: str) -> None:
    one = {"const": 1}
    assert matches(json.dumps({"type": "object", "properties": {"e": one, "s": one}}), text)


def test_the_order_of_keys_holds_in_definitions_too() -> None:
    inner = {"type": "object", "properties": {"z": {"const": 1}, "a": {"const": 2}}}
    schema = json.dumps(of({"$ref": "#/$defs/i"}) | {"$defs": {"i": inner}})
    assert matches(schema, '{"a":{"z":1,"a":2}}')
    assert not matches(schema, '{"a":{"a":2,"z":1}}')


@pytest.mark.parametrize(
    "text", ['{ "a":1}', '{"a":  1}', '{"a":\n1}', '\n{"a":1}', ' {"a":1}', '{"a":1 }', '{"a" :1}']
)
def test_white_space_is_one_blank_behind_a_colon_or_a_comma_and_nowhere_else(text: str) -> None:
    schema = json.dumps(of({"type": "integer"}))
    assert matches(schema, '{"a": 1}')
    assert not matches(schema, text)


def test_nothing_may_follow_the_outermost_bracket() -> None:
    one = matcher('{"type":"object"}')
    assert takes(one, '{"a": {"b": []}')
    assert not one.is_finished
    assert takes(one, "}")
    assert one.is_finished


def test_an_object_has_the_keys_that_it_names_and_no_others_unless_it_says_so() -> None:
    closed, opened = of({"const": 1}), of({"const": 1}, additionalProperties=True)
    assert not matches(json.dumps(closed), '{"a":1,"b":2}')
    assert matches(json.dumps(opened), '{"a":1,"b":2}')


def test_parts_that_are_joined_leave_room_for_each_others_keys() -> None:
    assert matches(json.dumps(SUPPORTED["allOf"]), '{"a":1,"b":true}')
    assert matches(json.dumps(SUPPORTED["keywords beside anyOf"]), '{"k":"x","s":true}')


def test_options_of_the_engine_cannot_come_with_a_schema() -> None:
    schema = of({"type": "array", "uniqueItems": True}) | {"x-guidance": {"lenient": True}}
    with pytest.raises(BadRequest, match="uniqueItems"):
        json_grammar(json.dumps(schema))
    spaced = of({"const": 1}) | {"x-guidance": {"whitespace_flexible": True}}
    assert not matches(json.dumps(spaced), '{ "a" : 1 }')


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '"😀"', '"\\n\\u00e9"'])
def test_strings_may_hold_any_character(text: str) -> None:
    assert matches('{"type":"string"}', text)


@pytest.mark.parametrize("text", ['"\\ud83d"', '"\n"', "'x'", '"\\x"'])
def test_strings_are_those_of_json(text: str) -> None:
    assert not matches('{"type":"string"}', text)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "bound", [2**53 + 1, 2**53 + 2, 2**53 + 3, 2**60 + 1, 2**60, 2**63, 10**30]
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_large_bounds_never_move_outwards(kind: str, bound: int, sign: int) -> None:
    name = "maximum" if sign > 0 else "minimum"
    last = min(bound, 2**63 - 1024 if kind == "integer" else 2**53)
    schema = json.dumps({"type": kind, name: sign * bound})
    assert not matches(schema, str(sign * (bound + 1)))
    assert matches(schema, str(sign * (last - 1024)))
    exclusive = json.dumps({"type": kind, f"exclusive{name.capitalize()}": sign * bound})
    assert not matches(exclusive, str(sign * bound))
    assert matches(exclusive, str(sign * (last - 2048)))
