"""Ollama's dialect of `generate` and `chat`: events → JSON, as lines of a stream or one object.

Knows neither URLs nor statuses and does no I/O; the clock of `created_at` is passed in.
Source: Ollama `api/types.go`, `server/routes.go`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from localrun.core import Choice, Delta, Done, TextDelta, ThinkingDelta, TokenLogprob
from localrun.wire.faults import Fault
from localrun.wire.logprobs import native_logprobs
from localrun.wire.streams import ndjson
from localrun.wire.timestamps import rfc3339
from localrun.wire.tools import native_call

CONTENT_TYPE = "application/x-ndjson"

Kind = Literal["generate", "chat"]

_encode = msgspec.json.Encoder().encode


class NativeWriter:
    """Writes one answer: `delta` and `final` as lines of a stream, or `whole` as one object.

    A line costs a few microseconds: everything but the time and the text is encoded once.
    There is one choice only: this dialect has no word for more.
    """

    content_type = CONTENT_TYPE
    has_thinking = True

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

    def begin(self, n_prompt: int) -> bytes:
        """Nothing."""
        return b""

    def delta(self, piece: Delta) -> bytes:
        """A line with a piece of the answer: text, thinking, or a whole call of a tool."""
        if isinstance(piece, TextDelta):
            return self._line(piece.text, b"", piece.logprobs)
        if isinstance(piece, ThinkingDelta):
            return self._line("", b',"thinking":' + _encode(piece.text), piece.logprobs)
        calls = [native_call(piece.call, piece.number)]
        return self._line("", b',"tool_calls":' + _encode(calls), ())

    def _line(self, text: str, more: bytes, entries: Sequence[TokenLogprob]) -> bytes:
        created_at = rfc3339(self._clock_ns()).encode()
        parts = (self._head, created_at, self._before, _encode(text), more, self._after)
        if not entries:
            return b"".join((*parts, b"}\n"))
        return b"".join((*parts, b',"logprobs":', _encode(native_logprobs(entries)), b"}\n"))

    def final(self, done: Done, *, is_last: bool = True) -> bytes:
        """The last line of a stream."""
        return ndjson(self.whole([Choice("", done)]))

    def whole(self, choices: Sequence[Choice]) -> bytes:
        """The whole answer as one object; the reply to a load or unload has no figures."""
        (choice,) = choices
        done = choice.done
        reply: dict[str, Any] = {"model": self._model, "created_at": rfc3339(self._clock_ns())}
        more: dict[str, Any] = {"thinking": choice.thinking} if choice.thinking else {}
        if choice.tool_calls:
            more["tool_calls"] = [native_call(call, i) for i, call in enumerate(choice.tool_calls)]
        if self._kind == "generate":
            reply |= {"response": choice.text} | more
        else:
            reply["message"] = {"role": "assistant", "content": choice.text} | more
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
