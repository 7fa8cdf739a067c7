"""Handlers of the two routes about tokens: decode, one question to the model's runner, encode."""

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from localrun.core import Call, Question, Reply
from localrun.http.errors import as_sent
from localrun.http.requests import ApiRequest
from localrun.http.streaming import while_connected
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
        replies: list[Reply] = []

        async def ask() -> None:
            with as_sent(call.model):
                replies.append(await self._service.ask(call, question))

        # The model may have to be loaded first, which nobody should wait for who has left.
        await while_connected(request.receive, ask())
        if not replies:
            raise ClientDisconnect
        return Response(encode_reply(replies[0]), media_type=JSON_TYPE)
