"""Bodies of `/api/tokenize` and `/api/detokenize`: text ⇄ token ids of a model.

Ours, with the field names of llama.cpp's server where it has them. Knows neither URLs nor statuses.
"""

from typing import Any

import msgspec

from localrun.core import Call, Detokenize, Reply, Text, Tokenize, Tokens
from localrun.errors import BadRequest
from localrun.wire.bodies import checked_options, decode, keep_alive_s, required_model
from localrun.wire.native import TokenId

# Far more than windows hold; while a runner is at it, it prepares nobody else's prompt.
MAX_CHARS = 1 << 20
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


def decode_tokenize(body: bytes) -> tuple[Call, Tokenize]:
    """(what to load, what to do) of POST /api/tokenize. Raises BadRequest."""
    wire = decode(_TOKENIZE, body)
    call = _call(wire)
    if wire.content is None:
        raise BadRequest("content", "the text to tokenize is required")
    content = wire.content
    if len(content) > MAX_CHARS:
        raise BadRequest("content", f"has {len(content)} characters, more than {MAX_CHARS}")
    return call, Tokenize(content, wire.add_special is True, wire.with_pieces is True)


def decode_detokenize(body: bytes) -> tuple[Call, Detokenize]:
    """(what to load, what to do) of POST /api/detokenize. Raises BadRequest."""
    wire = decode(_DETOKENIZE, body)
    call = _call(wire)
    if wire.tokens is None:
        raise BadRequest("tokens", "the token ids are required")
    tokens = wire.tokens
    if len(tokens) > MAX_TOKENS:
        raise BadRequest("tokens", f"has {len(tokens)} ids, more than {MAX_TOKENS}")
    return call, Detokenize(tokens)


def _call(wire: _Shared) -> Call:
    options, _ = checked_options(wire.options)
    keep_s = keep_alive_s(wire.keep_alive)
    return Call(required_model(wire.model), options=options, keep_alive_s=keep_s)


_encode = msgspec.json.Encoder().encode


def encode_reply(reply: Reply) -> bytes:
    """What came of it. A piece that is no whole text is a list of bytes."""
    if isinstance(reply, Text):
        return _encode({"content": reply.text})
    assert isinstance(reply, Tokens)
    if reply.pieces is None:
        return _encode({"tokens": reply.ids})
    pairs = zip(reply.ids, reply.pieces, strict=True)
    return _encode({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pairs]})


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
