"""Functions that a model may call, and its calls, as Ollama and OpenAI spell them. No I/O.

Owns the checks of definitions and arguments: what passes can travel to a runner and be put into a
prompt. Which of it the model and its template understand, only the runner knows.
Source: Ollama `api/types.go` `Tool`, `ToolCall`; OpenAI's API reference, "Chat Completions".
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from localrun.core import Tool, ToolCall, ToolChoice
from localrun.errors import BadRequest
from localrun.wire.bodies import mended

# OpenAI's own bound of a name. Ollama has none, and names of MCP servers' tools can be long.
OPENAI_NAME_CHARS = 64
NATIVE_NAME_CHARS = 256
# Four times what OpenAI takes; every one of them stands in the prompt.
MAX_TOOLS = 512
# More text than the largest windows hold, and a template walks through all of it.
MAX_TOOLS_BYTES = 1 << 20
# Deeper than people and generators write; what reads it further on does so recursively.
MAX_DEPTH = 100

_MAX_SHOWN = 40


class _Function(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct):
    """An entry of `tools`; keys that are not here change nothing."""

    type: str | None = None
    function: _Function | None = None


class _CalledFunction(msgspec.Struct):
    name: str
    arguments: Any = None


class WireCall(msgspec.Struct):
    """A call in a message; its arguments are an object, or the text of one."""

    function: _CalledFunction
    id: str | None = None


def tools_of(definitions: Sequence[ToolDefinition] | None, max_name_chars: int) -> tuple[Tool, ...]:
    """The tools that a request offers. Raises BadRequest with the path of what is wrong."""
    return checked_tools(
        [_wanted(definition, f"tools[{i}]") for i, definition in enumerate(definitions or ())],
        max_name_chars,
    )


class WantedTool(NamedTuple):
    """A tool as sent; its fields stand at `path`, its schema in the field `schema_field`.

    `is_strict` when a call that has to come must be held to all of that.
    """

    name: str | None
    description: str | None
    schema: dict[str, Any] | None
    path: str
    schema_field: str
    is_strict: bool = False


def checked_tools(wanted: Sequence[WantedTool], max_name_chars: int) -> tuple[Tool, ...]:
    """The tools, each name once. Raises BadRequest with the path of what is wrong."""
    if len(wanted) > MAX_TOOLS:
        raise BadRequest("tools", f"{len(wanted)} tools are more than {MAX_TOOLS}")
    tools: dict[str, Tool] = {}
    for one in wanted:
        tool = _tool(one, max_name_chars)
        if tool.name in tools:
            raise BadRequest(f"{one.path}.name", f'"{tool.name}" is there twice')
        tools[tool.name] = tool
    n_bytes = len(msgspec.json.encode(tools))
    if n_bytes > MAX_TOOLS_BYTES:
        raise BadRequest("tools", f"{n_bytes} bytes are more than {MAX_TOOLS_BYTES}")
    return tuple(tools.values())


def _wanted(wire: ToolDefinition, path: str) -> WantedTool:
    if wire.type not in (None, "", "function"):
        raise BadRequest(f"{path}.type", f'"{wire.type[:_MAX_SHOWN]}" is not "function"')
    function = wire.function
    if function is None:
        raise BadRequest(f"{path}.function", "is required")
    return WantedTool(
        function.name,
        function.description,
        function.parameters,
        f"{path}.function",
        "parameters",
        function.strict is True,
    )


def _tool(wanted: WantedTool, max_name_chars: int) -> Tool:
    name = wanted.name or ""
    if not re.fullmatch(rf"[A-Za-z0-9_.-]{{1,{max_name_chars}}}", name):
        raise BadRequest(
            f"{wanted.path}.name",
            f"must be 1 to {max_name_chars} letters, digits, `_`, `-` or `.`, "
            f'not "{name[:_MAX_SHOWN]}"',
        )
    path = f"{wanted.path}.{wanted.schema_field}"
    parameters = _parameters(wanted.schema or {}, path)
    return Tool(name, wanted.description or "", parameters, path if wanted.is_strict else "")


def _parameters(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of an object. Keys without a value, which some clients send, are left out."""
    schema = {
        key: value
        for key, value in within_depth(schema, path).items()
        if value is not None and (key, value) != ("type", "")
    }
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise BadRequest(f"{path}.type", 'must be "object": arguments have names')
    if not isinstance(schema.get("properties", {}), dict):
        raise BadRequest(f"{path}.properties", "must be an object")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise BadRequest(f"{path}.required", "must be a list of names")
    return schema


_CHAT_FORM = '{"type": "function", "function": {"name": "a tool\'s name"}}'


def chosen(
    tools: tuple[Tool, ...], choice: Any, is_parallel: bool | None, *, form: str = _CHAT_FORM
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """(the tools that may be called, which of them has to be) by OpenAI's `tool_choice`.

    `form` is how the dialect names one tool, for whoever made a mistake there.
    Raises BadRequest.
    """
    parallel = is_parallel is not False
    match choice:
        case None | "auto":
            return tools, ToolChoice(is_parallel=parallel)
        case "none":
            return (), ToolChoice()
        case "required":
            return some(tools), ToolChoice(is_required=True, is_parallel=parallel)
        case {"type": "function", "function": {"name": str() as name}}:
            find(tools, name, "tool_choice.function.name")
            return tools, ToolChoice(True, name, parallel)
        case {"type": "function", "name": str() as name}:
            find(tools, name, "tool_choice.name")
            return tools, ToolChoice(True, name, parallel)
        case {"type": "allowed_tools", "allowed_tools": allowed}:
            return _allowed(tools, allowed, parallel, "tool_choice.allowed_tools")
        case {"type": "allowed_tools"}:
            return _allowed(tools, choice, parallel, "tool_choice")
    raise BadRequest("tool_choice", f'must be "none", "auto", "required" or {form}')


def some(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools. Raises BadRequest when there are none to choose from."""
    if not tools:
        raise BadRequest("tool_choice", "there are no tools to choose from")
    return tools


def find(tools: tuple[Tool, ...], name: str, path: str) -> Tool:
    """The tool of that name. Raises BadRequest at `path`."""
    for tool in some(tools):
        if tool.name == name:
            return tool
    raise BadRequest(path, f'there is no tool "{name[:_MAX_SHOWN]}"')


def _allowed(
    tools: tuple[Tool, ...], wire: Any, parallel: bool, path: str
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Some of the tools; the others are left out of the prompt, too. `wire` stands at `path`."""
    if not isinstance(wire, dict):
        raise BadRequest(path, "must be an object")
    mode, wanted = wire.get("mode"), wire.get("tools")
    if mode not in (None, "", "auto", "required"):
        raise BadRequest(f"{path}.mode", 'must be "auto" or "required"')
    if not isinstance(wanted, list) or not wanted:
        raise BadRequest(f"{path}.tools", "must be a list of tools")
    names = set()
    for i, entry in enumerate(wanted):
        match entry:
            case {"function": {"name": str() as name}}:
                names.add(find(tools, name, f"{path}.tools[{i}].function.name").name)
            case {"name": str() as name}:
                names.add(find(tools, name, f"{path}.tools[{i}].name").name)
            case _:
                raise BadRequest(f"{path}.tools[{i}]", "must name a function")
    some = tuple(tool for tool in tools if tool.name in names)
    return some, ToolChoice(mode == "required", is_parallel=parallel)


def calls_of(wire: Sequence[WireCall] | None, path: str) -> tuple[ToolCall, ...]:
    """The calls of a message. Raises BadRequest below `path`."""
    for i, call in enumerate(wire or ()):
        if not call.function.name:
            raise BadRequest(f"{path}[{i}].function.name", "is required")
    return tuple(
        ToolCall(
            call.function.name,
            arguments_of(call.function.arguments, f"{path}[{i}].function.arguments"),
            call.id or "",
        )
        for i, call in enumerate(wire or ())
    )


def arguments_of(value: Any, path: str) -> dict[str, Any]:
    """A call's arguments, an object or the text of one. Raises BadRequest at `path`."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(mended(value.encode())) if value.strip() else None
        except msgspec.ValidationError:  # of values that may be anything, this is all it can be
            raise BadRequest(path, "invalid tool call arguments: a number is too large") from None
        except (msgspec.DecodeError, RecursionError):
            value = ""  # refused below
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(path, "invalid tool call arguments: not a JSON object")
    return within_depth(value, path)


def within_depth(value: dict[str, Any], path: str) -> dict[str, Any]:
    """The object. Raises BadRequest when it is too deep for what reads it further on."""
    _check_depth(value, path, MAX_DEPTH)
    return value


def _check_depth(value: Any, path: str, n_levels: int) -> None:
    if n_levels == 0:
        raise BadRequest(path, f"is nested more than {MAX_DEPTH} levels deep")
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for item in items:
            _check_depth(item, path, n_levels - 1)


_encode = msgspec.json.Encoder().encode


def native_call(call: ToolCall, number: int) -> dict[str, Any]:
    """Call `number` of an answer in Ollama's words."""
    function = {"index": number, "name": call.name, "arguments": call.arguments}
    return {"id": call.id, "function": function}


def openai_call(call: ToolCall) -> dict[str, Any]:
    """A call of a whole answer in OpenAI's words; a stream puts its index in front."""
    function = {"name": call.name, "arguments": _encode(call.arguments).decode()}
    return {"id": call.id, "type": "function", "function": function}
