"""The four routes of text as one: a request in the words of each, what came back in one form."""

import codecs
import json
from dataclasses import dataclass, field
from typing import Any

from live import Client

# (bytes, logprob, likeliest tokens as (bytes, logprob))
Entry = tuple[bytes, float, list[tuple[bytes, float]]]

IGNORED_HEADER = "X-Localrun-Ignored-Options"


@dataclass
class Said:
    """One choice as a client understands it, and what came with it."""

    text: str = ""
    reason: str | None = None
    n_tokens: int = 0
    logprobs: list[Entry] = field(default_factory=list)
    # One for each piece of a stream: its text, and the bytes of the entries that came with it.
    pieces: list[tuple[str, bytes]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    error: Any = None

    @property
    def bytes(self) -> bytes:
        """What the entries say the text is."""
        return b"".join(data for data, _, _ in self.logprobs)


class Route:
    """One route; `is_native` has options, `is_chat` has turns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_native = path.startswith("/api/")
        self.is_chat = path in ("/api/chat", "/v1/chat/completions")

    def __repr__(self) -> str:
        return self.path

    def body(self, model: str, text: str, *, stream: bool = False, **wishes: Any) -> dict[str, Any]:
        """A request. `wishes` are Ollama's options; `top` asks for log-probabilities."""
        body: dict[str, Any] = {"model": model, "stream": stream}
        if self.is_chat:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        top = wishes.pop("top", None)
        if top is not None and self.path == "/v1/completions":
            body["logprobs"] = top
        elif top is not None:
            body |= {"logprobs": True, "top_logprobs": top}
        if self.is_native:
            return {**body, "options": wishes}
        return body | {{"num_predict": "max_tokens"}.get(k, k): v for k, v in wishes.items()}

    def ask(self, client: Client, model: str, text: str = "hi", **wishes: Any) -> Said:
        """The answer; it must have been given."""
        said = self.send(client, self.body(model, text, **wishes))
        assert said.error is None, said.error
        return said

    def send(self, client: Client, body: dict[str, Any]) -> Said:
        """What the server made of `body`, whatever it is."""
        with client.open("POST", self.path, body) as response:
            names = response.headers.get(IGNORED_HEADER, "")
            data = response.read()
        said = Said(ignored=names.split(", ") if names else [])
        blocks = data.split(b"\n") if self.is_native else data.split(b"\n\n")
        for block in blocks if body.get("stream") else [data]:
            document = block.removeprefix(b"data: ").strip()
            if document and document != b"[DONE]":
                self._read(said, json.loads(document))
        return said

    def _read(self, said: Said, part: dict[str, Any]) -> None:
        if "error" in part:
            said.error = part["error"]
            return
        said.n_tokens += part.get("eval_count", 0)
        said.n_tokens += (part.get("usage") or {}).get("completion_tokens", 0)
        if self.is_native:
            text = part["message"]["content"] if self.is_chat else part["response"]
            entries = [_entry(entry) for entry in part.get("logprobs", ())]
            reason = part.get("done_reason")
        elif not part["choices"]:
            return
        else:
            (choice,) = part["choices"]
            found = choice.get("logprobs")
            if self.is_chat:
                text = choice.get("delta", choice.get("message", {})).get("content", "")
                entries = [_entry(entry) for entry in (found or {}).get("content", ())]
            else:
                text = choice["text"]
                entries = _old_entries(found, said.bytes) if found else []
            reason = choice["finish_reason"]
        said.text += text
        said.reason = reason or said.reason
        said.logprobs += entries
        said.pieces.append((text, b"".join(data for data, _, _ in entries)))


def _entry(entry: dict[str, Any]) -> Entry:
    data = bytes(entry["bytes"])
    assert entry["token"] == data.decode("utf-8", "replace")
    top = [(bytes(other["bytes"]), other["logprob"]) for other in entry.get("top_logprobs", ())]
    return data, entry["logprob"], top


def _old_entries(found: dict[str, Any], before: bytes) -> list[Entry]:
    tokens, offsets = found["tokens"], found["text_offset"]
    tops = found["top_logprobs"] or [{}] * len(tokens)
    assert len(tokens) == len(offsets) == len(tops) == len(found["token_logprobs"])
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    n_chars = len(decode(before))
    for token, offset in zip(tokens, offsets, strict=True):
        assert offset == n_chars
        n_chars += len(decode(_old_bytes(token)))
    return [
        (_old_bytes(token), logprob, [(_old_bytes(name), value) for name, value in top.items()])
        for token, logprob, top in zip(tokens, found["token_logprobs"], tops, strict=True)
    ]


def _old_bytes(token: str) -> bytes:
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


ROUTES = [
    Route(path)
    for path in ("/api/generate", "/api/chat", "/v1/completions", "/v1/chat/completions")
]
