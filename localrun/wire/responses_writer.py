"""OpenAI's dialect of responses: events → a response, whole or as named events of a stream.

A response consists of items: reasoning, messages, and one for each call, in the order in which
they come. The events of an item tell how it grows, and at the end the item as it stands in the
response. What is thought has its place in the summary of a reasoning item, where clients show it.
Log-probabilities are those of a message's text; tokens of reasoning and calls have none.
Knows neither URLs nor statuses and does no I/O; the clock is passed in.
Source: OpenAI's API reference, "Responses" and "Streaming events"; Ollama `openai/responses.go`.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from localrun.core import Choice, Delta, Done, TextDelta, ToolCall, ToolCallDelta
from localrun.wire.faults import Fault
from localrun.wire.logprobs import chat_logprobs
from localrun.wire.streams import named_sse

CONTENT_TYPE = "text/event-stream"

_encode = msgspec.json.Encoder().encode


def encode_input_tokens(n_tokens: int) -> bytes:
    """The reply of `/v1/responses/input_tokens`."""
    return _encode({"object": "response.input_tokens", "input_tokens": n_tokens}) + b"\n"


class _Kind(NamedTuple):
    """How an item that grows by text is spelled: `part` and `text` begin names of events."""

    prefix: str
    part: str
    text: str
    place: str


_MESSAGE = _Kind("msg", "content_part", "output_text", "content_index")
_REASONING = _Kind("rs", "reasoning_summary_part", "reasoning_summary_text", "summary_index")


class _Growing:
    """A message or reasoning that is not at its end: its one part, and where it stands."""

    def __init__(self, kind: _Kind, key: str, output_index: int) -> None:
        self.kind = kind
        self.id = f"{kind.prefix}_{key}{output_index}"
        self.item_place = {"item_id": self.id, "output_index": output_index}
        self.part_place = self.item_place | {kind.place: 0}
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def grow(self, text: str, logprobs: Sequence[dict[str, Any]]) -> None:
        """One piece more."""
        self._texts.append(text)
        self._logprobs += logprobs

    def part(self) -> dict[str, Any]:
        """The part as it is now."""
        text = "".join(self._texts)
        if self.kind is _REASONING:
            return {"type": "summary_text", "text": text}
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def item(self, status: str, *, has_encrypted: bool) -> dict[str, Any]:
        """The item as it is now; without its part before that has begun."""
        parts = [] if status == "in_progress" else [self.part()]
        item: dict[str, Any] = {"id": self.id, "status": status}
        if self.kind is _MESSAGE:
            return item | {"type": "message", "role": "assistant", "content": parts}
        item |= {"type": "reasoning", "summary": parts}
        # Clients that keep a conversation themselves send back only reasoning that has it.
        return item | ({"encrypted_content": "".join(self._texts)} if has_encrypted else {})


class ResponsesWriter:
    """Writes one answer: its parts as events of a stream, or `whole` as one response.

    `echo`, `namespaces` and `has_encrypted` are those of the request. Ids and the time of the
    beginning are the same throughout. There is one choice only.
    """

    content_type = CONTENT_TYPE
    has_thinking = True

    def __init__(
        self,
        model: str,
        echo: Mapping[str, Any],
        *,
        namespaces: Mapping[str, tuple[str, str]] | None = None,
        has_encrypted: bool = False,
        clock_s: Callable[[], float] = time.time,
        key: str | None = None,
    ) -> None:
        self._namespaces = namespaces or {}
        self._has_encrypted = has_encrypted
        self._clock_s = clock_s
        self._key = key or secrets.token_hex(12)
        self._head = {
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": int(clock_s()),
            "model": model,
            **echo,
        }
        self._n_events = 0
        self._output: list[dict[str, Any]] = []
        self._open: _Growing | None = None

    def begin(self, n_prompt: int) -> bytes:
        """The events that announce the response."""
        response = self._response("in_progress")
        names = ("response.created", "response.in_progress")
        return b"".join(self._event(name, response=response) for name in names)

    def delta(self, piece: Delta) -> bytes:
        """The events of a piece, with the end of one item and the start of another around it."""
        if isinstance(piece, ToolCallDelta):
            return self._end_item() + self._call(piece.call)
        if not piece.text:
            # It brings the tokens of markup, which are no part of any text.
            return b""
        kind = _MESSAGE if isinstance(piece, TextDelta) else _REASONING
        start, item = self._growing(kind)
        logprobs = chat_logprobs(piece.logprobs)["content"] if kind is _MESSAGE else []
        item.grow(piece.text, logprobs)
        fields = item.part_place | {"delta": piece.text}
        if kind is _MESSAGE:
            fields["logprobs"] = logprobs
        return start + self._event(f"response.{kind.text}.delta", **fields)

    def _growing(self, kind: _Kind) -> tuple[bytes, _Growing]:
        """(the events that lead to it, the open item of that kind)."""
        if self._open is not None and self._open.kind is kind:
            return b"", self._open
        ended = self._end_item()
        self._open = item = _Growing(kind, self._key, len(self._output))
        whole = item.item("in_progress", has_encrypted=False)
        added = self._item_event("added", whole)
        part = self._event(f"response.{kind.part}.added", **item.part_place, part=item.part())
        return ended + added + part, item

    def _end_item(self, status: str = "completed") -> bytes:
        """Ends the open item, if there is one."""
        if self._open is None:
            return b""
        item, kind = self._open, self._open.kind
        self._open = None
        part = item.part()
        done = {"text": part["text"]}
        if kind is _MESSAGE:
            done["logprobs"] = part["logprobs"]
        events = (
            self._event(f"response.{kind.text}.done", **item.part_place, **done),
            self._event(f"response.{kind.part}.done", **item.part_place, part=part),
            self._done(item.item(status, has_encrypted=self._has_encrypted)),
        )
        return b"".join(events)

    def _call(self, call: ToolCall) -> bytes:
        """All events of a call: it comes as a whole."""
        namespace, name = self._namespaces.get(call.name, ("", call.name))
        item_id, arguments = f"fc_{self._key}{len(self._output)}", _encode(call.arguments).decode()
        item: dict[str, Any] = {
            "id": item_id,
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": name,
            "arguments": arguments,
        }
        if namespace:
            item["namespace"] = namespace
        place = {"item_id": item_id, "output_index": len(self._output)}
        name = "response.function_call_arguments"
        events = (
            self._item_event("added", item | {"status": "in_progress", "arguments": ""}),
            self._event(f"{name}.delta", **place, delta=arguments),
            self._event(f"{name}.done", **place, arguments=arguments),
            self._done(item),
        )
        return b"".join(events)

    def _done(self, item: dict[str, Any]) -> bytes:
        """The end of an item, which is part of the response from now on."""
        event = self._item_event("done", item)
        self._output.append(item)
        return event

    def _item_event(self, name: str, item: dict[str, Any]) -> bytes:
        return self._event(
            f"response.output_item.{name}", output_index=len(self._output), item=item
        )

    def _event(self, name: str, **fields: Any) -> bytes:
        number = self._n_events
        self._n_events += 1
        return named_sse(name, _encode({"type": name, "sequence_number": number, **fields}))

    def final(self, done: Done, *, is_last: bool = True) -> bytes:
        """The events that end the last item and the response."""
        status = _status(done)
        ended = self._finish(status)
        return ended + self._event(f"response.{status}", response=self._response(status, done))

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole response as one object, with the items that a stream has."""
        (choice,) = choices
        for piece in choice.pieces:
            self.delta(piece)
        status = _status(choice.done)
        self._finish(status)
        return _encode(self._response(status, choice.done)) + b"\n"

    def _finish(self, status: str) -> bytes:
        """Ends the last item. An answer of nothing is an empty message."""
        start = b""
        if self._open is None and not self._output:
            start, _ = self._growing(_MESSAGE)
        return start + self._end_item(status)

    def failure(self, fault: Fault) -> bytes:
        """The last events of a stream that cannot be finished: the state, and a client's error."""
        if self._open is not None:
            item = self._open.item("incomplete", has_encrypted=self._has_encrypted)
            self._output.append(item)
        code = "server_error" if fault.kind == "api_error" else "invalid_prompt"
        response = self._response("failed")
        response["error"] = {"code": code, "message": fault.message}
        error = {"code": fault.code, "message": fault.message, "param": fault.path or None}
        return b"".join(
            (
                self._event("response.failed", response=response),
                # OpenAI's reference has the fields at the top, its server inside.
                self._event("error", **error, error={"type": fault.kind, **error}),
            )
        )

    def _response(self, status: str, done: Done | None = None) -> dict[str, Any]:
        is_cut = status == "incomplete"
        response = self._head | {
            "status": status,
            "completed_at": int(self._clock_s()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output,
            "usage": None if done is None else _usage(done),
        }
        if done is not None and done.usage.dropped_count:
            # Ours: says that the window was too small for the prompt; absent otherwise.
            response["truncated"] = True
        return response


def _status(done: Done) -> str:
    return "incomplete" if done.reason == "length" else "completed"


def _usage(done: Done) -> dict[str, Any]:
    """Thinking is not counted apart: its tokens are among those of the output."""
    usage = done.usage
    details = {"cached_tokens": usage.cached_count, "cache_write_tokens": 0}
    if usage.dropped_count:
        details["dropped_tokens"] = usage.dropped_count
    return {
        "input_tokens": usage.prompt_count,
        "input_tokens_details": details,
        "output_tokens": usage.completion_count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_count + usage.completion_count,
    }
