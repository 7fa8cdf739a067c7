"""Framing of streamed replies: NDJSON (Ollama) and server-sent events, both directions.

Bytes in, bytes out: no sockets, no clock, no JSON. The daemon uses the encoders, the CLI and the
tests the decoders, which may be fed any split of the byte stream.
Source: the NDJSON specification; WHATWG HTML, "Server-sent events".
"""

# Every reply that is one JSON document, in every dialect.
JSON_TYPE = "application/json; charset=utf-8"
# Ollama's own client gives up on longer lines; nothing here produces more than a few kilobytes.
MAX_LINE_BYTES = 8 << 20


class LineTooLong(Exception):
    """A line exceeds `limit_bytes`: what arrives is not a stream of this kind."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"a line of the stream is longer than {self.limit_bytes} bytes"


def ndjson(document: bytes) -> bytes:
    """One JSON document as a line. It must not contain a line break, as encoded JSON never does."""
    return document + b"\n"


def sse(data: bytes) -> bytes:
    """One event without a name. `data` must not contain a line break."""
    return b"data: " + data + b"\n\n"


def named_sse(name: str, data: bytes) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\n" + sse(data)


# How OpenAI's dialect says that nothing follows.
SSE_DONE = sse(b"[DONE]")


class NdjsonDecoder:
    """Cuts a byte stream into lines; blank lines are passed over."""

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._rest = b""
        self._limit_bytes = limit_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends. Raises LineTooLong."""
        if b"\n" not in data:
            self._rest = self._checked(self._rest + data)
            return []
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = self._checked(rest)
        return [line for line in map(bytes.strip, lines) if line]

    def flush(self) -> list[bytes]:
        """The last line, if the stream ended without a line break."""
        line, self._rest = self._rest.strip(), b""
        return [line] if line else []

    def _checked(self, rest: bytes) -> bytes:
        if len(rest) > self._limit_bytes:
            raise LineTooLong(self._limit_bytes)
        return rest


class SseDecoder:
    """Cuts a byte stream into the data of its events; names, ids and comments are dropped."""

    def __init__(self, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._limit_bytes = limit_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes. Raises LineTooLong."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._limit_bytes:
            raise LineTooLong(self._limit_bytes)
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
