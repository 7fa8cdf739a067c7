"""The handler that sends models to registries, in threads of its own.

Whom it may contact is the policy's decision, as for `pull`. A client that leaves ends the push,
and the next one does not send again the blobs that have arrived.
"""

import threading
from collections.abc import Iterator

from localrun.errors import BadRequest
from localrun.http.errors import as_sent
from localrun.http.progress import ProgressResponse
from localrun.http.requests import ApiRequest
from localrun.http.threads import StepsInThread, workers
from localrun.wire.native_models import PullModel, decode_pull
from modelstore.errors import InvalidName
from modelstore.names import ModelName
from modelstore.registry.access import Access
from modelstore.sources import Progress
from modelstore.store import Store

# Pushes at once; the way out is the bottleneck, so that more would only share it.
_N_PUSHES = 4


class PushApi:
    """`/api/push`."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._access = access
        self._jobs = workers(_N_PUSHES, "push")

    async def push(self, request: ApiRequest) -> ProgressResponse:
        """Raises BadRequest before anything goes to the network."""
        wanted = await request.decoded(decode_pull)
        try:
            name = ModelName.parse(wanted.model)
        except InvalidName as error:
            raise BadRequest("", str(error)) from error
        stop = threading.Event()

        async def end() -> None:
            stop.set()  # a thread that waits for a slow registry would not look up otherwise

        return ProgressResponse(
            StepsInThread(self._jobs, self._steps(name, wanted, stop)),
            stream=wanted.stream,
            on_end=end,
        )

    def _steps(
        self, name: ModelName, wanted: PullModel, stop: threading.Event
    ) -> Iterator[Progress]:
        # Imported here, in the thread: see `PullApi`.
        from modelstore.push import push

        with as_sent(wanted.model):
            yield from push(self._store, self._access, name, insecure=wanted.insecure, stop=stop)
