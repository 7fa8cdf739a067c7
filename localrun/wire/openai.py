"""OpenAI's dialect: requests for a chat → `Call`, and the objects of models.

Owns the wire names of `/v1/chat/completions` and `/v1/models`, and what the older completions
share with chats. Messages are in `openai_messages`, replies in `openai_writer`. Knows neither URLs
nor statuses and does no I/O. Null means absent. Fields without meaning here are ignored; those that
would change the answer and are not available are refused with their name.
Source: OpenAI's API reference, "Chat Completions".
"""

from typing import Any

import msgspec

from localrun.core import Call, ChatPrompt
from localrun.errors import BadRequest, Unsupported
from localrun.options import check_option
from localrun.wire.bodies import (
    TextRequest,
    decode,
    required_model,
    wanted_logprobs,
    without_effect,
)
from localrun.wire.openai_messages import WireMessage, message_of
from localrun.wire.structure import PLACES, schema_of_response_format
from localrun.wire.thinking import Reasoning, think_of_effort
from localrun.wire.tools import OPENAI_NAME_CHARS, ToolDefinition, chosen, tools_of

# OpenAI's own bound.
MAX_N = 128


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Shared(msgspec.Struct, kw_only=True):
    """Fields that both kinds have."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | float | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | float | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    logit_bias: dict[str, Any] | None = None
    response_format: Any = None


class _Chat(Shared, kw_only=True):
    messages: list[WireMessage] | None = None
    max_completion_tokens: int | float | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    web_search_options: Any = None


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
    "logit_bias": "logit_bias",
}


class CompletionRequest(TextRequest, frozen=True):
    """A request whose stream may end with the usage."""

    include_usage: bool = False


def decode_chat_completions(body: bytes) -> CompletionRequest:
    """The request of POST /v1/chat/completions. Raises BadRequest, Unsupported."""
    wire = decode(_CHAT, body)
    model = required_model(wire.model, "model")
    _refuse(wire, model)
    if not wire.messages:
        raise BadRequest("messages", "[] is too short - 'messages'")
    messages = tuple(
        message_of(message, f"messages[{i}]", model) for i, message in enumerate(wire.messages)
    )
    tools, choice = chosen(
        tools_of(wire.tools, OPENAI_NAME_CHARS), wire.tool_choice, wire.parallel_tool_calls
    )
    think = think_of_effort(wire.reasoning_effort, wire.reasoning)
    call = Call(
        model,
        (ChatPrompt(messages, tools=tools, choice=choice, think=think),),
        options_of(wire),
        n_each=n_each(wire),
        top_logprobs=wanted_logprobs(wire.logprobs, wire.top_logprobs, "top_logprobs"),
        schema=schema_of_response_format(wire.response_format),
        places=PLACES,
    )
    return request_of(wire, call, body)


def request_of(wire: Shared, call: Call, body: bytes) -> CompletionRequest:
    """`call` with what `wire` wants of the reply."""
    usage = wire.stream_options is not None and wire.stream_options.include_usage is True
    ignored = tuple(without_effect(body, wire))
    return CompletionRequest(call, wire.stream is True, ignored, usage)


def n_each(wire: Shared) -> int:
    """Choices for each prompt. Raises BadRequest."""
    if wire.n is None:
        return 1
    if not 1 <= wire.n <= MAX_N:
        raise BadRequest("n", f"must be between 1 and {MAX_N}")
    return wire.n


def options_of(wire: Shared) -> dict[str, Any]:
    """The options that are set, checked. Raises BadRequest."""
    # OpenAI's defaults, not the model's: what its clients expect when they send nothing.
    options: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    for field, option in _OPTION_OF.items():
        value = getattr(wire, field, None)
        if value is not None:
            options[option] = check_option(option, value, path=field, cuts=False)
    return options


def _refuse(wire: _Chat, model: str) -> None:
    if wire.functions and wire.function_call != "none":
        raise BadRequest("functions", "the older form is not available; use `tools`")
    if wire.function_call not in (None, "none", "auto"):
        raise BadRequest("function_call", "the older form is not available; use `tool_choice`")
    if any(kind != "text" for kind in wire.modalities or ()):
        raise Unsupported(model, "audio", "modalities")
    if wire.web_search_options is not None:
        raise BadRequest("web_search_options", "this server does not search the web; leave it out")
    if wire.top_logprobs and not wire.logprobs:
        raise BadRequest("top_logprobs", "needs `logprobs` to be true")


_encode = msgspec.json.Encoder().encode


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
