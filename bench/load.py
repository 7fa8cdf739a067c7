"""A closed-loop client for any OpenAI-compatible server, and the figures of what it saw.

The client shares the machine's cores with the server it measures, so it is one asyncio protocol
that cuts the bytes into events itself: about 10 µs a token. A token's time is when the bytes that
carry it arrive; the number of tokens is the one that the server counts in its usage.
"""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

# A hang guard: one answer of some hundred tokens on a slow machine under load.
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers and what its requests carry besides the prompt."""

    host: str
    port: int
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer; times in seconds of `time.perf_counter`, one per piece of text."""

    began: float
    times: tuple[float, ...]
    ended: float
    n_prompt: int
    n_tokens: int

    @property
    def ttft_s(self) -> float:
        """From before the connection to the first text."""
        return self.times[0] - self.began

    @property
    def decode_rate(self) -> float:
        """Tokens per second between the first and the last text."""
        return (self.n_tokens - 1) / (self.times[-1] - self.times[0])

    @property
    def whole_rate(self) -> float:
        """Tokens per second from the connection to the end."""
        return self.n_tokens / (self.ended - self.began)

    @property
    def gaps_s(self) -> Iterator[float]:
        """Pauses between one piece of text and the next."""
        return (b - a for a, b in zip(self.times, self.times[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement of one server: the medians or percentiles over its answers."""

    n_tokens: int
    fewest: int
    most: int
    n_prompt: int
    wall_s: float
    decode_rate: float
    whole_rate: float
    total_rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    max_gap_s: float
    client_cpu_s: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figures(answers: Sequence[Answer], client_cpu_s: float) -> Figures:
    """What `answers`, all of one measurement, come to."""
    wall_s = max(a.ended for a in answers) - min(a.began for a in answers)
    n_tokens = sum(a.n_tokens for a in answers)
    ttfts = [a.ttft_s for a in answers]
    return Figures(
        n_tokens=n_tokens,
        fewest=min(a.n_tokens for a in answers),
        most=max(a.n_tokens for a in answers),
        n_prompt=sum(a.n_prompt for a in answers),
        wall_s=wall_s,
        decode_rate=statistics.median(a.decode_rate for a in answers),
        whole_rate=statistics.median(a.whole_rate for a in answers),
        total_rate=n_tokens / wall_s,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        max_gap_s=max(gap for a in answers for gap in a.gaps_s),
        client_cpu_s=client_cpu_s,
    )


def measure(
    endpoint: Endpoint, prompts: Sequence[str], *, n_clients: int, n_tokens: int
) -> Figures:
    """`n_clients` streams at once until every prompt is answered; each takes the next prompt."""
    cpu_s = time.process_time()
    answers = asyncio.run(_closed_loop(endpoint, prompts, n_clients, n_tokens))
    return figures(answers, time.process_time() - cpu_s)


async def _closed_loop(
    endpoint: Endpoint, prompts: Sequence[str], n_clients: int, n_tokens: int
) -> list[Answer]:
    waiting = iter(prompts)
    answers: list[Answer] = []

    async def client() -> None:
        for prompt in waiting:
            answers.append(await ask(endpoint, prompt, n_tokens))

    async with asyncio.TaskGroup() as group:
        for _ in range(n_clients):
            group.create_task(client())
    return answers


async def ask(endpoint: Endpoint, prompt: str, n_tokens: int) -> Answer:
    """One greedy streamed chat of at most `n_tokens`. Raises RuntimeError, TimeoutError."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    request = _request(endpoint, prompt, n_tokens)
    transport, stream = await loop.create_connection(
        lambda: _Stream(request, loop.create_future()), endpoint.host, endpoint.port
    )
    try:
        await asyncio.wait_for(stream.over, LIMIT_S)
    finally:
        transport.close()
    if stream.usage is None or len(stream.times) < 2:
        raise RuntimeError(f"an answer with {len(stream.times)} pieces, usage {stream.usage}")
    usage = stream.usage
    return Answer(
        began, tuple(stream.times), stream.ended, usage.prompt_tokens, usage.completion_tokens
    )


def _request(endpoint: Endpoint, prompt: str, n_tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": n_tokens,
            "temperature": 0,
            **endpoint.extra,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"Host: {endpoint.host}:{endpoint.port}\r\n"
        "Content-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode


class _Stream(asyncio.Protocol):
    """The bytes of one response: status, chunks of HTTP, lines of server-sent events."""

    def __init__(self, request: bytes, over: "asyncio.Future[None]") -> None:
        self.over = over
        self.times: list[float] = []
        self.usage: _Usage | None = None
        self.ended = 0.0
        self._request = request
        self._raw = bytearray()
        self._body = bytearray()
        self._is_chunked: bool | None = None  # None until the head is complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            seen = bytes(self._raw[-500:])
            self.over.set_exception(RuntimeError(f"the stream broke off ({exc}): {seen!r}"))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._raw += data
        if self._is_chunked is None and not self._read_head():
            return
        if self._is_chunked:
            self._unchunk()
        else:
            self._body += self._raw
            self._raw.clear()
        *lines, rest = self._body.split(b"\n")
        self._body = rest
        for line in lines:
            if line.startswith(b"data:"):
                self._take(bytes(line[5:].strip()), now)

    def _read_head(self) -> bool:
        head, separator, rest = self._raw.partition(b"\r\n\r\n")
        if not separator:
            return False
        if head.split(b" ", 2)[1] != b"200":
            return False  # the body is kept; the server closes and `connection_lost` shows it
        self._is_chunked = b"transfer-encoding: chunked" in head.lower()
        self._raw = rest
        return True

    def _unchunk(self) -> None:
        start = 0
        while (line_end := self._raw.find(b"\r\n", start)) >= 0:
            size = int(self._raw[start:line_end], 16)
            end = line_end + 2 + size
            if size == 0 or len(self._raw) < end + 2:
                break
            self._body += self._raw[line_end + 2 : end]
            start = end + 2
        del self._raw[:start]

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.ended = now
            if not self.over.done():
                self.over.set_result(None)
            return
        chunk = _decode(data)
        if chunk.error is not None and not self.over.done():
            self.over.set_exception(RuntimeError(f"the server said: {chunk.error}"))
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.choices and chunk.choices[0].delta.content:
            self.times.append(now)
