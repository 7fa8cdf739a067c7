"""An error as a client sees it, in every dialect.

Values only. Which error becomes which fault is decided in `localrun.http.errors`.
Source: Ollama's HTTP API; OpenAI's API reference, "Error object"; Anthropic's, "Errors".
"""

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class Fault(msgspec.Struct, frozen=True):
    """`kind` and `code` are OpenAI's words for the class of error; `path` is a JSON path or "".

    `anthropic_kind` is Anthropic's word.
    """

    message: str
    kind: str = "api_error"
    code: str | None = None
    path: str = ""
    anthropic_kind: str = "api_error"

    def native(self) -> bytes:
        """Ollama's error object."""
        return _encode({"error": self.message})

    def last_line(self) -> bytes:
        """The same in the middle of a stream, where no status says any more what kind it is."""
        return _encode({"error": self.message} | ({"code": self.code} if self.code else {}))

    def openai(self) -> bytes:
        """OpenAI's error object."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.path or None,
            "code": self.code,
        }
        return _encode({"error": error})

    def anthropic(self, request_id: str) -> bytes:
        """Anthropic's error object."""
        error: dict[str, Any] = {"type": self.anthropic_kind, "message": self.message}
        if self.code:
            error["details"] = {"error_code": self.code}
        return _encode({"type": "error", "error": error, "request_id": request_id})
