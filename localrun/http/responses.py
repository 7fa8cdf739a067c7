"""The handler of OpenAI's responses: decode, one call of the service, encode."""

from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer
from localrun.service import TextService
from localrun.wire.responses import decode_responses
from localrun.wire.responses_writer import ResponsesWriter


class ResponsesApi:
    """`/v1/responses`."""

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
