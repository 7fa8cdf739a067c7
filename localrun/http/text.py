"""What every dialect's text route does with a decoded request."""

import logging
import re
from collections.abc import Mapping

from msgspec.structs import replace

from localrun.http.errors import Dialect, as_sent
from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse, AnswerWriter
from localrun.http.turns import HeldAnswer
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
    request: ApiRequest,
    headers: Mapping[str, str] | None = None,
) -> AnswerResponse:
    """The reply to `wanted`. A request without a prompt is answered by one object, never a stream.

    `request` says who asks, `headers` are the dialect's own. Fields without effect are named in a
    header and in the log.
    """
    caller = request.caller
    call = replace(wanted.call, client=caller.client, scope=caller.scope)

    async def opening() -> Answer:
        give_back = await request.take_turn()
        try:
            with as_sent(call.model):
                answer = await service.open(call)
        except BaseException:
            if give_back is not None:
                give_back()
            raise
        return answer if give_back is None else HeldAnswer(answer, give_back)

    return AnswerResponse(
        opening,
        writer,
        dialect,
        stream=wanted.stream and bool(call.prompts),
        n_choices=call.n_choices,
        headers={**(headers or {}), **ignored_headers(wanted.ignored)},
    )


def ignored_headers(ignored: tuple[str, ...]) -> dict[str, str]:
    """The header that names fields without effect, if any; they are logged too."""
    names = [name for name in ignored if _WORD.fullmatch(name)][:_MAX_NAMES]
    if not names:
        return {}
    _log.warning("options without effect: %s", ", ".join(names))
    return {IGNORED_HEADER: ", ".join(names)}
