"""Handlers of OpenAI's routes: decode, one call of the service or store, encode."""

import asyncio

from starlette.responses import Response

from localrun.http.errors import as_sent
from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer
from localrun.service import TextService
from localrun.wire.completions import decode_completions
from localrun.wire.openai import (
    CompletionRequest,
    ModelEntry,
    decode_chat_completions,
    encode_model,
    encode_models,
)
from localrun.wire.openai_writer import Kind, OpenAIWriter
from localrun.wire.streams import JSON_TYPE
from modelstore.records import Listing, Record
from modelstore.store import Store


class OpenAIApi:
    """`/v1/chat/completions`, `/v1/completions` and `/v1/models`."""

    def __init__(self, service: TextService, store: Store) -> None:
        self._service = service
        self._store = store

    async def chat_completions(self, request: ApiRequest) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = await request.decoded(decode_chat_completions)
        return self._answer(request, wanted, "chat")

    async def completions(self, request: ApiRequest) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        return self._answer(request, await request.decoded(decode_completions), "completion")

    def _answer(self, request: ApiRequest, wanted: CompletionRequest, kind: Kind) -> AnswerResponse:
        call = wanted.call
        writer = OpenAIWriter(
            call.model,
            kind,
            n_each=call.n_each,
            include_usage=wanted.include_usage,
            has_logprobs=call.top_logprobs is not None,
        )
        return answer(self._service, wanted, writer, "openai", request=request)

    async def models(self, request: ApiRequest) -> Response:
        """Every model of the store."""
        listings = await asyncio.to_thread(self._store.list)
        entries = [_entry(listing, listing.name.display()) for listing in listings]
        return Response(encode_models(entries), media_type=JSON_TYPE)

    async def model(self, request: ApiRequest) -> Response:
        """One model. Raises InvalidName, ModelNotFound."""
        name = request.path_params["model"]
        with as_sent(name):
            record = await asyncio.to_thread(self._store.resolve, name)
        return Response(encode_model(_entry(record, name)), media_type=JSON_TYPE)


def _entry(found: Listing | Record, name: str) -> ModelEntry:
    return ModelEntry(name, int(found.modified_at.timestamp()), found.name.namespace)
