"""OpenAI's dialect: events → completion objects and chunks, of chats and of older completions.

What a model thinks has two names among clients, `reasoning` and `reasoning_content`: a chat has
both, and older completions have no place for it. Content beside calls is null where there is none,
as OpenAI has it; in a stream it is "" like anywhere else, since clients join its pieces.
Knows neither URLs nor statuses and does no I/O; the clock is passed in.
Source: OpenAI's API reference, "Chat Completions" and "Completions".
"""

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from localrun.core import Choice, Delta, Done, TextDelta, ThinkingDelta, TokenLogprob, ToolCallDelta
from localrun.wire.faults import Fault
from localrun.wire.logprobs import CompletionLogprobs, chat_logprobs
from localrun.wire.streams import SSE_DONE, sse
from localrun.wire.tools import openai_call

CONTENT_TYPE = "text/event-stream"

Kind = Literal["chat", "completion"]

_encode = msgspec.json.Encoder().encode
# Clients use it to notice that the backend changed; ours never claims to be deterministic by it.
_FINGERPRINT = "fp_localrun"


class _Shape(NamedTuple):
    """How one kind is spelled: `first`, `next` and `after` stand around the text of a piece."""

    id_prefix: str
    whole: str
    chunk: str
    first: bytes
    next: bytes
    after: bytes
    end: dict[str, Any]


_SHAPES: dict[Kind, _Shape] = {
    "chat": _Shape(
        "chatcmpl",
        "chat.completion",
        "chat.completion.chunk",
        b',"delta":{"role":"assistant","content":',
        b',"delta":{"content":',
        b"}",
        {"delta": {}},
    ),
    "completion": _Shape(
        "cmpl",
        "text_completion",
        "text_completion",
        b',"text":',
        b',"text":',
        b"",
        {"text": ""},
    ),
}

_GOES_ON = b',"finish_reason":null}]}\n\n'


class OpenAIWriter:
    """Writes one answer: `delta` and `final` as events of a stream, or `whole` as one object.

    The id and the time are the same throughout; a chat's role stands in the first delta of each
    choice only. `n_each` choices belong to one prompt. `has_logprobs` when they were asked for.
    """

    content_type = CONTENT_TYPE

    def __init__(
        self,
        model: str,
        kind: Kind = "chat",
        *,
        n_each: int = 1,
        include_usage: bool = False,
        has_logprobs: bool = False,
        clock_s: Callable[[], float] = time.time,
        completion_id: str | None = None,
    ) -> None:
        self._kind = kind
        self.has_thinking = kind == "chat"
        self._n_each = n_each
        self._include_usage = include_usage
        self._has_logprobs = has_logprobs
        # The older kind counts characters, for each choice.
        self._completion_logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(
            CompletionLogprobs
        )
        self._shape = shape = _SHAPES[kind]
        self._head = {
            "id": completion_id or f"{shape.id_prefix}-{secrets.token_hex(12)}",
            "object": shape.chunk,
            "created": int(clock_s()),
            "model": model,
            "system_fingerprint": _FINGERPRINT,
        }
        self._begun: set[int] = set()
        self._with_calls: set[int] = set()
        self._dones: list[Done] = []
        self._before = b"data: " + _encode(self._head)[:-1] + b',"choices":[{"index":'

    def begin(self, n_prompt: int) -> bytes:
        """Nothing: the first chunk is that of the first piece."""
        return b""

    def delta(self, piece: Delta) -> bytes:
        """An event with a piece of a choice."""
        if not isinstance(piece, TextDelta):
            return self._more(piece)
        index, shape = piece.index, self._shape
        between = shape.next if index in self._begun else shape.first
        self._begun.add(index)
        parts = (self._before, b"%d" % index, between, _encode(piece.text), shape.after)
        return b"".join((*parts, *self._entries(piece), _GOES_ON))

    def _more(self, piece: ThinkingDelta | ToolCallDelta) -> bytes:
        """The event of a piece that is no text; only chats have those."""
        delta: dict[str, Any] = {}
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            delta = {"role": "assistant", "content": ""}
        head = (self._before, b"%d" % piece.index, b',"delta":')
        if isinstance(piece, ThinkingDelta):
            delta |= _reasoning(piece.text)
            return b"".join((*head, _encode(delta), *self._entries(piece), _GOES_ON))
        self._with_calls.add(piece.index)
        delta["tool_calls"] = [{"index": piece.number} | openai_call(piece.call)]
        return b"".join((*head, _encode(delta), _GOES_ON))

    def _entries(self, piece: TextDelta | ThinkingDelta) -> tuple[bytes, ...]:
        """The piece's log-probabilities, if it has any."""
        if not piece.logprobs:
            return ()
        return (b',"logprobs":', _encode(self._logprobs(piece.index, piece.logprobs)))

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._kind == "chat":
            return chat_logprobs(entries)
        return self._completion_logprobs[index].object_of(entries)

    def final(self, done: Done, *, is_last: bool = True) -> bytes:
        """The finish chunk of a choice; after the last one the usage if asked for, and `[DONE]`."""
        first = b"" if done.index in self._begun else self.delta(TextDelta("", done.index))
        reason = _finish_reason(done, has_calls=done.index in self._with_calls)
        choice = {"index": done.index, **self._shape.end, "finish_reason": reason}
        chunk = self._head | {"choices": [choice]} | _mark([done])
        events = [first, sse(_encode(chunk))]
        self._dones.append(done)
        if is_last and self._include_usage:
            usage = _usage(self._dones, self._n_each)
            events.append(sse(_encode(self._head | {"choices": [], "usage": usage})))
        if is_last:
            events.append(SSE_DONE)
        return b"".join(events)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole answer as one completion object."""
        reply = self._head | {
            "object": self._shape.whole,
            "choices": [self._whole_choice(choice) for choice in choices],
            "usage": _usage([choice.done for choice in choices], self._n_each),
        }
        reply |= _mark([choice.done for choice in choices])
        return _encode(reply) + b"\n"

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text: dict[str, Any] = {"text": choice.text}
        if self._kind == "chat":
            text = {"message": _message(choice)}
        index = choice.done.index
        reason = _finish_reason(choice.done, has_calls=bool(choice.tool_calls))
        logprobs: dict[str, Any] = {}
        if self._has_logprobs:
            logprobs["logprobs"] = self._logprobs(index, choice.logprobs)
        return {"index": index, **text, **logprobs, "finish_reason": reason}

    def failure(self, fault: Fault) -> bytes:
        """The last event of a stream that cannot be finished; no `[DONE]` follows."""
        return sse(fault.openai())


def _message(choice: Choice) -> dict[str, Any]:
    calls = [openai_call(call) for call in choice.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if choice.thinking:
        message |= _reasoning(choice.thinking)
    if calls:
        message |= {"content": choice.text or None, "tool_calls": calls}
    return message


def _reasoning(text: str) -> dict[str, str]:
    return {"reasoning": text, "reasoning_content": text}


def _finish_reason(done: Done, *, has_calls: bool) -> str:
    if done.reason == "length":
        return "length"
    return "tool_calls" if has_calls else "stop"


def _mark(dones: Sequence[Done]) -> dict[str, Any]:
    """Ours: says that the window was too small for a prompt; absent otherwise."""
    return {"truncated": True} if any(done.usage.dropped_count for done in dones) else {}


def _usage(dones: Sequence[Done], n_each: int) -> dict[str, Any]:
    """The sum of all choices; a prompt counts once, as its first choice has found it."""
    prompts = [done.usage for done in dones if done.index % n_each == 0]
    n_prompt = sum(usage.prompt_count for usage in prompts)
    n_completion = sum(done.usage.completion_count for done in dones)
    details = {"cached_tokens": sum(usage.cached_count for usage in prompts)}
    if n_dropped := sum(usage.dropped_count for usage in prompts):
        details["dropped_tokens"] = n_dropped
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
        "prompt_tokens_details": details,
    }
