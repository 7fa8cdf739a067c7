"""Every field of every body with values of every type: what is wrong is refused by its name."""

import copy
import json
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localrun.errors import BadRequest, NotRemembered, Unsupported
from localrun.options import OPTIONS
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

# Of each type a value that programs take for false, and one that they do not.
VALUES: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "int": (0, 1),
    "float": (0.25, -1.5),
    "str": ("", "x"),
    "list": ([], [0], [[]]),
    "object": ({}, {"x": 0}),
}
NUMBER = "int float"

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA_FIELDS = {
    "type": "str list",
    "properties": "object",
    "required": "list",
    "required[0]": "str",
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
FUNCTION_FIELDS = {
    "name": "str",
    "description": "str",
    "parameters": "object",
    "strict": "bool",
    **{f"parameters.{name}": types for name, types in SCHEMA_FIELDS.items()},
}
TOOL = {"type": "function", "function": FUNCTION}
TOOL_FIELDS = {
    "tools": "list",
    "tools[0]": "object",
    "tools[0].type": "str",
    "tools[0].function": "object",
    **{f"tools[0].function.{name}": types for name, types in FUNCTION_FIELDS.items()},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"city": "Oslo"}}}
CALL_FIELDS = {
    "tool_calls": "list",
    "tool_calls[0]": "object",
    "tool_calls[0].id": "str",
    "tool_calls[0].function": "object",
    "tool_calls[0].function.name": "str",
    "tool_calls[0].function.arguments": "object str",
}
TEXT = {"type": "text", "text": "hi"}
OPTION_TYPES = {
    "integer": f"{NUMBER} str",
    "number": f"{NUMBER} str",
    "boolean": "bool",
    "strings": "str list",
    "numbers": f"{NUMBER} str list",
    "choice": "str",
    "biases": "object str",
}
OPTION_FIELDS = {f"options.{name}": OPTION_TYPES[row.kind] for name, row in OPTIONS.items()}
LOADING = {"model": "m", "options": {}, "keep_alive": 1}
LOADING_FIELDS = {
    "model": "str",
    "options": "object",
    "keep_alive": f"{NUMBER} str",
    **OPTION_FIELDS,
}
NATIVE = {**LOADING, "stream": False, "logprobs": True}
NATIVE_FIELDS = {
    **LOADING_FIELDS,
    "stream": "bool",
    "format": "str object",
    "think": "bool str",
    "truncate": "bool",
    "shift": "bool",
    "logprobs": "bool",
    "top_logprobs": "int",
}
SAMPLING_FIELDS = {
    "model": "str",
    "stream": "bool",
    "stream_options": "object",
    "stream_options.include_usage": "bool",
    "max_tokens": NUMBER,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "seed": NUMBER,
    "stop": "str list",
    "stop[0]": "str",
    "n": "int",
    "logit_bias": "object",
    "logit_bias[a]": "",
    "response_format": "object",
    "response_format.type": "str",
    "response_format.json_schema": "object",
    "response_format.json_schema.schema": "object",
}
SAMPLING = {
    "model": "m",
    "stream_options": {},
    "stop": ["a"],
    "logit_bias": {},
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}


class Route(NamedTuple):
    """A body that is right, and the types that each of its fields may have beside null."""

    decode: Callable[[bytes], object]
    body: dict[str, Any]
    fields: dict[str, str]


def _below(path: str, fields: dict[str, str]) -> dict[str, str]:
    return {f"{path}.{name}": types for name, types in fields.items()}


def _anthropic(decode: Callable[[bytes], object], *, answers: bool) -> Route:
    tool = {"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA}
    blocks = [
        TEXT,
        {"type": "tool_result", "tool_use_id": "t", "content": [TEXT], "is_error": True},
        {
            "type": "document",
            "source": {"type": "text", "data": "x"},
            "title": "t",
            "context": "c",
        },
        {"type": "document", "source": {"type": "content", "content": [TEXT]}},
        {"type": "search_result", "title": "t", "content": [TEXT]},
    ]
    said = [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"city": "Oslo"}},
    ]
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "assistant", "content": said},
            {"role": "user", "content": blocks},
        ],
        "system": [TEXT],
        "tools": [{**tool, "strict": True}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    }
    fields = {
        "model": "str",
        "messages": "list",
        "messages[0]": "object",
        "messages[0].role": "str",
        "messages[0].content": "str list",
        "messages[0].content[0]": "object",
        "messages[0].content[0].type": "str",
        "messages[0].content[0].thinking": "str",
        "messages[0].content[1].type": "str",
        "messages[0].content[1].id": "str",
        "messages[0].content[1].name": "str",
        "messages[0].content[1].input": "object str",
        "messages[1].content[0].type": "str",
        "messages[1].content[0].text": "str",
        "messages[1].content[1].tool_use_id": "str",
        "messages[1].content[1].content": "str list",
        "messages[1].content[1].content[0]": "object",
        "messages[1].content[1].is_error": "bool",
        "messages[1].content[2].source": "object",
        "messages[1].content[2].source.type": "str",
        "messages[1].content[2].source.data": "str",
        "messages[1].content[2].title": "str",
        "messages[1].content[2].context": "str",
        "messages[1].content[3].source.content": "str list",
        "messages[1].content[4].title": "str",
        "messages[1].content[4].content": "str list",
        "system": "str list",
        "system[0]": "object",
        "system[0].type": "str",
        "system[0].text": "str",
        "tools": "list",
        "tools[0]": "object",
        "tools[0].type": "str",
        "tools[0].name": "str",
        "tools[0].description": "str",
        "tools[0].input_schema": "object",
        **_below("tools[0].input_schema", SCHEMA_FIELDS),
        "tools[0].strict": "bool",
        "tool_choice": "object",
        "tool_choice.type": "str",
        "tool_choice.name": "str",
        "tool_choice.disable_parallel_tool_use": "bool",
        "thinking": "object",
        "thinking.type": "str",
        "thinking.display": "str",
        "output_config": "object",
        "output_config.effort": "str",
        "output_config.format": "object",
        "output_config.format.type": "str",
        "output_config.format.schema": "object",
        "mcp_servers": "list",
        "compaction": "",
        "thread": "",
    }
    limits = {
        "max_tokens": NUMBER,
        "stream": "bool",
        "temperature": NUMBER,
        "top_p": NUMBER,
        "top_k": NUMBER,
        "stop_sequences": "list",
    }
    return Route(decode, body, fields | (limits if answers else {}))


def _responses() -> Route:
    part = {"type": "input_text", "text": "hi"}
    body = {
        "model": "m",
        "input": [
            {"type": "message", "role": "user", "content": [part]},
            {
                "type": "reasoning",
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "summary": [{"type": "summary_text", "text": "Hm."}],
            },
            {"type": "reasoning", "encrypted_content": "Hm."},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
            {"type": "function_call_output", "call_id": "c", "output": [part]},
        ],
        "reasoning": {},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "tools": [
            {"type": "function", **FUNCTION},
            {
                "type": "namespace",
                "name": "s",
                "tools": [{"type": "function", "name": "g", "parameters": SCHEMA}],
            },
        ],
        "include": ["message.output_text.logprobs"],
    }
    fields = {
        "model": "str",
        "input": "str list",
        "input[0]": "object",
        "input[0].type": "str",
        "input[0].role": "str",
        "input[0].content": "str list",
        "input[0].content[0]": "object",
        "input[0].content[0].type": "str",
        "input[0].content[0].text": "str",
        "input[1].type": "str",
        "input[1].content": "list",
        "input[1].content[0].type": "str",
        "input[1].content[0].text": "str",
        "input[1].summary": "list",
        "input[2].encrypted_content": "str",
        "input[3].name": "str",
        "input[3].arguments": "object str",
        "input[3].call_id": "str",
        "input[3].namespace": "str",
        "input[4].output": "str list",
        "input[4].call_id": "str",
        "input[4].name": "str",
        "input[4].namespace": "str",
        "instructions": "str",
        "max_output_tokens": NUMBER,
        "temperature": NUMBER,
        "top_p": NUMBER,
        "reasoning": "object",
        "reasoning.effort": "str",
        "reasoning.summary": "str",
        "reasoning.generate_summary": "str",
        "text": "object",
        "text.format": "object",
        "text.format.type": "str",
        "text.format.schema": "object",
        "text.verbosity": "str",
        "tools": "list",
        "tools[0]": "object",
        "tools[0].type": "str",
        **_below("tools[0]", FUNCTION_FIELDS),
        "tools[1].name": "str",
        "tools[1].tools": "list",
        "tools[1].tools[0]": "object",
        "tool_choice": "str object",
        "parallel_tool_calls": "bool",
        "stream": "bool",
        "include": "list",
        "include[0]": "str",
        "top_logprobs": "int",
        "truncation": "str",
        "metadata": "object",
        "max_tool_calls": "int",
        "user": "str",
        "safety_identifier": "str",
        "prompt_cache_key": "str",
        "previous_response_id": "str",
        "conversation": "str object",
        "background": "bool",
        "prompt": "object",
        "context_management": "list",
        "moderation": "object",
    }
    return Route(decode_responses, body, fields)


def _chat_completions() -> Route:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    body = {
        **SAMPLING,
        "messages": [
            {"role": "assistant", "content": [TEXT], "tool_calls": [call]},
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "tool", "content": "x"},
        ],
        "tools": [TOOL],
        "logprobs": True,
        "modalities": ["text"],
        "reasoning": {},
    }
    fields = {
        **SAMPLING_FIELDS,
        "messages": "list",
        "messages[0]": "object",
        "messages[0].role": "str",
        "messages[0].content": "str list",
        "messages[0].content[0]": "object",
        "messages[0].content[0].type": "str",
        "messages[0].content[0].text": "str",
        **_below("messages[0]", CALL_FIELDS),
        "messages[0].reasoning": "str",
        "messages[0].reasoning_content": "str",
        "messages[1].function_call": "object",
        "messages[1].function_call.name": "str",
        "messages[1].function_call.arguments": "str",
        "messages[2].tool_call_id": "str",
        "messages[2].name": "str",
        "max_completion_tokens": NUMBER,
        **TOOL_FIELDS,
        "tool_choice": "str object",
        "parallel_tool_calls": "bool",
        "reasoning_effort": "str",
        "reasoning": "object",
        "reasoning.effort": "str",
        "logprobs": "bool",
        "top_logprobs": "int",
        "functions": "list",
        "function_call": "str object",
        "modalities": "list",
        "modalities[0]": "str",
        "web_search_options": "",
    }
    return Route(decode_chat_completions, body, fields)


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
            **_below("messages[0]", CALL_FIELDS),
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
    "/v1/chat/completions": _chat_completions(),
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
    "/v1/responses": _responses(),
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
    "/v1/messages": _anthropic(decode_messages, answers=True),
    "/v1/messages/count_tokens": _anthropic(decode_count_tokens, answers=False),
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
