"""What every dialect's text route does with a decoded request."""

from collections.abc import Mapping

from msgspec.structs import replace

from localrun.core import Call
from localrun.http.errors import Dialect, as_sent
from localrun.http.notes import ignored_headers
from localrun.http.requests import ApiRequest
from localrun.http.streaming import AnswerResponse, AnswerWriter, outcome
from localrun.http.turns import HeldAnswer
from localrun.service import Answer, TextService
from localrun.wire.bodies import TextRequest


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


async def counted(service: TextService, call: Call, *, request: ApiRequest) -> int:
    """How many tokens the prompt of `call` has.

    Raises ClientDisconnect, and what `TextService.count` does.
    """
    caller = request.caller
    call = replace(call, client=caller.client, scope=caller.scope)

    async def count() -> int:
        with as_sent(call.model):
            return await service.count(call)

    return await outcome(request.receive, count())
