"""Every field of every body with values of every type: what is wrong is refused by its name."""

import copy
import json
import os
import re
from typing import Any

import pytest
from field_types import (
    CALL,
    CALL_FIELDS,
    LOADING,
    LOADING_FIELDS,
    NATIVE,
    NATIVE_FIELDS,
    NUMBER,
    OPTION_FIELDS,
    SAMPLING,
    SAMPLING_FIELDS,
    SCHEMA,
    TEXT,
    TOOL,
    TOOL_FIELDS,
    VALUES,
    Route,
    below,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from vendor_bodies import anthropic, chat_completions, responses

from localrun.errors import BadRequest, NotRemembered, Unsupported
from localrun.wire.anthropic import decode_count_tokens, decode_messages
from localrun.wire.completions import decode_completions
from localrun.wire.embeddings import (
    decode_embed,
    decode_embeddings,
    decode_openai_embeddings,
    decode_rerank,
)
from localrun.wire.native import decode_chat, decode_generate
from localrun.wire.native_models import (
    decode_copy,
    decode_create,
    decode_delete,
    decode_pull,
    decode_show,
)
from localrun.wire.native_storage import decode_prune, decode_verify
from localrun.wire.native_tokens import decode_detokenize, decode_tokenize
from localrun.wire.openai import decode_chat_completions
from localrun.wire.responses import decode_responses

REFUSALS = (BadRequest, Unsupported, NotRemembered)


CHOICE = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
}
CHOICE_FIELDS = {
    "tool_choice.type": "str",
    "tool_choice.allowed_tools": "object",
    "tool_choice.allowed_tools.mode": "str",
    "tool_choice.allowed_tools.tools": "list",
    "tool_choice.allowed_tools.tools[0]": "object",
    "tool_choice.allowed_tools.tools[0].function": "object",
    "tool_choice.allowed_tools.tools[0].function.name": "str",
}
FLAT_CHOICE = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]}
FLAT_CHOICE_FIELDS = {
    "tool_choice.mode": "str",
    "tool_choice.tools": "list",
    "tool_choice.tools[0]": "object",
    "tool_choice.tools[0].name": "str",
}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
# Forms of a field, each with fields that the others do not have.
FORMS = {
    "/v1/chat/completions, tools by a list": Route(
        decode_chat_completions, {**CHAT, "tools": [TOOL], "tool_choice": CHOICE}, CHOICE_FIELDS
    ),
    "/v1/chat/completions, a tool by its name": Route(
        decode_chat_completions,
        {
            **CHAT,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {"tool_choice.function": "object", "tool_choice.function.name": "str"},
    ),
    "/v1/chat/completions, a schema beside its type": Route(
        decode_chat_completions,
        {**CHAT, "response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format.schema": "object"},
    ),
    "/v1/responses, tools by a list": Route(
        decode_responses,
        {
            "model": "m",
            "input": "hi",
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": FLAT_CHOICE,
        },
        FLAT_CHOICE_FIELDS,
    ),
    "/v1/messages, the older place of a format": Route(
        decode_count_tokens,
        {**CHAT, "output_format": {"type": "json_schema", "schema": SCHEMA}},
        {
            "output_format": "object",
            "output_format.type": "str",
            "output_format.schema": "object",
        },
    ),
}
ROUTES = FORMS | {
    "/api/chat": Route(
        decode_chat,
        {
            **NATIVE,
            "messages": [
                {"role": "assistant", "content": [TEXT], "tool_calls": [CALL]},
                {"role": "tool", "content": "x", "tool_name": "f"},
            ],
            "tools": [TOOL],
        },
        {
            **NATIVE_FIELDS,
            "messages": "list",
            "messages[0]": "object",
            "messages[0].role": "str",
            "messages[0].content": "str list",
            "messages[0].content[0]": "object",
            "messages[0].content[0].type": "str",
            "messages[0].content[0].text": "str",
            "messages[0].thinking": "str",
            "messages[0].images": "list",
            **below("messages[0]", CALL_FIELDS),
            "messages[1].tool_name": "str",
            "messages[1].tool_call_id": "str",
            **TOOL_FIELDS,
        },
    ),
    "/api/generate": Route(
        decode_generate,
        {**NATIVE, "prompt": "hi", "context": [1]},
        {
            **NATIVE_FIELDS,
            "prompt": "str",
            "suffix": "str",
            "system": "str",
            "template": "str",
            "context": "list",
            "context[0]": "int",
            "raw": "bool",
            "images": "list",
        },
    ),
    "/api/embed": Route(
        decode_embed,
        {**LOADING, "input": ["a"]},
        {
            **LOADING_FIELDS,
            "input": "str list",
            "input[0]": "str",
            "truncate": "bool",
            "dimensions": "int",
        },
    ),
    "/api/embeddings": Route(
        decode_embeddings, {**LOADING, "prompt": "a"}, {**LOADING_FIELDS, "prompt": "str"}
    ),
    "/api/tokenize": Route(
        decode_tokenize,
        {**LOADING, "content": "a"},
        {**LOADING_FIELDS, "content": "str", "add_special": "bool", "with_pieces": "bool"},
    ),
    "/api/detokenize": Route(
        decode_detokenize,
        {**LOADING, "tokens": [1]},
        {**LOADING_FIELDS, "tokens": "list", "tokens[0]": "int"},
    ),
    "/api/show": Route(
        decode_show,
        {"model": "m", "options": {}},
        {
            "model": "str",
            "name": "str",
            "verbose": "bool",
            "system": "str",
            "options": "object",
            **OPTION_FIELDS,
        },
    ),
    "/api/create": Route(
        decode_create,
        {
            "model": "m",
            "files": {"a": "sha256:x"},
            "adapters": {"a": "sha256:x"},
            "license": ["x"],
            "messages": [{"role": "user", "content": "x"}],
        },
        {
            **dict.fromkeys(("model", "name", "from", "path", "quantize", "quantization"), "str"),
            **dict.fromkeys(("template", "system", "renderer", "parser", "requires"), "str"),
            **dict.fromkeys(("stream", "in_place"), "bool"),
            **dict.fromkeys(("files", "adapters", "draft_files", "parameters"), "object"),
            **dict.fromkeys(("files[a]", "adapters[a]"), "str"),
            "license": "str list",
            "license[0]": "str",
            "messages": "list",
            "messages[0]": "object",
            "messages[0].role": "str",
            "messages[0].content": "str",
        },
    ),
    "/api/pull": Route(
        decode_pull,
        {"model": "m"},
        {"model": "str", "name": "str", "stream": "bool", "insecure": "bool"},
    ),
    "/api/delete": Route(decode_delete, {"model": "m"}, {"model": "str", "name": "str"}),
    "/api/copy": Route(decode_copy, {}, {"source": "str", "destination": "str"}),
    "/api/prune": Route(
        decode_prune,
        {},
        {"dry_run": "bool", "partials": "bool", "foreign": "bool", "min_age_s": NUMBER},
    ),
    "/api/verify": Route(
        decode_verify,
        {"models": ["m"]},
        {"models": "list", "models[0]": "str", "model": "str", "repair": "bool", "stream": "bool"},
    ),
    "/v1/chat/completions": chat_completions(),
    "/v1/completions": Route(
        decode_completions,
        {**SAMPLING, "prompt": ["a"]},
        {
            **SAMPLING_FIELDS,
            "prompt": "str list",
            "prompt[0]": "str",
            "suffix": "str",
            "logprobs": "int",
            "echo": "bool",
            "best_of": "int",
        },
    ),
    "/v1/responses": responses(),
    "/v1/embeddings": Route(
        decode_openai_embeddings,
        {"model": "m", "input": ["a"]},
        {
            "model": "str",
            "input": "str list",
            "input[0]": "str",
            "dimensions": "int",
            "encoding_format": "str",
        },
    ),
    "/v1/rerank": Route(
        decode_rerank,
        {"model": "m", "query": "q", "documents": [{"text": "a"}]},
        {
            "model": "str",
            "query": "str",
            "documents": "list",
            "documents[0]": "str object",
            "documents[0].text": "str",
            "top_n": "int",
            "return_documents": "bool",
        },
    ),
    "/v1/messages": anthropic(decode_messages, answers=True),
    "/v1/messages/count_tokens": anthropic(decode_count_tokens, answers=False),
}


def changed(body: dict[str, Any], path: str, value: Any) -> bytes:
    """The body with that value at the path."""
    body = copy.deepcopy(body)
    steps = re.findall(r"[^.\[\]]+", path)
    *steps, last = [int(step) if step.isdecimal() else step for step in steps]
    place: Any = body
    for step in steps:
        place = place[step]
    place[last] = value
    return json.dumps(body).encode()


FIELDS = pytest.mark.parametrize(
    ("route", "path", "types"),
    [
        pytest.param(route, path, types.split(), id=f"{name}: {path}")
        for name, route in ROUTES.items()
        for path, types in route.fields.items()
    ],
)


@pytest.mark.parametrize("route", [pytest.param(route, id=name) for name, route in ROUTES.items()])
def test_the_bodies_that_are_changed_here_are_right(route):
    assert route.decode(json.dumps(route.body).encode()) is not None


def refusal(route: Route, path: str, value: Any) -> str | None:
    """What is said to the value at the path; None when it is taken."""
    try:
        route.decode(changed(route.body, path, value))
    except REFUSALS as error:
        return str(error)
    return None


def name_of(path: str) -> str:
    return path.split(".")[-1].split("[")[0]


@FIELDS
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(route, path, types):
    for kind in VALUES.keys() - types:
        for value in VALUES[kind]:
            said = refusal(route, path, value)
            assert said is not None, value
            assert name_of(path) in said


@FIELDS
def test_a_value_of_the_right_type_is_taken_or_refused_and_nothing_else(route, path, types):
    for kind in types:
        for value in VALUES[kind]:
            assert refusal(route, path, value) != ""


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.sampled_from(("type", "name", "x", "content", "properties")), inside)
    ),
    max_leaves=6,
)


@given(st.sampled_from(list(ROUTES.values())), st.data())
@settings(max_examples=2000 if os.environ.get("LOCALRUN_TEST_FULL") == "1" else 200)
def test_whatever_stands_in_a_field_nothing_else_is_raised(route, data):
    path = data.draw(st.sampled_from(list(route.fields)))
    assert refusal(route, path, data.draw(_JSON)) != ""


@FIELDS
def test_null_is_absent_or_refused_by_the_name_of_its_field(route, path, types):
    said = refusal(route, path, None)
    assert said is None or name_of(path) in said
