"""Handlers of the routes for vectors and ranks: decode, one call of the service, encode."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace
from starlette.responses import Response

from localrun.core import Vectors
from localrun.http.errors import as_sent
from localrun.http.notes import ignored_headers
from localrun.http.requests import ApiRequest
from localrun.http.streaming import outcome
from localrun.service import TextService
from localrun.wire.embeddings import (
    EmbedRequest,
    check_n_dims,
    decode_embed,
    decode_embeddings,
    decode_openai_embeddings,
    decode_rerank,
    encode_embed,
    encode_embeddings,
    encode_openai_embeddings,
    encode_rerank,
)
from localrun.wire.streams import JSON_TYPE

# Vectors that become JSON on the spot: 16,000 numbers take 1 ms. Thousands of vectors would stop
# all streams meanwhile; for one, the way to another thread is longer than the work.
_INLINE_BYTES = 64 << 10


class EmbeddingsApi:
    """`/api/embed`, `/api/embeddings`, `/v1/embeddings` and `/v1/rerank`.

    All raise BadRequest, Unsupported, ClientDisconnect, and what `TextService.embed` does.
    """

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def embed(self, request: ApiRequest) -> Response:
        """Vectors of any number of texts."""
        wanted = await request.decoded(decode_embed)
        return await self._answer(
            request, wanted, lambda found: encode_embed(wanted.call.model, found)
        )

    async def embeddings(self, request: ApiRequest) -> Response:
        """The vector of one text, Ollama's older route."""
        wanted = await request.decoded(decode_embeddings)
        return await self._answer(request, wanted, encode_embeddings)

    async def openai(self, request: ApiRequest) -> Response:
        """Vectors as OpenAI's clients want them."""
        wanted = await request.decoded(decode_openai_embeddings)

        def encode(found: Vectors) -> bytes:
            check_n_dims(wanted.wanted, found)
            return encode_openai_embeddings(wanted.call.model, found, wanted.encoding)

        return await self._answer(request, wanted, encode)

    async def rerank(self, request: ApiRequest) -> Response:
        """How well texts answer a query."""
        wanted = await request.decoded(decode_rerank)
        return await self._answer(request, wanted, lambda found: encode_rerank(wanted, found))

    async def _answer(
        self, request: ApiRequest, wanted: EmbedRequest, encode: Callable[[Vectors], bytes]
    ) -> Response:
        caller = request.caller
        call = replace(wanted.call, client=caller.client, scope=caller.scope)

        async def embed() -> Vectors:
            give_back = await request.take_turn()
            try:
                with as_sent(call.model):
                    return await self._service.embed(call, wanted.wanted)
            finally:
                if give_back is not None:
                    give_back()

        # Nobody waits for a load, or for thousands of texts, who has left.
        vectors = await outcome(request.receive, embed())
        if len(vectors.data) > _INLINE_BYTES:
            document = await asyncio.to_thread(encode, vectors)
        else:
            document = encode(vectors)
        return Response(document, headers=ignored_headers(wanted.ignored), media_type=JSON_TYPE)
