"""OpenAI's dialect of chat: request bodies → `Call`, events → completion objects and chunks.

Owns the wire names of `/v1/chat/completions` and `/v1/models`. Knows neither URLs nor statuses and
does no I/O. Null means absent. Fields without meaning here are ignored; those that would change the
answer and are not available are refused with their name.
Source: OpenAI's API reference, "Chat Completions".
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from localrun.core import Call, ChatPrompt, Done, Message, ToolCall
from localrun.errors import BadRequest, Unsupported
from localrun.options import OPTIONS, check_option
from localrun.wire.bodies import (
    Part,
    TextRequest,
    content_text,
    decode,
    misplaced,
    no_structure,
    refuse_logprobs,
    refuse_tools,
    required_model,
)
from localrun.wire.faults import Fault
from localrun.wire.streams import SSE_DONE, sse

CONTENT_TYPE = "text/event-stream"


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ResponseFormat(msgspec.Struct):
    type: str | None = None


class _Chat(msgspec.Struct):
    model: str | None = None
    messages: list[_Message] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | float | None = None
    max_completion_tokens: int | float | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | float | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    tools: list[Any] | None = None
    response_format: _ResponseFormat | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, Any] | None = None


_CHAT = msgspec.json.Decoder(_Chat)
# wire name → option; where two names set one option the later row wins.
_OPTION_OF = {
    "max_tokens": "num_predict",
    "max_completion_tokens": "num_predict",
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "stop": "stop",
}
# What people send here because the native routes have it.
_WITHOUT_EFFECT = {"options", "keep_alive", "think", *OPTIONS} - _OPTION_OF.keys()


class ChatCompletionRequest(TextRequest, frozen=True):
    """A request whose stream may end with the usage."""

    include_usage: bool = False


def decode_chat_completions(body: bytes) -> ChatCompletionRequest:
    """The request of POST /v1/chat/completions. Raises BadRequest, Unsupported."""
    wire = decode(_CHAT, body)
    model = required_model(wire.model, "model")
    _refuse(wire, model)
    if not wire.messages:
        raise BadRequest("messages", "[] is too short - 'messages'")
    messages = tuple(
        _message(message, f"messages[{i}]", model) for i, message in enumerate(wire.messages)
    )
    call = Call(model=model, prompt=ChatPrompt(messages), options=_options(wire))
    usage = wire.stream_options is not None and wire.stream_options.include_usage is True
    ignored = tuple(misplaced(body, _WITHOUT_EFFECT))
    return ChatCompletionRequest(call, wire.stream is True, ignored, usage)


def _options(wire: _Chat) -> dict[str, Any]:
    # OpenAI's defaults, not the model's: what its clients expect when they send nothing.
    options: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    for field, option in _OPTION_OF.items():
        value = getattr(wire, field)
        if value is not None:
            options[option] = check_option(option, value, path=field)
    return options


def _refuse(wire: _Chat, model: str) -> None:
    refuse_logprobs(wire.logprobs, wire.top_logprobs)
    refuse_tools(wire.tools, model)
    if wire.n not in (None, 1):
        raise BadRequest("n", "only one choice per request is available; send n requests")
    if wire.logit_bias:
        raise BadRequest("logit_bias", "token biases are not available")
    kind = (wire.response_format and wire.response_format.type) or "text"
    if kind.strip().lower() in ("json_object", "json_schema"):
        raise no_structure("response_format")
    if wire.reasoning_effort not in (None, "", "none"):
        raise Unsupported(model, "thinking")


def _message(wire: _Message, path: str, model: str) -> Message:
    if wire.content is None and wire.tool_calls is None:
        raise BadRequest(f"{path}.content", "invalid message content type: null")
    role = wire.role.strip().lower()
    return Message(
        role="system" if role == "developer" else role,
        content=content_text(wire.content, f"{path}.content", model),
        thinking=wire.reasoning or "",
        tool_calls=tuple(
            ToolCall(call.function.name, _arguments(call, f"{path}.tool_calls[{i}]"), call.id or "")
            for i, call in enumerate(wire.tool_calls or ())
        ),
        tool_name=(wire.name or "") if role == "tool" else "",
        tool_call_id=wire.tool_call_id or "",
    )


def _arguments(call: _ToolCall, path: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(
            f"{path}.function.arguments", "invalid tool call arguments: not a JSON object"
        ) from None


_encode = msgspec.json.Encoder().encode
# Clients use it to notice that the backend changed; ours never claims to be deterministic by it.
_FINGERPRINT = "fp_localrun"


class OpenAIWriter:
    """Writes one answer: `delta` and `final` as events of a stream, or `whole` as one object.

    The id and the time are the same throughout; the role stands in the first delta only.
    """

    content_type = CONTENT_TYPE

    def __init__(
        self,
        model: str,
        *,
        include_usage: bool = False,
        clock_s: Callable[[], float] = time.time,
        completion_id: str | None = None,
    ) -> None:
        self._head = {
            "id": completion_id or f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(clock_s()),
            "model": model,
            "system_fingerprint": _FINGERPRINT,
        }
        self._include_usage = include_usage
        self._has_role = False
        self._before = b"data: " + _encode(self._head)[:-1] + b',"choices":[{"index":0,"delta":{'
        self._role = b'"role":"assistant",'
        self._after = b'},"finish_reason":null}]}\n\n'

    def delta(self, text: str) -> bytes:
        """An event with a piece of the answer."""
        role = b"" if self._has_role else self._role
        self._has_role = True
        return b"".join((self._before, role, b'"content":', _encode(text), self._after))

    def final(self, done: Done) -> bytes:
        """What ends a stream: the finish chunk, the usage if asked for, `[DONE]`."""
        first = b"" if self._has_role else self.delta("")
        choice = {"index": 0, "delta": {}, "finish_reason": _finish_reason(done)}
        events = [first, sse(_encode(self._head | {"choices": [choice]}))]
        if self._include_usage:
            events.append(sse(_encode(self._head | {"choices": [], "usage": _usage(done)})))
        return b"".join((*events, SSE_DONE))

    def whole(self, text: str, done: Done) -> bytes:
        """The whole answer as one completion object."""
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(done)}
        head = self._head | {"object": "chat.completion"}
        return _encode(head | {"choices": [choice], "usage": _usage(done)}) + b"\n"

    def failure(self, fault: Fault) -> bytes:
        """The last event of a stream that cannot be finished; no `[DONE]` follows."""
        return sse(fault.openai())


def _finish_reason(done: Done) -> str:
    return "length" if done.reason == "length" else "stop"


def _usage(done: Done) -> dict[str, Any]:
    usage = done.usage
    return {
        "prompt_tokens": usage.prompt_count,
        "completion_tokens": usage.completion_count,
        "total_tokens": usage.prompt_count + usage.completion_count,
        "prompt_tokens_details": {"cached_tokens": usage.cached_count},
    }


class ModelEntry(msgspec.Struct, frozen=True):
    """A model of `/v1/models`; `created` is unix time in seconds."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


def encode_model(entry: ModelEntry) -> bytes:
    """One model object."""
    return _encode(entry) + b"\n"


def encode_models(entries: list[ModelEntry]) -> bytes:
    """The list of models; `data` is never null."""
    return _encode({"object": "list", "data": entries}) + b"\n"
