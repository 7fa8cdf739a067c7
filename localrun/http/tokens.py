"""Handlers of the two routes about tokens: decode, one question to the model's runner, encode."""

from starlette.responses import Response

from localrun.core import Call, Question, Reply
from localrun.http.errors import as_sent
from localrun.http.requests import ApiRequest
from localrun.http.streaming import outcome
from localrun.service import TextService
from localrun.wire.native_tokens import decode_detokenize, decode_tokenize, encode_reply
from localrun.wire.streams import JSON_TYPE


class TokensApi:
    """`/api/tokenize` and `/api/detokenize`."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def tokenize(self, request: ApiRequest) -> Response:
        """Raises BadRequest, ClientDisconnect, and what `TextService.ask` does."""
        return await self._answer(request, *(await request.decoded(decode_tokenize)))

    async def detokenize(self, request: ApiRequest) -> Response:
        """Raises BadRequest, ClientDisconnect, and what `TextService.ask` does."""
        return await self._answer(request, *(await request.decoded(decode_detokenize)))

    async def _answer(self, request: ApiRequest, call: Call, question: Question) -> Response:
        async def ask() -> Reply:
            with as_sent(call.model):
                return await self._service.ask(call, question)

        # The model may have to be loaded first, which nobody should wait for who has left.
        reply = await outcome(request.receive, ask())
        return Response(encode_reply(reply), media_type=JSON_TYPE)
