"""Asks any OpenAI-compatible server for one streamed answer, and says when its tokens came.

The client shares the machine's cores with the server that it measures, so it is one asyncio
protocol on a connection of its own: about 10 µs a token. A token's time is when the bytes that
carry it arrive; the number of tokens is the one that the server counts in its usage.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec

from cli.bench.answers import Answer, Endpoint, Outcome, Request, Unanswered
from cli.bench.sse import EventReader, error_text

# A hang guard: one answer of some hundred tokens on a slow machine under load.
LIMIT_S = 300.0


OnText = Callable[[], None]


async def ask(
    endpoint: Endpoint,
    request: Request,
    *,
    began: float | None = None,
    on_text: OnText | None = None,
    limit_s: float = LIMIT_S,
) -> Outcome:
    """One greedy streamed answer; whatever goes wrong is an outcome too.

    The time runs from `began`, by default now. `on_text` is called with each piece.
    """
    loop = asyncio.get_running_loop()
    began = time.perf_counter() if began is None else began
    stream = _Stream(_encode(endpoint, request), loop.create_future(), on_text)
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(limit_s):
            transport, _ = await loop.create_connection(
                lambda: stream, endpoint.host, endpoint.port
            )
            await stream.over
    except TimeoutError:
        return Unanswered(began, time.perf_counter(), f"it took longer than {limit_s:g} s")
    except (OSError, ValueError) as error:
        return Unanswered(began, time.perf_counter(), _reason(error))
    finally:
        stream.over.cancel()  # what the connection's end says after this is of no interest
        if transport is not None:
            transport.close()
    usage = stream.usage
    if usage is None:
        return Unanswered(began, stream.ended, "the server sent no usage")
    if not stream.times:
        why = f"; the server ended it with `{stream.finish_reason}`" if stream.finish_reason else ""
        return Unanswered(began, stream.ended, f"the answer has no text{why}")
    return Answer(
        began,
        tuple(stream.times),
        stream.ended,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.n_cached,
    )


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _encode(endpoint: Endpoint, request: Request) -> bytes:
    body = json.dumps(
        {
            "model": endpoint.model,
            **_prompt(endpoint, request),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": request.n_tokens,
            "temperature": 0,
            **endpoint.extra,
        }
    ).encode()
    key = f"Authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    head = (
        f"POST {endpoint.path} HTTP/1.1\r\n"
        f"Host: {host}:{endpoint.port}\r\n{key}"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _prompt(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    if not endpoint.path.endswith("/chat/completions"):
        return {"prompt": "\n\n".join(filter(None, (request.system, request.prompt)))}
    turns = (("system", request.system), ("user", request.prompt))
    return {"messages": [{"role": role, "content": text} for role, text in turns if text]}


class _Delta(msgspec.Struct):
    # Thinking is text that somebody waits for as well; servers spell it in two ways.
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def has_text(self) -> bool:
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def n_cached(self) -> int:
        details = self.prompt_tokens_details
        return (details and details.cached_tokens) or 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    # How some servers mark an event that is an error as a whole.
    object: Any = None
    type: Any = None

    @property
    def is_error(self) -> bool:
        return self.error is not None or "error" in (self.object, self.type)


_decode: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode


class _Stream(asyncio.Protocol):
    """Sends one request and keeps what its response says; `over` is set when it has ended."""

    def __init__(
        self, request: bytes, over: "asyncio.Future[None]", on_text: OnText | None
    ) -> None:
        self.over = over
        self.times: list[float] = []
        self.usage: _Usage | None = None
        self.ended = 0.0
        self.finish_reason = ""
        self._request = request
        self._on_text = on_text
        self._reader = EventReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def data_received(self, data: bytes) -> None:
        if self.over.done():
            return
        now = time.perf_counter()
        try:
            for event in self._reader.feed(data):
                self._take(event, now)
        except ValueError as error:
            self._fail(f"the answer is not understood: {error}")
        if self._reader.is_over:
            self._end(None)

    def _take(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self._finish(now)
            return
        chunk = _decode(event)
        if chunk.is_error:
            self._fail(f"the server said: {error_text(event)}")
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.choices and chunk.choices[0].finish_reason:
            self.finish_reason = chunk.choices[0].finish_reason
        if chunk.choices and chunk.choices[0].has_text:
            self.times.append(now)
            if self._on_text is not None:
                self._on_text()

    def _end(self, exc: Exception | None) -> None:
        """The body or the connection has ended; not every server says `[DONE]` before."""
        if self._reader.status not in (0, 200):
            self._fail(self._reader.refusal())
        elif self.usage is not None:
            self._finish(time.perf_counter())
        elif self.times:
            self._fail(f"the stream broke off after {len(self.times)} pieces")
        else:
            self._fail(f"the connection ended without an answer{f' ({exc})' if exc else ''}")

    def _finish(self, now: float) -> None:
        if not self.over.done():
            self.ended = now
            self.over.set_result(None)

    def _fail(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_exception(ValueError(reason))
