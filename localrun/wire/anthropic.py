"""Anthropic's dialect: requests for a message, or for its number of tokens → `Call`.

Owns the wire names of `/v1/messages` and `/v1/messages/count_tokens`. Turns are in
`anthropic_messages`, replies in `anthropic_writer`. Knows neither URLs nor statuses and does no
I/O. Null means absent. Fields that only mean something to Anthropic's own servers are ignored; what
would have them do something is refused.
Source: Anthropic's API reference, "Messages" and "Count tokens"; Ollama `anthropic/anthropic.go`.
"""

from typing import Any

import msgspec

from localrun.core import SCHEMA_PATH, Call, ChatPrompt, Tool, ToolChoice
from localrun.errors import BadRequest, NotRemembered
from localrun.options import check_option
from localrun.wire.anthropic_messages import Content, WireTurn, messages_of
from localrun.wire.bodies import (
    TextRequest,
    check_limit,
    decode,
    required_model,
    without_effect,
)
from localrun.wire.structure import schema_of_output_format
from localrun.wire.thinking import think_of_config
from localrun.wire.tools import WantedTool, checked_tools, find, some

# Anthropic's own bound of a tool's name.
NAME_CHARS = 128
_MAX_SHOWN = 40
_DISPLAYS = (None, "summarized", "omitted")


class _Tool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Choice(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct):
    """`budget_tokens` has no effect: models here cannot be told a number."""

    type: str | None = None
    budget_tokens: int | float | None = None
    display: str | None = None


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: Any = None


class _Shared(msgspec.Struct, kw_only=True):
    """What the prompt is made of."""

    model: str | None = None
    messages: list[WireTurn] | None = None
    system: Content | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: Any = None
    mcp_servers: list[Any] | None = None
    compaction: Any = None
    thread: Any = None


class _Messages(_Shared, kw_only=True):
    max_tokens: int | float | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | float | None = None
    stop_sequences: list[str] | None = None


_MESSAGES = msgspec.json.Decoder(_Messages)
_COUNT = msgspec.json.Decoder(_Shared)

_OPTION_OF = {
    "max_tokens": "num_predict",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
}


class MessageRequest(TextRequest, frozen=True):
    """A request for a message; `shows_thinking` unless thinking is to be left out."""

    shows_thinking: bool = True


def decode_messages(body: bytes) -> MessageRequest:
    """The request of POST /v1/messages. Raises BadRequest, Unsupported."""
    wire = decode(_MESSAGES, body)
    call, passed_over = _call(wire)
    if wire.max_tokens is None:
        raise BadRequest("max_tokens", "is required and must be positive")
    check_limit(wire.max_tokens, "max_tokens")
    for i, text in enumerate(wire.stop_sequences or ()):
        if not text:
            raise BadRequest(f"stop_sequences[{i}]", "must not be empty")
    if wire.top_k is not None and wire.top_k < 0:
        raise BadRequest("top_k", f"must be at least 0, not {wire.top_k}")
    call = msgspec.structs.replace(call, options=_options(wire))
    is_omitted = wire.thinking is not None and wire.thinking.display == "omitted"
    ignored = (*without_effect(body, wire), *passed_over)
    return MessageRequest(call, wire.stream is True, ignored, shows_thinking=not is_omitted)


def decode_count_tokens(body: bytes) -> Call:
    """The request of POST /v1/messages/count_tokens. Raises BadRequest, Unsupported."""
    return _call(decode(_COUNT, body))[0]


def _call(wire: _Shared) -> tuple[Call, tuple[str, ...]]:
    """(the call without its options, types of blocks that were passed over)."""
    model = required_model(wire.model, "model")
    if not wire.messages:
        raise BadRequest("messages", "is required")
    _refuse(wire)
    messages, passed_over = messages_of(wire.system, wire.messages, model)
    tools, choice = _chosen(_tools(wire.tools), wire.tool_choice)
    output = wire.output_config or _OutputConfig()
    think = think_of_config(_kind_of(wire.thinking), output.effort)
    prompt = ChatPrompt(messages, tools=tools, choice=choice, think=think, may_not_think=True)
    form, place = output.format, "output_config.format"
    if form is None and wire.output_format is not None:
        form, place = wire.output_format, "output_format"  # its older place
    schema, places = schema_of_output_format(form, place), {SCHEMA_PATH: f"{place}.schema"}
    return Call(model, (prompt,), schema=schema, places=places), passed_over


def _kind_of(thinking: _Thinking | None) -> str | None:
    if thinking is None:
        return None
    if not thinking.type:
        raise BadRequest("thinking.type", "is required")
    if thinking.display not in _DISPLAYS:
        raise BadRequest("thinking.display", 'must be "summarized" or "omitted"')
    if thinking.budget_tokens is not None:
        check_limit(thinking.budget_tokens, "thinking.budget_tokens")
    return thinking.type


def _refuse(wire: _Shared) -> None:
    if wire.thread is not None:
        raise NotRemembered("thread")
    if wire.mcp_servers:
        raise BadRequest("mcp_servers", "this server asks no others for tools; leave it out")
    if wire.compaction is not None:
        raise BadRequest("compaction", "this server does not shorten conversations; leave it out")


def _options(wire: _Messages) -> dict[str, Any]:
    return {
        option: check_option(option, value, path=field, cuts=False)
        for field, option in _OPTION_OF.items()
        if (value := getattr(wire, field)) is not None
    }


def _tools(wire: list[_Tool] | None) -> tuple[Tool, ...]:
    return checked_tools(
        [_wanted(tool, f"tools[{i}]") for i, tool in enumerate(wire or ())], NAME_CHARS
    )


def _wanted(tool: _Tool, path: str) -> WantedTool:
    if tool.type not in (None, "custom"):
        # Left out silently, the model would make up what it should have looked up.
        raise BadRequest(
            f"{path}.type",
            f'"{tool.type[:_MAX_SHOWN]}" is a tool that only Anthropic\'s models and servers know; '
            "leave it out, or define one of your own with an `input_schema`",
        )
    if tool.input_schema is None:
        raise BadRequest(f"{path}.input_schema", "is required")
    is_strict = tool.strict is True
    return WantedTool(
        tool.name, tool.description, tool.input_schema, path, "input_schema", is_strict
    )


def _chosen(tools: tuple[Tool, ...], choice: _Choice | None) -> tuple[tuple[Tool, ...], ToolChoice]:
    """(the tools that may be called, which of them has to be). Raises BadRequest."""
    if choice is None:
        return tools, ToolChoice()
    is_parallel = choice.disable_parallel_tool_use is not True
    match choice.type, choice.name:
        case "auto", _:
            return tools, ToolChoice(is_parallel=is_parallel)
        case "none", _:
            return (), ToolChoice()
        case "any", _:
            return some(tools), ToolChoice(is_required=True, is_parallel=is_parallel)
        case "tool", str() as name:
            find(tools, name, "tool_choice.name")
            return tools, ToolChoice(True, name, is_parallel)
    raise BadRequest(
        "tool_choice",
        'must have the type "auto", "any", "none", or "tool" with the `name` of one',
    )
