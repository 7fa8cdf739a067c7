"""Handlers of Ollama's two routes for text: decode, one call of the service, encode."""

from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse
from localrun.http.text import answer
from localrun.service import TextService
from localrun.wire.native import decode_chat, decode_generate
from localrun.wire.native_writer import NativeWriter


class NativeApi:
    """`/api/generate` and `/api/chat`."""

    def __init__(self, service: TextService) -> None:
        self._service = service

    async def generate(self, request: ApiRequest) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = await request.decoded(decode_generate)
        writer = NativeWriter(wanted.call.model, "generate")
        return answer(self._service, wanted, writer, "native", request=request)

    async def chat(self, request: ApiRequest) -> AnswerResponse:
        """Raises BadRequest, Unsupported before the answer is begun."""
        wanted = await request.decoded(decode_chat)
        writer = NativeWriter(wanted.call.model, "chat")
        return answer(self._service, wanted, writer, "native", request=request)
