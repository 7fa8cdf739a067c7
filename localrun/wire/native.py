"""Ollama's dialect of `generate` and `chat`: request bodies → `Call`, events → JSON.

Owns the wire names of these two routes. Knows neither URLs nor statuses, does no I/O; the clock of
`created_at` is passed in. Every key may be null, which means absent; unknown keys are ignored.
Source: Ollama `api/types.go`, `server/routes.go`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from localrun.core import (
    Call,
    ChatPrompt,
    Choice,
    Delta,
    Done,
    FillPrompt,
    Message,
    Prompt,
    RawPrompt,
    TextDelta,
    ToolCall,
)
from localrun.errors import BadRequest, Unsupported
from localrun.wire.bodies import (
    Part,
    TextRequest,
    checked_options,
    content_text,
    decode,
    keep_alive_s,
    refuse_images,
    refuse_tools,
    required_model,
    wanted_logprobs,
    without_effect,
)
from localrun.wire.faults import Fault
from localrun.wire.logprobs import native_logprobs
from localrun.wire.streams import ndjson
from localrun.wire.structure import schema_of_format
from localrun.wire.timestamps import rfc3339

CONTENT_TYPE = "application/x-ndjson"

Kind = Literal["generate", "chat"]

_THINK_LEVELS = ("low", "medium", "high", "max")


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


class _Function(msgspec.Struct):
    name: str
    arguments: dict[str, Any] | None = None


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str | None = None


class NativeMessage(msgspec.Struct):
    """A message as Ollama's clients send it and as stored in models."""

    role: str
    content: str | list[Part] | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Chat(_Shared, kw_only=True):
    messages: list[NativeMessage] | None = None
    tools: list[Any] | None = None


_GENERATE = msgspec.json.Decoder(_Generate)
_CHAT = msgspec.json.Decoder(_Chat)


def decode_generate(body: bytes) -> TextRequest:
    """The request of POST /api/generate. Raises BadRequest, Unsupported."""
    wire = decode(_GENERATE, body)
    model = required_model(wire.model)
    _refuse_shared(wire, model)
    refuse_images(wire.images, model)
    if wire.raw and (wire.template or wire.system or wire.context):
        raise BadRequest("", "raw mode does not support template, system, or context")
    return _request(wire, body, _generate_prompt(wire), "generate")


def decode_chat(body: bytes) -> TextRequest:
    """The request of POST /api/chat. Raises BadRequest, Unsupported."""
    wire = decode(_CHAT, body)
    model = required_model(wire.model)
    _refuse_shared(wire, model)
    refuse_tools(wire.tools, model)
    messages = tuple(
        message_of(message, f"messages[{i}]", model)
        for i, message in enumerate(wire.messages or ())
    )
    return _request(wire, body, ChatPrompt(messages) if messages else None, "chat")


def message_of(wire: NativeMessage, path: str, model: str) -> Message:
    """The message as a value. Raises BadRequest below `path`, Unsupported for images."""
    refuse_images(wire.images, model)
    return Message(
        role=wire.role.strip().lower(),
        content=content_text(wire.content, f"{path}.content", model),
        thinking=wire.thinking or "",
        tool_calls=tuple(
            ToolCall(call.function.name, call.function.arguments or {}, call.id or "")
            for call in wire.tool_calls or ()
        ),
        tool_name=wire.tool_name or "",
        tool_call_id=wire.tool_call_id or "",
    )


def _generate_prompt(wire: _Generate) -> Prompt | None:
    if wire.raw and wire.suffix:
        raise BadRequest("suffix", "raw mode sends the prompt as it is; leave one of them out")
    if wire.suffix:
        # A cursor at the beginning of a file has no text before it.
        return FillPrompt(wire.prompt or "", wire.suffix)
    if not wire.prompt:
        return None
    if wire.raw:
        return RawPrompt(wire.prompt)
    return ChatPrompt((Message("user", wire.prompt),), context=wire.context or ())


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
    return TextRequest(call, wire.stream is not False, tuple(ignored))


def _refuse_shared(wire: _Shared, model: str) -> None:
    match wire.think:
        case None | False:
            return
        case str() as level if level not in _THINK_LEVELS:
            raise BadRequest(
                "",
                f'invalid think value: "{level[:40]}" '
                '(must be "high", "medium", "low", "max", true, or false)',
            )
        case True | str():
            raise Unsupported(model, "thinking")
    raise BadRequest(
        "", 'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'
    )


_encode = msgspec.json.Encoder().encode


class NativeWriter:
    """Writes one answer: `delta` and `final` as lines of a stream, or `whole` as one object.

    A line costs a few microseconds: everything but the time and the text is encoded once.
    There is one choice only: this dialect has no word for more.
    """

    content_type = CONTENT_TYPE

    def __init__(self, model: str, kind: Kind, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._model = model
        self._kind = kind
        self._clock_ns = clock_ns
        head = b'{"model":' + _encode(model) + b',"created_at":"'
        if kind == "generate":
            before, after = b'","response":', b',"done":false'
        else:
            before = b'","message":{"role":"assistant","content":'
            after = b'},"done":false'
        self._head, self._before, self._after = head, before, after

    def delta(self, piece: Delta) -> bytes:
        """A line with a piece of the answer."""
        assert isinstance(piece, TextDelta)
        created_at = rfc3339(self._clock_ns()).encode()
        parts = (self._head, created_at, self._before, _encode(piece.text), self._after)
        if not piece.logprobs:
            return b"".join((*parts, b"}\n"))
        logprobs = _encode(native_logprobs(piece.logprobs))
        return b"".join((*parts, b',"logprobs":', logprobs, b"}\n"))

    def final(self, done: Done, *, is_last: bool = True) -> bytes:
        """The last line of a stream."""
        return ndjson(self.whole([Choice("", done)]))

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole answer as one object; the reply to a load or unload has no figures."""
        (choice,) = choices
        text, done = choice.text, choice.done
        reply: dict[str, Any] = {"model": self._model, "created_at": rfc3339(self._clock_ns())}
        if self._kind == "generate":
            reply["response"] = text
        else:
            reply["message"] = {"role": "assistant", "content": text}
        reply["done"] = True
        reply["done_reason"] = done.reason
        if done.reason in ("stop", "length"):
            reply |= _figures(done)
        if choice.logprobs:
            reply["logprobs"] = native_logprobs(choice.logprobs)
        return _encode(reply)

    def failure(self, fault: Fault) -> bytes:
        """The last line of a stream that cannot be finished."""
        return ndjson(fault.native())


def _figures(done: Done) -> dict[str, Any]:
    usage = done.usage
    figures = {
        "context": done.context,
        "total_duration": usage.total_ns,
        "load_duration": usage.load_ns,
        "prompt_eval_count": usage.prompt_count,
        # Ours: how much of the prompt was already in memory; the count above includes it.
        "prompt_cached_count": usage.cached_count,
        # Ours: the window was too small for the prompt, and by how many tokens it was shortened.
        "truncated": usage.dropped_count > 0,
        "prompt_dropped_count": usage.dropped_count,
        "prompt_eval_duration": usage.prompt_ns,
        "eval_count": usage.completion_count,
        "eval_duration": usage.completion_ns,
    }
    return {name: value for name, value in figures.items() if value}
