"""Handlers of OpenAI's responses: decode, one call of the service, encode."""

from starlette.responses import Response

from localrun.errors import BadRequest
from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer, counted
from localrun.service import TextService
from localrun.wire.responses import decode_input_tokens, decode_responses
from localrun.wire.responses_writer import ResponsesWriter, encode_input_tokens
from localrun.wire.streams import JSON_TYPE


class ResponsesApi:
    """`/v1/responses`, `/v1/responses/input_tokens` and `/v1/responses/compact`."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def create(self, request: ApiRequest) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = await request.decoded(decode_responses)
        writer = ResponsesWriter(
            wanted.call.model,
            wanted.echo,
            namespaces=wanted.namespaces,
            has_encrypted=wanted.has_encrypted,
        )
        return answer(self._service, wanted, writer, "openai", request=request)

    async def input_tokens(self, request: ApiRequest) -> Response:
        """Raises BadRequest, ClientDisconnect, and what `TextService.count` does."""
        call = await request.decoded(decode_input_tokens)
        n_tokens = await counted(self._service, call, request=request)
        return Response(encode_input_tokens(n_tokens), media_type=JSON_TYPE)

    async def compact(self, request: ApiRequest) -> Response:
        """OpenAI's servers make an item of a conversation that only they can read.

        Raises: BadRequest.
        """
        raise BadRequest(
            "",
            "this server does not shorten conversations; send fewer items in `input`, or let the "
            'oldest be left out with `"truncation": "auto"`',
        )
