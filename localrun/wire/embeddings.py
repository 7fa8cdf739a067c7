"""Vectors and ranks in every dialect: request bodies → `Call` and `EmbedTexts`, `Vectors` → JSON.

Owns the wire names of `/api/embed`, `/api/embeddings`, `/v1/embeddings` and `/v1/rerank`. Knows
neither URLs nor statuses. Source: Ollama `api/types.go`; OpenAI's API reference, "Embeddings";
for ranks, the shape that Jina's API and llama.cpp's server share.
"""

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from localrun.core import Call, EmbedTexts, Vectors
from localrun.errors import BadRequest
from localrun.wire.bodies import (
    checked_options,
    decode,
    keep_alive_s,
    required_model,
    without_effect,
)

Encoding = Literal["float", "base64"]


class EmbedRequest(msgspec.Struct, frozen=True):
    """A request for vectors in any dialect, checked; `ignored` names fields without effect.

    `encoding` of the vectors is OpenAI's; of ranked documents the best `top_n` are wanted, all
    when None, and with `shows_documents` their texts.
    """

    call: Call
    wanted: EmbedTexts
    ignored: tuple[str, ...] = ()
    encoding: Encoding = "float"
    top_n: int | None = None
    shows_documents: bool = False


class _Native(msgspec.Struct, kw_only=True):
    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None


class _Embed(_Native, kw_only=True):
    input: Any = None
    truncate: bool | None = None
    dimensions: int | None = None


class _Embeddings(_Native, kw_only=True):
    prompt: str | None = None


class _OpenAI(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: Any = None
    dimensions: int | None = None
    encoding_format: str | None = None


class _Document(msgspec.Struct):
    text: str


class _Rerank(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: str | None = None
    documents: list[str | _Document] | None = None
    top_n: int | None = None
    return_documents: bool | None = None


_EMBED = msgspec.json.Decoder(_Embed)
_EMBEDDINGS = msgspec.json.Decoder(_Embeddings)
_OPENAI = msgspec.json.Decoder(_OpenAI)
_RERANK = msgspec.json.Decoder(_Rerank)


def decode_embed(body: bytes) -> EmbedRequest:
    """The request of POST /api/embed; without an input it only loads. Raises BadRequest."""
    wire = decode(_EMBED, body)
    texts = _texts(wire.input) if wire.input not in (None, "", []) else ()
    cuts = wire.truncate is not False
    # Source: Ollama: 0 is all of them, and so is more than there are.
    wanted = EmbedTexts(texts, cuts=cuts, n_dims=_n_dims(wire.dimensions, least=0))
    return _native_request(wire, body, wanted, {})


def decode_embeddings(body: bytes) -> EmbedRequest:
    """The request of POST /api/embeddings, for one text, which is not cut. Raises BadRequest."""
    wire = decode(_EMBEDDINGS, body)
    wanted = EmbedTexts((wire.prompt,) if wire.prompt else (), cuts=False)
    return _native_request(wire, body, wanted, {"input[0]": "prompt"})


def _native_request(
    wire: _Native, body: bytes, wanted: EmbedTexts, places: dict[str, str]
) -> EmbedRequest:
    options, unknown = checked_options(wire.options)
    keep_s = keep_alive_s(wire.keep_alive)
    model = required_model(wire.model)
    call = Call(model, options=options, keep_alive_s=keep_s, places=places)
    return EmbedRequest(call, wanted, tuple(unknown + without_effect(body, wire)))


def decode_openai_embeddings(body: bytes) -> EmbedRequest:
    """The request of POST /v1/embeddings. Raises BadRequest."""
    wire = decode(_OPENAI, body)
    model = required_model(wire.model, "model")
    if wire.input is None or wire.input == []:
        raise BadRequest("input", "invalid input: a text or a list of texts is required")
    wanted = EmbedTexts(_texts(wire.input), n_dims=_n_dims(wire.dimensions, least=1))
    encoding = _encoding(wire.encoding_format)
    return EmbedRequest(Call(model), wanted, tuple(without_effect(body, wire)), encoding)


def decode_rerank(body: bytes) -> EmbedRequest:
    """The request of POST /v1/rerank. Raises BadRequest."""
    wire = decode(_RERANK, body)
    model = required_model(wire.model, "model")
    if wire.query is None:
        raise BadRequest("query", "a text is required")
    if not wire.documents:
        raise BadRequest("documents", "a list of texts is required")
    if wire.top_n is not None and wire.top_n < 1:
        raise BadRequest("top_n", "must be at least 1")
    texts = tuple(one if isinstance(one, str) else one.text for one in wire.documents)
    return EmbedRequest(
        Call(model),
        EmbedTexts(texts, query=wire.query),
        tuple(without_effect(body, wire)),
        top_n=wire.top_n,
        shows_documents=wire.return_documents is True,
    )


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise BadRequest("input", "invalid input type: must be a text or a list of texts")
    for place, text in enumerate(value):
        if not isinstance(text, str):
            problem = "invalid input type: must be a text; token ids are not available"
            raise BadRequest(f"input[{place}]", problem)
    return tuple(value)


def _n_dims(dimensions: int | None, *, least: int) -> int:
    if dimensions is not None and dimensions < least:
        raise BadRequest("dimensions", f"must be at least {least}; leave it out for all of them")
    return dimensions or 0


def check_n_dims(wanted: EmbedTexts, found: Vectors) -> None:
    """Raises BadRequest when vectors are shorter than they are wanted, as OpenAI does.

    How long a model's are, nobody knows before.
    """
    if found.n_dims < wanted.n_dims and found.data:
        raise BadRequest("dimensions", f"must be at most {found.n_dims}, which the model has")


def _encoding(name: str | None) -> Encoding:
    match (name or "float").lower():
        case "float":
            return "float"
        case "base64":
            return "base64"
    raise BadRequest(
        "encoding_format",
        f"Invalid value for 'encoding_format' = {(name or '')[:40]}. "
        "Supported values: ['float', 'base64'].",
    )


# ---- replies

_encode = msgspec.json.Encoder().encode


def encode_embed(model: str, vectors: Vectors) -> bytes:
    """The reply of /api/embed; figures that are zero are left out."""
    figures = {
        "total_duration": vectors.total_ns,
        "load_duration": vectors.load_ns,
        "prompt_eval_count": vectors.n_tokens,
        # Ours: texts were longer than the window, and by how many tokens they were cut.
        "truncated": vectors.n_dropped > 0,
        "prompt_dropped_count": vectors.n_dropped,
    }
    shown = {name: value for name, value in figures.items() if value}
    return _encode({"model": model, "embeddings": _rows(vectors), **shown})


def encode_embeddings(vectors: Vectors) -> bytes:
    """The reply of /api/embeddings."""
    rows = _rows(vectors)
    return _encode({"embedding": rows[0] if rows else []})


def encode_openai_embeddings(model: str, vectors: Vectors, encoding: Encoding) -> bytes:
    """The reply of /v1/embeddings."""
    shown: Sequence[Any] = _rows(vectors)
    if encoding == "base64":
        shown = [base64.b64encode(part).decode() for part in _parts(vectors)]
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(shown)
    ]
    return _encode({"object": "list", "data": data, "model": model, "usage": _usage(vectors)})


def encode_rerank(request: EmbedRequest, vectors: Vectors) -> bytes:
    """The reply of /v1/rerank, best documents first."""
    scores = [row[0] for row in _rows(vectors)]
    texts = request.wanted.texts
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": score} for index, score in enumerate(scores)
    ]
    if request.shows_documents:
        results = [one | {"document": {"text": texts[one["index"]]}} for one in results]
    results.sort(key=lambda one: -one["relevance_score"])
    usage = _usage(vectors)
    reply = {"model": request.call.model, "object": "list", "usage": usage}
    return _encode(reply | {"results": results[: request.top_n]})


def _usage(vectors: Vectors) -> dict[str, int]:
    usage = {"prompt_tokens": vectors.n_tokens, "total_tokens": vectors.n_tokens}
    return usage | ({"dropped_tokens": vectors.n_dropped} if vectors.n_dropped else {})


def _parts(vectors: Vectors) -> list[bytes]:
    size = 4 * vectors.n_dims
    return [vectors.data[at : at + size] for at in range(0, len(vectors.data), max(1, size))]


def _rows(vectors: Vectors) -> list[list[float]]:
    return [_floats(part) for part in _parts(vectors)]


def _floats(data: bytes) -> list[float]:
    numbers = array("f")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
