"""The route about the machine that the daemon runs on. What there is to say is `diagnosis`'s."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from localrun.diagnosis import Diagnosis
from localrun.http.requests import ApiRequest
from localrun.wire.native_models import encode_struct
from localrun.wire.streams import JSON_TYPE

Diagnose = Callable[[], Awaitable[Diagnosis]]


class MachineApi:
    """What this machine offers to models."""

    def __init__(self, diagnose: Diagnose) -> None:
        self._diagnose = diagnose

    async def devices(self, request: ApiRequest) -> Response:
        """Devices and their memory now, CPUs, build, folder of the models."""
        return Response(encode_struct(await self._diagnose()), media_type=JSON_TYPE)
