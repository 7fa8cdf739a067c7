"""Handlers of OpenAI's routes: decode, one call of the service or store, encode."""

import asyncio

from starlette.responses import Response

from localrun.http.errors import REQUEST_ID, as_sent, new_request_id
from localrun.http.guard import asked_dialect
from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer
from localrun.service import TextService
from localrun.wire import anthropic_models
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
        """Every model of the store; for Anthropic's clients in pages, as they ask for them.

        Raises BadRequest.
        """
        listings = await asyncio.to_thread(self._store.list)
        if asked_dialect(request.scope) == "anthropic":
            models = [(one.name.display(), _created_s(one)) for one in listings]
            page = anthropic_models.encode_models(models, request.query_params)
            return Response(page, headers={REQUEST_ID: new_request_id()}, media_type=JSON_TYPE)
        entries = [_entry(listing, listing.name.display()) for listing in listings]
        return Response(encode_models(entries), media_type=JSON_TYPE)

    async def model(self, request: ApiRequest) -> Response:
        """One model. Raises InvalidName, ModelNotFound."""
        name = request.path_params["model"]
        with as_sent(name):
            record = await asyncio.to_thread(self._store.resolve, name)
        if asked_dialect(request.scope) == "anthropic":
            found = anthropic_models.encode_model(name, _created_s(record))
            return Response(found, headers={REQUEST_ID: new_request_id()}, media_type=JSON_TYPE)
        return Response(encode_model(_entry(record, name)), media_type=JSON_TYPE)


def _entry(found: Listing | Record, name: str) -> ModelEntry:
    return ModelEntry(name, _created_s(found), found.name.namespace)


def _created_s(found: Listing | Record) -> int:
    return int(found.modified_at.timestamp())
