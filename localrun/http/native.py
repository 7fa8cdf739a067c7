"""Handlers of Ollama's two routes for text: decode, one call of the service, encode."""

from starlette.requests import Request

from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer, client_of
from localrun.service import TextService
from localrun.wire.native import NativeWriter, decode_chat, decode_generate


class NativeApi:
    """`/api/generate` and `/api/chat`."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def generate(self, request: Request) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = decode_generate(await request.body())
        writer = NativeWriter(wanted.call.model, "generate")
        return answer(self._service, wanted, writer, "native", client=client_of(request))

    async def chat(self, request: Request) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = decode_chat(await request.body())
        writer = NativeWriter(wanted.call.model, "chat")
        return answer(self._service, wanted, writer, "native", client=client_of(request))
