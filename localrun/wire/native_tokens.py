"""Bodies of `/api/tokenize` and `/api/detokenize`: text ⇄ token ids of a model.

Ours, with the field names of llama.cpp's server where it has them. Knows neither URLs nor statuses.
"""

from typing import Any

import msgspec

from localrun.core import DetokenizeCall, TokenizeCall
from localrun.errors import BadRequest
from localrun.wire.bodies import checked_options, decode, keep_alive_s, required_model
from localrun.wire.native import TokenId

# More than any window holds; a runner that tokenizes it prepares nobody else's prompt for a second.
MAX_CHARS = 4 << 20
MAX_TOKENS = 1 << 20


class _Shared(msgspec.Struct, kw_only=True):
    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None


class _Tokenize(_Shared, kw_only=True):
    content: str | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None


class _Detokenize(_Shared, kw_only=True):
    tokens: tuple[TokenId, ...] | None = None


_TOKENIZE = msgspec.json.Decoder(_Tokenize)
_DETOKENIZE = msgspec.json.Decoder(_Detokenize)


def decode_tokenize(body: bytes) -> TokenizeCall:
    """The request of POST /api/tokenize. Raises BadRequest."""
    wire = decode(_TOKENIZE, body)
    content = wire.content or ""
    if len(content) > MAX_CHARS:
        raise BadRequest("content", f"has {len(content)} characters, more than {MAX_CHARS}")
    return TokenizeCall(
        required_model(wire.model),
        content,
        adds_special=wire.add_special is True,
        with_pieces=wire.with_pieces is True,
        **_load(wire),
    )


def decode_detokenize(body: bytes) -> DetokenizeCall:
    """The request of POST /api/detokenize. Raises BadRequest."""
    wire = decode(_DETOKENIZE, body)
    tokens = wire.tokens or ()
    if len(tokens) > MAX_TOKENS:
        raise BadRequest("tokens", f"has {len(tokens)} ids, more than {MAX_TOKENS}")
    return DetokenizeCall(required_model(wire.model), tokens, **_load(wire))


def _load(wire: _Shared) -> dict[str, Any]:
    options, _ = checked_options(wire.options)
    return {"options": options, "keep_alive_s": keep_alive_s(wire.keep_alive)}


_encode = msgspec.json.Encoder().encode


def encode_tokens(tokens: tuple[int, ...], pieces: tuple[bytes, ...] | None) -> bytes:
    """The reply of /api/tokenize. A piece that is no whole text is a list of bytes."""
    if pieces is None:
        return _encode({"tokens": tokens})
    rows = [{"id": id_, "piece": _piece(p)} for id_, p in zip(tokens, pieces, strict=True)]
    return _encode({"tokens": rows})


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def encode_content(content: str) -> bytes:
    """The reply of /api/detokenize."""
    return _encode({"content": content})
