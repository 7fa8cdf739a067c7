"""Ollama's dialect of `generate` and `chat`: request bodies → `Call`. Replies: `native_writer`.

Owns the wire names of these two routes. Knows neither URLs nor statuses and does no I/O. Every key
may be null, which means absent; unknown keys are ignored.
Source: Ollama `api/types.go`, `server/routes.go`.
"""

from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from localrun.core import Call, ChatPrompt, FillPrompt, Message, Prompt, RawPrompt
from localrun.errors import BadRequest
from localrun.wire.bodies import (
    Part,
    TextRequest,
    checked_options,
    content_text,
    decode,
    keep_alive_s,
    refuse_images,
    required_model,
    wanted_logprobs,
    without_effect,
)
from localrun.wire.native_writer import Kind
from localrun.wire.structure import schema_of_format
from localrun.wire.thinking import think_of
from localrun.wire.tools import NATIVE_NAME_CHARS, ToolDefinition, WireCall, calls_of, tools_of

_NEVER_CALL = ("system", "user", "tool")
# llama.cpp's token ids are 32-bit; which of them a model has, its runner knows.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Shared(msgspec.Struct, kw_only=True):
    """Fields that both routes have."""

    model: str | None = None
    stream: bool | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None
    format: Any = None
    think: Any = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class _Generate(_Shared, kw_only=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: tuple[TokenId, ...] | None = None
    raw: bool | None = None
    images: list[Any] | None = None


class NativeMessage(msgspec.Struct):
    """A message as Ollama's clients send it and as stored in models."""

    role: str
    content: str | list[Part] | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[WireCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Chat(_Shared, kw_only=True):
    messages: list[NativeMessage] | None = None
    tools: list[ToolDefinition] | None = None


_GENERATE = msgspec.json.Decoder(_Generate)
_CHAT = msgspec.json.Decoder(_Chat)


def decode_generate(body: bytes) -> TextRequest:
    """The request of POST /api/generate. Raises BadRequest, Unsupported."""
    wire = decode(_GENERATE, body)
    model = required_model(wire.model)
    refuse_images(wire.images, model)
    if wire.raw and (wire.template or wire.system or wire.context):
        raise BadRequest("", "raw mode does not support template, system, or context")
    return _request(wire, body, _generate_prompt(wire), "generate")


def decode_chat(body: bytes) -> TextRequest:
    """The request of POST /api/chat. Raises BadRequest, Unsupported."""
    wire = decode(_CHAT, body)
    model = required_model(wire.model)
    messages = tuple(
        message_of(message, f"messages[{i}]", model)
        for i, message in enumerate(wire.messages or ())
    )
    tools = tools_of(wire.tools, NATIVE_NAME_CHARS)
    prompt = ChatPrompt(messages, tools=tools, think=think_of(wire.think))
    request = _request(wire, body, prompt if messages else None, "chat")
    sent = zip(wire.messages or (), messages, strict=True)
    if any(message.tool_calls and not found.tool_calls for message, found in sent):
        return replace(request, ignored=(*request.ignored, "messages.tool_calls"))
    return request


def message_of(wire: NativeMessage, path: str, model: str) -> Message:
    """The message as a value. Raises BadRequest below `path`, Unsupported for images.

    Which roles there are is up to the model's template. Calls of those that never call are left
    out: no template says who made them.
    """
    refuse_images(wire.images, model)
    role = wire.role.strip().lower()
    if not role:
        raise BadRequest(f"{path}.role", "is required")
    calls = calls_of(wire.tool_calls, f"{path}.tool_calls")
    return Message(
        role=role,
        content=content_text(wire.content, f"{path}.content", model),
        thinking=wire.thinking or "",
        tool_calls=() if role in _NEVER_CALL else calls,
        tool_name=wire.tool_name or "",
        tool_call_id=wire.tool_call_id or "",
    )


def _generate_prompt(wire: _Generate) -> Prompt | None:
    if wire.raw and wire.suffix:
        raise BadRequest("suffix", "raw mode sends the prompt as it is; leave one of them out")
    think = think_of(wire.think)
    if wire.suffix:
        # A cursor at the beginning of a file has no text before it.
        return FillPrompt(wire.prompt or "", wire.suffix)
    if not wire.prompt:
        return None
    if wire.raw:
        return RawPrompt(wire.prompt)
    return ChatPrompt((Message("user", wire.prompt),), context=wire.context or (), think=think)


def _request(wire: _Shared, body: bytes, prompt: Prompt | None, kind: Kind) -> TextRequest:
    options, unknown = checked_options(wire.options)
    generate = wire if isinstance(wire, _Generate) else None
    call = Call(
        model=required_model(wire.model),
        prompts=(prompt,) if prompt is not None else (),
        options=options,
        keep_alive_s=keep_alive_s(wire.keep_alive),
        system=(generate and generate.system) or None,
        template=(generate and generate.template) or None,
        capability=kind,
        return_context=generate is not None and isinstance(prompt, ChatPrompt),
        cuts=wire.truncate,
        # Off unless asked for, other than in Ollama: a shift forgets without a word.
        shifts=wire.shift is True,
        top_logprobs=wanted_logprobs(wire.logprobs, wire.top_logprobs),
        schema=schema_of_format(wire.format),
    )
    ignored = unknown + without_effect(body, wire)
    ignored += ["top_logprobs"] if wire.top_logprobs and not wire.logprobs else []
    # Only a template can tell a model to think.
    ignored += ["think"] if wire.think and not isinstance(prompt, ChatPrompt | None) else []
    return TextRequest(call, wire.stream is not False, tuple(ignored))
