"""Anthropic's dialect: what is refused, and with which path."""

from typing import Any

import pytest
from anthropic_bodies import CALL, HI, IMAGE, LOG, WEATHER, decode, document, text, turns

from localrun.errors import BadRequest, NotRemembered, Unsupported


@pytest.mark.parametrize("place", ["turn", "result"])
@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "application/pdf", "data": "x"},
        {"type": "url", "url": "https://x.example/a.pdf"},
        {"type": "file", "file_id": "f"},
    ],
)
def test_other_documents_are_refused_with_their_place(source, place):
    block, path = document(source, title="t"), "messages[0].content[0]"
    if place == "result":
        block = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
        path += ".content[0]"
    with pytest.raises(Unsupported) as error:
        turns(block)
    assert (error.value.capability, error.value.path) == ("documents other than text", path)


def test_a_block_of_an_unknown_type_is_named():
    with pytest.raises(BadRequest, match='"hologram"') as error:
        turns(text("x"), {"type": "hologram"})
    assert error.value.path == "messages[0].content[1].type"


USED = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain"}


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"thinking": {"type": "wat"}}, "thinking.type", '"wat" is not one of "enabled"'),
        ({"thinking": {}}, "thinking.type", "is required"),
        ({"thinking": {"type": ""}}, "thinking.type", "is required"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
            "thinking.budget_tokens",
            "at least 1",
        ),
        (
            {"thinking": {"type": "enabled", "display": "wat"}},
            "thinking.display",
            '"summarized" or "omitted"',
        ),
        ({"top_k": 1.5}, "top_k", "must be a whole number, not 1.5"),
        ({"top_k": -1}, "top_k", "must be at least 0, not -1"),
        ({"max_tokens": 2**40}, "max_tokens", "must be at most 2147483647, not 1099511627776"),
        ({"model": " "}, "model", "is required"),
        (
            {"messages": [{"role": "assistant", "content": [USED]}]},
            "messages[0].content[0]",
            "results come from a user, not from an assistant",
        ),
        (
            {"messages": [{"role": "system", "content": [CALL]}]},
            "messages[0].content[0]",
            "only an assistant calls, not a system",
        ),
        (
            {"messages": [{"role": "user", "content": [USED | {"tool_use_id": ""}]}]},
            "messages[0].content[0].tool_use_id",
            "is required",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_place(fields, path, words):
    with pytest.raises(BadRequest) as error:
        decode(**fields)
    assert error.value.path == path
    assert words in error.value.problem
    assert "num_predict" not in str(error.value)


def test_a_conversation_that_the_server_should_remember_is_refused():
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(NotRemembered) as error:
            decode(thread=thread)
        assert error.value.path == "thread"


def _content(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [*HI, {"role": role, "content": list(blocks)}]}


def _tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [WEATHER, {"name": "f", "input_schema": {}, **fields}]}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"system": [{"type": "odd"}]}, "system[0].type"),
        (_content({"type": "document"}), "messages[1].content[0]"),
        (_content(document({})), "messages[1].content[0].source.type"),
        (_content(document({"type": "text"})), "messages[1].content[0].source"),
        (
            _content(document({"type": "content", "content": [document(LOG)]})),
            "messages[1].content[0].source.content[0].type",
        ),
        (_content({"type": "search_result", "title": "t"}), "messages[1].content[0]"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": "x"}, "top_k"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
        (_content({"type": "text"}), "messages[1].content[0]"),
        (_content({"type": "text", "text": 1}), "messages[1].content[0].text"),
        (_content({"text": "x"}), "messages[1].content[0].type"),
        (_content("x"), "messages[1].content[0]"),
        (_content(CALL | {"id": ""}, role="assistant"), "messages[1].content[0].id"),
        (_content(CALL | {"name": ""}, role="assistant"), "messages[1].content[0].name"),
        (_content(CALL | {"input": [1]}, role="assistant"), "messages[1].content[0].input"),
        (_content(CALL | {"input": {"n": 1e400}}, role="assistant"), ""),
        (_content(text("x"), CALL), "messages[1].content[1]"),
        (_content(CALL, role="system"), "messages[1].content[0]"),
        (
            _content(text("x"), {"type": "tool_use", "id": "t"}, role="assistant"),
            "messages[1].content[1]",
        ),
        (_content({"type": "tool_result"}), "messages[1].content[0]"),
        (
            _content({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text"}]}),
            "messages[1].content[0].content[0]",
        ),
        (_tool(input_schema=None), "tools[1].input_schema"),
        (_tool(name="no spaces"), "tools[1].name"),
        (_tool(name="weather"), "tools[1].name"),
        (_tool(input_schema={"type": "array"}), "tools[1].input_schema.type"),
        (_tool(type="web_search_20250305"), "tools[1].type"),
        (_tool(type="bash_20250124"), "tools[1].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        (_tool() | {"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        (_tool() | {"tool_choice": {"type": "tool"}}, "tool_choice"),
        (_tool() | {"tool_choice": "any"}, "tool_choice"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "output_config.format.schema.type",
        ),
        ({"compaction": {"type": "x"}}, "compaction"),
        ({"mcp_servers": [{"type": "url", "url": "https://x.example"}]}, "mcp_servers"),
    ],
)
def test_what_is_wrong_is_named(fields, path):
    with pytest.raises(BadRequest) as error:
        decode(**fields)
    assert error.value.path == path


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([IMAGE], "messages[0].content[0]"),
        (
            [{"type": "tool_result", "tool_use_id": "t", "content": [text("x"), IMAGE]}],
            "messages[0].content[0].content[1]",
        ),
        (
            [document({"type": "content", "content": [text("x"), IMAGE]})],
            "messages[0].content[0].source.content[1]",
        ),
    ],
)
def test_images_are_refused_with_their_place(content, path):
    with pytest.raises(Unsupported) as error:
        decode(messages=[{"role": "user", "content": content}])
    assert (error.value.capability, error.value.path) == ("vision", path)
