"""Handlers that put something into the store: uploaded blobs and new models.

Owns who may name a file of this machine: only a peer that is on it. The work runs in threads of
its own, so that slow uploads never keep a list waiting; a client that leaves ends it.
"""

import asyncio
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import Response

from localrun.errors import BadRequest
from localrun.http.jobs import JOB_COMMAND, check_template
from localrun.http.progress import ProgressResponse
from localrun.http.requests import ApiRequest
from localrun.http.threads import ChunksToThread, StepsInThread, workers
from localrun.loopback import is_loopback
from localrun.options import IGNORED_OPTIONS, check_options
from localrun.service import TextService
from localrun.wire.native_models import CreateModel, decode_create
from modelstore.create import CreateRequest, Fetch, create
from modelstore.digest import Digest
from modelstore.errors import SourceNotAllowed, shown
from modelstore.store import Store

_log = logging.getLogger(__name__)

# Uploads and imports at once; more wait unread. Each holds a file and keeps one disk busy.
_N_JOBS = 8
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


class CreateApi:
    """`/api/blobs` and `/api/create`."""

    def __init__(self, service: TextService, store: Store, fetch: Fetch | None = None) -> None:
        """`fetch` pulls a model that a new one shall be made from."""
        self._service = service
        self._store = store
        self._fetch = fetch
        self._jobs = workers(_N_JOBS, "store")

    async def blob(self, request: ApiRequest) -> Response:
        """HEAD asks for a blob, POST brings it.

        Raises InvalidDigest, DigestMismatch, DiskFull, StoreNotWritable.
        """
        digest = Digest.parse(request.path_params["digest"])
        if request.method == "HEAD":
            exists = await asyncio.to_thread(self._store.blobs.exists, digest)
            return Response(status_code=200 if exists else 404)
        is_new = await self._ingest(request, digest)
        return Response(status_code=201 if is_new else 200)

    async def create(self, request: ApiRequest) -> ProgressResponse:
        """Raises BadRequest, InvalidDigest, SourceNotAllowed before the work begins."""
        wanted = await request.decoded(decode_create)
        steps = create(
            self._store,
            _create_request(wanted, is_local=_is_local(request)),
            check_parameters=check_parameters,
            check_template=check_template,
            fetch=self._fetch,
            job=JOB_COMMAND,
        )
        return ProgressResponse(
            StepsInThread(self._jobs, steps),
            stream=wanted.stream,
            on_end=self._service.unload_unnamed,
        )

    async def _ingest(self, request: ApiRequest, digest: Digest) -> bool:
        blobs = self._store.blobs
        announced = request.headers.get("content-length", "")
        total_bytes = int(announced) if announced.isdecimal() else 0
        # Before the first byte is read: the sender would wait for minutes to hear it.
        await asyncio.to_thread(blobs.check_room, digest, total_bytes)
        chunks = ChunksToThread()
        loop = asyncio.get_running_loop()
        ingest = functools.partial(blobs.ingest, chunks, digest, total_bytes=total_bytes)
        job = loop.run_in_executor(self._jobs, ingest)
        job.add_done_callback(lambda _: chunks.abandon())
        try:
            async for chunk in request.stream():
                if chunk and not await chunks.put(chunk):
                    break
            chunks.finish()
        except BaseException:
            chunks.abort()
            await asyncio.gather(job, return_exceptions=True)
            raise
        return (await job)[1]


def check_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters as they are stored, without those that Ollama has given up.

    Raises BadRequest for an unknown name or a bad value.
    """
    known, unknown = check_options(parameters, path="parameters")
    for name in unknown:
        if name not in IGNORED_OPTIONS:
            raise BadRequest(f"parameters.{shown(name)}", "there is no such parameter")
        _log.warning("the parameter %s has no effect and is left out", name)
    return known


def _create_request(wanted: CreateModel, *, is_local: bool) -> CreateRequest:
    return CreateRequest(
        name=wanted.model,
        from_=wanted.from_,
        files=None if wanted.files is None else _digests(wanted.files),
        path=None if wanted.path is None else _allowed_path(wanted.path, is_local=is_local),
        in_place=wanted.in_place,
        template=wanted.template,
        system=wanted.system,
        licenses=wanted.licenses,
        parameters=wanted.parameters,
        messages=wanted.messages,
        adapters=_digests(wanted.adapters),
        renderer=wanted.renderer,
        parser=wanted.parser,
        requires=wanted.requires,
        quantize=wanted.quantize,
    )


def _digests(files: Mapping[str, str]) -> dict[str, Digest]:
    return {name: Digest.parse(text) for name, text in files.items()}


def _allowed_path(text: str, *, is_local: bool) -> Path:
    if not is_local:
        raise SourceNotAllowed(
            "only a program on the daemon's machine may name a file there; upload it as a blob"
        )
    path = Path(text)
    if not path.is_absolute():
        raise BadRequest("path", "must be absolute: the daemon has another working folder")
    return path


def _is_local(request: ApiRequest) -> bool:
    # A proxy on this machine is a loopback peer too, but speaks for somebody else.
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    return is_loopback(request.client.host)
