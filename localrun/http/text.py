"""What every dialect's text route does with a decoded request."""

import logging
import re

from msgspec.structs import replace
from starlette.requests import Request

from localrun.http.errors import Dialect, as_sent
from localrun.http.streaming import AnswerResponse, AnswerWriter
from localrun.service import Answer, TextService
from localrun.wire.bodies import TextRequest

_log = logging.getLogger(__name__)

IGNORED_HEADER = "X-Localrun-Ignored-Options"
# The names come from the client: only what is a word may enter a header or the log.
_WORD = re.compile(r"[\w.-]{1,64}", re.ASCII)
_MAX_NAMES = 32


def answer(
    service: TextService,
    wanted: TextRequest,
    writer: AnswerWriter,
    dialect: Dialect,
    *,
    client: str,
) -> AnswerResponse:
    """The reply to `wanted`. A request without a prompt is answered by one object, never a stream.

    `client` is who asks. Fields without effect are named in a header and in the log.
    """
    call = replace(wanted.call, client=client)

    async def opening() -> Answer:
        with as_sent(call.model):
            return await service.open(call)

    return AnswerResponse(
        opening,
        writer,
        dialect,
        stream=wanted.stream and bool(call.prompts),
        n_choices=call.n_choices,
        headers=_headers(wanted.ignored),
    )


def client_of(request: Request) -> str:
    """Whom requests are shared out fairly among: the peer's address, without its port."""
    return request.client.host if request.client else ""


def _headers(ignored: tuple[str, ...]) -> dict[str, str]:
    names = [name for name in ignored if _WORD.fullmatch(name)][:_MAX_NAMES]
    if not names:
        return {}
    _log.warning("options without effect: %s", ", ".join(names))
    return {IGNORED_HEADER: ", ".join(names)}
