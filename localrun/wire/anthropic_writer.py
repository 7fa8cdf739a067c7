"""Anthropic's dialect: events → a message, whole or as named events of a stream.

A message consists of blocks: thinking, text, and one for each call of a tool, in the order in which
they come. Thinking has an empty signature, since nobody here could check one.
Knows neither URLs nor statuses and does no I/O.
Source: Anthropic's API reference, "Messages" and "Streaming messages".
"""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from localrun.core import Choice, Delta, Done, TextDelta, ThinkingDelta, ToolCall, ToolCallDelta
from localrun.wire.faults import Fault
from localrun.wire.streams import named_sse

CONTENT_TYPE = "text/event-stream"

_encode = msgspec.json.Encoder().encode


class AnthropicWriter:
    """Writes one answer: its parts as events of a stream, or `whole` as one message.

    `request_id` names the request in an error. There is one choice only.
    """

    content_type = CONTENT_TYPE

    def __init__(
        self,
        model: str,
        request_id: str,
        *,
        has_thinking: bool = True,
        message_id: str | None = None,
    ) -> None:
        self.has_thinking = has_thinking
        self._request_id = request_id
        self._head = {
            "id": message_id or f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._index = 0
        self._open: type[Delta] | None = None
        self._has_calls = False

    def begin(self, n_prompt: int) -> bytes:
        """The event with the message's head. What of the prompt was cached is known at the end."""
        message: dict[str, Any] = self._head | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(n_prompt, 0, 0),
        }
        return _event("message_start", message=message)

    def delta(self, piece: Delta) -> bytes:
        """The events of a piece, with the end of one block and the start of another around it."""
        if isinstance(piece, ToolCallDelta):
            self._has_calls = True
            block = _call_block(piece.call) | {"input": {}}
            arguments = _encode(piece.call.arguments).decode()
            delta = {"type": "input_json_delta", "partial_json": arguments}
            return b"".join((self._stop(), self._start(piece, block), self._more(delta)))
        if not piece.text:
            return b""
        is_text = isinstance(piece, TextDelta)
        start = b""
        if self._open is not type(piece):
            block = _text_block("") if is_text else _thinking_block("")
            start = self._stop() + self._start(piece, block)
        kind = "text" if is_text else "thinking"
        return start + self._more({"type": f"{kind}_delta", kind: piece.text})

    def _start(self, piece: Delta, block: dict[str, Any]) -> bytes:
        self._open = type(piece)
        return _event("content_block_start", index=self._index, content_block=block)

    def _more(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._index += 1
        return _event("content_block_stop", index=self._index - 1)

    def final(self, done: Done, *, is_last: bool = True) -> bytes:
        """The events that end the last block and the message."""
        delta = _ending(done, has_calls=self._has_calls)
        parts = (
            self._stop(),
            _event("message_delta", delta=delta, usage=_usage_of(done)),
            _event("message_stop"),
        )
        return b"".join(parts)

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole message as one object; `content` is never null."""
        (choice,) = choices
        message: dict[str, Any] = self._head | {"content": _blocks(choice.pieces)}
        message |= _ending(choice.done, has_calls=bool(choice.tool_calls))
        return _encode(message | {"usage": _usage_of(choice.done)}) + b"\n"

    def failure(self, fault: Fault) -> bytes:
        """The last event of a stream that cannot be finished."""
        return named_sse("error", fault.anthropic(self._request_id))


def encode_count(n_tokens: int) -> bytes:
    """The reply of `/v1/messages/count_tokens`."""
    return _encode({"input_tokens": n_tokens}) + b"\n"


def _event(name: str, **fields: Any) -> bytes:
    return named_sse(name, _encode({"type": name, **fields}))


def _blocks(pieces: Sequence[Delta]) -> list[dict[str, Any]]:
    """The same blocks that a stream of these pieces has."""
    blocks: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, ToolCallDelta):
            blocks.append(_call_block(piece.call))
        elif piece.text:
            kind = "thinking" if isinstance(piece, ThinkingDelta) else "text"
            if not blocks or blocks[-1]["type"] != kind:
                blocks.append(_text_block("") if kind == "text" else _thinking_block(""))
            blocks[-1][kind] += piece.text
    return blocks


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thinking_block(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _call_block(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _ending(done: Done, *, has_calls: bool) -> dict[str, str | None]:
    """Why a message has ended, and the stop sequence if it was one."""
    if done.reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if done.stop_text:
        return {"stop_reason": "stop_sequence", "stop_sequence": done.stop_text}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage_of(done: Done) -> dict[str, int]:
    usage = done.usage
    figures = _usage(usage.prompt_count, usage.cached_count, usage.completion_count)
    # Ours: how much of the prompt was left out because the window does not hold it.
    return figures | ({"dropped_tokens": usage.dropped_count} if usage.dropped_count else {})


def _usage(n_prompt: int, n_cached: int, n_completion: int) -> dict[str, int]:
    """As Anthropic counts: what was read from a cache is no input."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_completion,
    }
