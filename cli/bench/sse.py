"""The bytes of one HTTP response that streams server-sent events → the events' data. No I/O.

As small as it can be: the client shares the machine's cores with the server that it measures.
"""

import msgspec

_MAX_SHOWN = 200


class EventReader:
    """Status, HTTP framing and `data:` lines of a response to a request with `Connection: close`.

    `is_over` once the body has ended by its own framing; without any, it ends with the connection.
    """

    def __init__(self) -> None:
        self.status = 0
        self.is_over = False
        self._raw = bytearray()
        self._body = bytearray()
        self._is_chunked = False
        self._n_left: int | None = None  # of a body with a length

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that is complete by now; none unless the status is 200."""
        self._raw += data
        if not self.status and not self._read_head():
            return []
        if self._is_chunked:
            self._unchunk()
        else:
            self._body += self._raw
            if self._n_left is not None:
                self._n_left -= len(self._raw)
                self.is_over = self._n_left <= 0
            self._raw.clear()
        if self.status != 200:
            return []
        *lines, self._body = self._body.split(b"\n")
        return [_data(bytes(line)) for line in lines if line.startswith((b"data:", b"error:"))]

    def refusal(self) -> str:
        """What the server said instead of events."""
        said = error_text(bytes(self._body))
        return f"status {self.status}: {said}" if said else f"status {self.status}"

    def _read_head(self) -> bool:
        head, separator, rest = self._raw.partition(b"\r\n\r\n")
        if not separator:
            return False
        status_line, *lines = bytes(head).lower().split(b"\r\n")
        words = status_line.split()
        if not status_line.startswith(b"http/1.") or len(words) < 2 or not words[1].isdigit():
            raise ValueError("the server does not speak HTTP")
        self.status = int(words[1])
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"transfer-encoding" and b"chunked" in value:
                self._is_chunked = True
            elif name == b"content-length" and value.strip().isdigit():
                self._n_left = int(value)
        self._raw = rest
        return True

    def _unchunk(self) -> None:
        start = 0
        while (line_end := self._raw.find(b"\r\n", start)) >= 0:
            size = int(self._raw[start:line_end].partition(b";")[0], 16)
            end = line_end + 2 + size
            if size == 0 or len(self._raw) < end + 2:
                self.is_over = size == 0
                break
            self._body += self._raw[line_end + 2 : end]
            start = end + 2
        del self._raw[:start]


def _data(line: bytes) -> bytes:
    field, _, value = line.partition(b":")
    # llama.cpp's server has long sent its errors as a field of their own.
    return value.strip() if field == b"data" else b'{"error":%s}' % value.strip()


class _Message(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: str | _Message = ""
    message: str = ""


def error_text(body: bytes) -> str:
    """The sentence in an error object of OpenAI's or Ollama's shape, else the text itself."""
    try:
        found = msgspec.json.decode(body, type=_Refusal)
    except msgspec.MsgspecError:
        found = _Refusal()
    said = found.error.message if isinstance(found.error, _Message) else found.error
    text = said or found.message or body.decode(errors="replace").strip()
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
