"""Which fields ask for structure, and what of it is refused before a model is needed."""

import json
from typing import Any

import pytest

from localrun.errors import BadRequest
from localrun.wire.native import decode_chat, decode_generate
from localrun.wire.openai import decode_chat_completions
from localrun.wire.structure import (
    RESPONSE_SCHEMA,
    schema_of_format,
    schema_of_response_format,
    schema_of_text_format,
)

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "null"}}}
TEXT = json.dumps(SCHEMA)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (None, None),
        ("", None),
        ("json", '{"type":"object"}'),
        (SCHEMA, TEXT),
        (f" {TEXT}", TEXT),
        ({}, "{}"),
    ],
)
def test_a_format_stands_for_a_schema(value: Any, schema: str | None) -> None:
    assert schema_of_format(value) == schema


@pytest.mark.parametrize(
    ("value", "path", "part"),
    [
        ("jsn", "format", '"jsn"'),
        ("JSON", "format", '"JSON"'),
        (5, "format", "5"),
        (True, "format", "true"),
        ([], "format", "[]"),
        ('{"type":', "format", "string"),
        ("[1]", "format", "[1]"),
        ({"type": "objekt"}, "format.type", "objekt"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "format.properties.a.$ref", "#/$defs/x"),
        ({"name": "Bob"}, "format", "`name`"),
    ],
)
def test_a_wrong_format_is_refused_by_what_is_wrong(value: Any, path: str, part: str) -> None:
    with pytest.raises(BadRequest) as caught:
        schema_of_format(value)
    assert caught.value.path == path
    assert part in caught.value.problem


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (None, None),
        ({}, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, '{"type":"object"}'),
        ({"type": "json_object", "schema": SCHEMA}, TEXT),
        ({"type": " JSON_Schema", "json_schema": {"name": "n", "schema": SCHEMA}}, TEXT),
    ],
)
def test_a_response_format_stands_for_a_schema(value: Any, schema: str | None) -> None:
    assert schema_of_response_format(value) == schema


@pytest.mark.parametrize(
    ("value", "path", "part"),
    [
        ("json", "response_format", '"json"'),
        ({"type": "yaml"}, "response_format.type", "yaml"),
        ({"type": 5}, "response_format.type", "5"),
        ({"type": "json_schema"}, "response_format.json_schema", "null"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, RESPONSE_SCHEMA, "missing"),
        ({"type": "json_schema", "json_schema": {"schema": 5}}, RESPONSE_SCHEMA, "5"),
        (
            {"type": "json_schema", "json_schema": {"schema": {"not": {}}}},
            f"{RESPONSE_SCHEMA}.not",
            "not",
        ),
        ({"type": "json_object", "schema": {"type": 1}}, "response_format.schema.type", "1"),
    ],
)
def test_a_wrong_response_format_is_refused_by_what_is_wrong(
    value: Any, path: str, part: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        schema_of_response_format(value)
    assert caught.value.path == path
    assert part in caught.value.problem


@pytest.mark.parametrize(
    ("label", "field"),
    [
        ({"name": None}, "name"),
        ({"name": 1}, "name"),
        ({"name": "n", "description": 1}, "description"),
        ({"name": "n", "strict": "yes"}, "strict"),
    ],
)
def test_what_stands_beside_a_schema_has_a_type_too(label: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        schema_of_text_format({"type": "json_schema", "schema": SCHEMA, **label})
    assert caught.value.path == f"text.format.{field}"
    chat = {"type": "json_schema", "json_schema": {"schema": SCHEMA, **label}}
    if label[field] is None:  # in a chat it means absent, and nothing repeats it
        assert schema_of_response_format(chat) == TEXT
        return
    with pytest.raises(BadRequest) as caught:
        schema_of_response_format(chat)
    assert caught.value.path == f"response_format.json_schema.{field}"


def test_keys_keep_the_order_in_which_they_were_sent() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"format":%b}' % TEXT.encode()
    assert decode_chat(body).call.schema == TEXT
    assert decode_generate(body).call.schema == TEXT


def test_openai_names_the_place_in_its_own_words() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": wanted}
    call = decode_chat_completions(json.dumps(body).encode()).call
    assert (call.schema, call.places["format"]) == (TEXT, RESPONSE_SCHEMA)


def test_a_schema_nested_beyond_measure_is_a_bad_request() -> None:
    body = b'{"model":"m","format":%b{}%b}' % (b'{"items":' * 5000, b"}" * 5000)
    with pytest.raises(BadRequest, match="deep"):
        decode_generate(body)
