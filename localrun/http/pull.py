"""The handler that fetches models from registries, in threads of its own.

What may be contacted is the policy's decision and comes from the settings; a request's `insecure`
cannot widen it. A client that leaves ends its interest, and with the last one the transfer ends.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from localrun.http.progress import ProgressResponse
from localrun.http.requests import ApiRequest
from localrun.http.threads import StepsInThread, workers
from localrun.service import TextService
from localrun.wire.native_models import decode_pull
from modelstore.manifest import Layer
from modelstore.names import ModelName
from modelstore.pull_names import GgufUrl, parse_pull
from modelstore.registry.access import Access
from modelstore.sources import SUCCESS, Progress
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers

if TYPE_CHECKING:
    from modelstore.pull import Puller

# Pulls that are reported on at once, each by a thread that mostly waits; more wait for their turn.
_N_PULLS = 32


class PullApi:
    """`/api/pull`."""

    def __init__(
        self, service: TextService, store: Store, access: Access, transfers: Transfers
    ) -> None:
        self._service = service
        self._store = store
        self._access = access
        self._transfers = transfers
        self._jobs = workers(_N_PULLS, "pull")

    async def pull(self, request: ApiRequest) -> ProgressResponse:
        """Raises BadRequest, InvalidName before anything goes to the network."""
        wanted = await request.decoded(decode_pull)
        source = parse_pull(wanted.model)
        return ProgressResponse(
            StepsInThread(self._jobs, self._steps(source, insecure=wanted.insecure)),
            stream=wanted.stream,
            on_end=self._service.unload_unnamed,
        )

    def fetch(self, name: ModelName) -> Iterator[Progress]:
        """The steps of pulling a model, for who needs it on the way to something else.

        Without the last one, which would tell clients that all is done.
        """
        for step in self._steps(name, insecure=False):
            if step.status != SUCCESS:
                yield step

    def fetch_blob(self, name: ModelName, layer: Layer) -> Iterator[Progress]:
        """The steps of bringing one blob of a model that is here again, for a repair."""
        yield from self._puller().fetch_blob(name, layer)

    def _steps(self, source: ModelName | GgufUrl, *, insecure: bool) -> Iterator[Progress]:
        yield from self._puller().pull(source, insecure=insecure)

    def _puller(self) -> "Puller":
        # Imported here, in the thread: most daemons run for days without a pull, and the HTTP
        # library takes memory and a tenth of a second.
        from modelstore.pull import Puller

        return Puller(self._store, self._transfers, self._access)
