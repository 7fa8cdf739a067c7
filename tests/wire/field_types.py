"""The types that fields of bodies may have, as far as several bodies share them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from localrun.options import OPTIONS

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


def below(path: str, fields: dict[str, str]) -> dict[str, str]:
    return {f"{path}.{name}": types for name, types in fields.items()}
