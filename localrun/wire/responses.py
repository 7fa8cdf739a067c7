"""OpenAI's dialect of responses: requests → `Call`, and what a reply repeats of its request.

Owns the wire names of `/v1/responses` and `/v1/responses/input_tokens`. Input items are in
`responses_input`, replies in `responses_writer`. Knows neither URLs nor statuses and does no I/O.
Null means absent. Nothing is kept between requests: what would need that is refused by name, except
`store`, which every client sends and whose reply says that nothing was stored. Fields that only
mean something to OpenAI's own servers are ignored.
Source: OpenAI's API reference, "Create a response" and "Get input token counts"; Ollama
`openai/responses.go`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from localrun.core import SCHEMA_PATH, Call, ChatPrompt, Tool
from localrun.errors import BadRequest
from localrun.options import check_option
from localrun.wire.bodies import (
    TextRequest,
    check_limit,
    decode,
    required_model,
    wanted_logprobs,
    without_effect,
)
from localrun.wire.responses_input import Items, full_name, messages_of, read_as
from localrun.wire.structure import TEXT_SCHEMA, schema_of_text_format
from localrun.wire.thinking import Reasoning, think_of_effort
from localrun.wire.tools import NATIVE_NAME_CHARS, WantedTool, checked_tools, chosen

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
_MAX_SHOWN = 40
_FORM_OF_CHOICE = '{"type": "function", "name": "a tool\'s name"}'


class _Tool(msgspec.Struct):
    """A function, or a namespace of some; other keys change nothing."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[dict[str, Any]] | None = None


class _Text(msgspec.Struct):
    format: Any = None
    verbosity: str | None = None


class _Reasoning(Reasoning):
    summary: str | None = None
    generate_summary: str | None = None


class _Request(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: Items | None = None
    instructions: str | None = None
    max_output_tokens: int | float | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: _Reasoning | None = None
    text: _Text | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    # Repeated in the reply, and nothing else.
    metadata: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # What would need a store, or a service that is not here.
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    context_management: list[Any] | None = None
    moderation: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Request)

# See `core.Call.places`.
_PLACES = {SCHEMA_PATH: TEXT_SCHEMA, "think": "reasoning.effort"}

_OPTION_OF = {
    "max_output_tokens": "num_predict",
    "temperature": "temperature",
    "top_p": "top_p",
}
_REPEATED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "user"),
    *("safety_identifier", "prompt_cache_key"),
)


class ResponseRequest(TextRequest, frozen=True, kw_only=True):
    """A request for a response.

    `echo` is what the reply repeats; `namespaces` has (namespace, name) of each function in one,
    by what the model calls it. `has_encrypted` when reasoning has to come in the field for
    encrypted text, too.
    """

    echo: dict[str, Any]
    namespaces: dict[str, tuple[str, str]]
    has_encrypted: bool


def decode_responses(body: bytes) -> ResponseRequest:
    """The request of POST /v1/responses. Raises BadRequest, Unsupported."""
    wire = decode(_DECODER, body)
    model = required_model(wire.model, "model")
    _refuse(wire)
    if wire.input is None:
        raise BadRequest("input", "is required")
    if (wire.max_tool_calls or 0) < 0:
        raise BadRequest("max_tool_calls", f"must be at least 0, not {wire.max_tool_calls}")
    text, include = wire.text or _Text(), wire.include or ()
    namespaces: dict[str, tuple[str, str]] = {}
    tools, choice = chosen(
        _tools(wire.tools or (), namespaces),
        wire.tool_choice,
        wire.parallel_tool_calls,
        form=_FORM_OF_CHOICE,
    )
    prompt = ChatPrompt(
        messages_of(wire.instructions, wire.input, model),
        tools=tools,
        choice=choice,
        think=think_of_effort(None, wire.reasoning),
    )
    options = _options(wire)
    call = Call(
        model,
        (prompt,),
        options,
        cuts=_cuts(wire.truncation),
        top_logprobs=wanted_logprobs(LOGPROBS in include, wire.top_logprobs, "top_logprobs"),
        schema=schema_of_text_format(text.format),
        places=_PLACES,
    )
    return ResponseRequest(
        call,
        wire.stream is True,
        (*without_effect(body, wire), *_vain(wire, text)),
        echo=_echo(wire, text, options),
        namespaces=namespaces,
        has_encrypted=ENCRYPTED in include,
    )


def decode_input_tokens(body: bytes) -> Call:
    """The request of POST /v1/responses/input_tokens. Raises BadRequest, Unsupported.

    What is refused where an answer is wanted is refused here, too: nobody could send it.
    """
    return decode_responses(body).call


def _refuse(wire: _Request) -> None:
    """Raises BadRequest for what would need something that is not here."""
    kept = "this server keeps no responses; send the whole conversation in `input`"
    problems = (
        ("previous_response_id", wire.previous_response_id, kept),
        ("conversation", wire.conversation, kept),
        ("background", wire.background, "this server keeps no responses; use `stream`"),
        ("prompt", wire.prompt, "this server keeps no prompts; send the text in `instructions`"),
        ("context_management", wire.context_management, "is not available; leave it out"),
        ("moderation", wire.moderation, "is not available; leave it out"),
    )
    for path, value, problem in problems:
        if value:
            raise BadRequest(path, problem)


def _options(wire: _Request) -> dict[str, Any]:
    # OpenAI's defaults, as for its chats.
    options: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    if wire.max_output_tokens is not None:
        check_limit(wire.max_output_tokens, "max_output_tokens")
    for field, option in _OPTION_OF.items():
        if (value := getattr(wire, field)) is not None:
            options[option] = check_option(option, value, path=field, cuts=False)
    return options


def _cuts(truncation: str | None) -> bool:
    """OpenAI's default is to refuse what does not fit, and agents count on hearing of it."""
    if truncation not in (None, "auto", "disabled"):
        raise BadRequest("truncation", 'must be "auto" or "disabled"')
    return truncation == "auto"


def _vain(wire: _Request, text: _Text) -> Iterator[str]:
    """Fields without effect that stand below others, or would need another one."""
    if wire.top_logprobs and LOGPROBS not in (wire.include or ()):
        yield "top_logprobs"
    if text.verbosity is not None:
        yield "text.verbosity"


def _tools(
    wire: Sequence[dict[str, Any]], namespaces: dict[str, tuple[str, str]]
) -> tuple[Tool, ...]:
    """The functions; those in a namespace are noted in `namespaces`. Raises BadRequest."""
    wanted: list[WantedTool] = []
    for i, item in enumerate(wire):
        path = f"tools[{i}]"
        tool = read_as(_Tool, item, path)
        if tool.type != "namespace":
            wanted.append(_wanted(tool, "", path))
            continue
        if not tool.name:
            raise BadRequest(f"{path}.name", "is required")
        for j, item_inside in enumerate(tool.tools or ()):
            path_inside = f"{path}.tools[{j}]"
            inside = read_as(_Tool, item_inside, path_inside)
            one = _wanted(inside, tool.name, path_inside)
            namespaces[one.name or ""] = (tool.name, inside.name or "")
            wanted.append(one)
    return checked_tools(wanted, NATIVE_NAME_CHARS)


def _wanted(tool: _Tool, namespace: str, path: str) -> WantedTool:
    if tool.type != "function":
        # Left out silently, the model would make up what it should have looked up.
        kind = (tool.type or "")[:_MAX_SHOWN]
        problem = f'"{kind}" is not available here; only functions and namespaces of them are'
        raise BadRequest(f"{path}.type", problem)
    if not tool.name:
        raise BadRequest(f"{path}.name", "is required")
    name = full_name(namespace, tool.name)
    is_strict = tool.strict is True
    return WantedTool(name, tool.description, tool.parameters, path, "parameters", is_strict)


def _echo(wire: _Request, text: _Text, options: dict[str, Any]) -> dict[str, Any]:
    form: Any = {"format": text.format or {"type": "text"}}
    if text.verbosity is not None:
        form["verbosity"] = text.verbosity
    reasoning = wire.reasoning or _Reasoning()
    return {
        **{name: getattr(wire, name) for name in _REPEATED},
        "background": False,
        "metadata": _written(wire.metadata or {}, "metadata"),
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "service_tier": "default",
        "store": False,
        "temperature": options["temperature"],
        "text": _written(form, "text"),
        "tool_choice": _written(wire.tool_choice or "auto", "tool_choice"),
        "tools": _written(wire.tools or [], "tools"),
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": options["top_p"],
        "truncation": wire.truncation or "disabled",
    }


def _written(value: Any, path: str) -> msgspec.Raw:
    """A client's own value as JSON: once for all events, and while it can still be refused.

    Raises BadRequest at `path`.
    """
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except RecursionError:
        raise BadRequest(path, "is nested too deeply") from None
