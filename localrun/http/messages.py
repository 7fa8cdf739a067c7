"""Handlers of Anthropic's routes: decode, one call of the service, encode."""

from starlette.responses import Response

from localrun.http.errors import REQUEST_ID, new_request_id
from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer, counted
from localrun.service import TextService
from localrun.wire.anthropic import decode_count_tokens, decode_messages
from localrun.wire.anthropic_writer import AnthropicWriter, encode_count
from localrun.wire.streams import JSON_TYPE


class MessagesApi:
    """`/v1/messages` and `/v1/messages/count_tokens`."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def messages(self, request: ApiRequest) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = await request.decoded(decode_messages)
        request_id = new_request_id()
        writer = AnthropicWriter(wanted.call.model, request_id, has_thinking=wanted.shows_thinking)
        headers = {REQUEST_ID: request_id}
        return answer(self._service, wanted, writer, "anthropic", request=request, headers=headers)

    async def count_tokens(self, request: ApiRequest) -> Response:
        """Raises BadRequest, ClientDisconnect, and what `TextService.count` does."""
        call = await request.decoded(decode_count_tokens)
        n_tokens = await counted(self._service, call, request=request)
        headers = {REQUEST_ID: new_request_id()}
        return Response(encode_count(n_tokens), headers=headers, media_type=JSON_TYPE)
