"""Handlers of our routes about the store's disk: what it takes, what may go, what is damaged.

Every call of the store runs in a thread; verifying, which reads for minutes, in threads of its own.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from starlette.responses import Response

from localrun.http.progress import ProgressResponse, Step
from localrun.http.requests import ApiRequest
from localrun.http.threads import StepsInThread, workers
from localrun.service import TextService
from localrun.wire import native_storage as wire
from localrun.wire.native_models import encode_struct
from localrun.wire.streams import JSON_TYPE
from modelstore.inventory import Piece
from modelstore.names import ModelName
from modelstore.pruning import BY_COMMAND, PruneReport
from modelstore.sources import SUCCESS
from modelstore.store import Store
from modelstore.usage import Usage, usage
from modelstore.verify import FetchBlob, Health, verify

# One disk serves one reader best; a second one need not wait for hours.
_N_VERIFYING = 2


class StorageApi:
    """`/api/df`, `/api/prune`, `/api/verify`. `fetch` brings one blob for a repair."""

    def __init__(self, service: TextService, store: Store, fetch: FetchBlob | None = None) -> None:
        self._service = service
        self._store = store
        self._fetch = fetch
        self._verifying = workers(_N_VERIFYING, "verify")

    async def df(self, request: ApiRequest) -> Response:
        """The figures of the store."""
        return _json(_use(await asyncio.to_thread(usage, self._store)))

    async def prune(self, request: ApiRequest) -> Response:
        """Raises BadRequest, StoreBusy, StoreNotWritable."""
        wanted = await request.decoded(wire.decode_prune)
        rules = replace(
            BY_COMMAND,
            only_partials=wanted.only_partials,
            foreign=wanted.foreign,
            dry_run=wanted.dry_run,
        )
        if wanted.min_age_s is not None:
            rules = replace(rules, min_age_s=wanted.min_age_s, partial_age_s=wanted.min_age_s)
        report = await asyncio.to_thread(self._store.prune, rules)
        return _json(_pruned(report, dry_run=wanted.dry_run))

    async def verify(self, request: ApiRequest) -> ProgressResponse:
        """Raises BadRequest, InvalidName; ModelNotFound comes before the first step."""
        wanted = await request.decoded(wire.decode_verify)
        for name in wanted.models:
            ModelName.parse(name)
        return ProgressResponse(
            StepsInThread(self._verifying, self._steps(wanted)),
            stream=wanted.stream,
            on_end=self._service.unload_unnamed,
        )

    def _steps(self, wanted: wire.VerifyModels) -> Iterator[Step]:
        verdicts = []
        for step in verify(self._store, wanted.models, repair=wanted.repair, fetch=self._fetch):
            if isinstance(step, Health):
                verdicts.append(_verdict(step))
            else:
                yield step
        yield wire.Verified(SUCCESS, all(one.ok for one in verdicts), verdicts)


def _use(found: Usage) -> wire.StoreUse:
    return wire.StoreUse(
        models=[
            wire.ModelUse(
                one.name.display(),
                one.size_bytes,
                one.own_bytes,
                one.shared_bytes,
                one.in_place_bytes,
                one.n_missing,
            )
            for one in found.models
        ],
        unreadable=list(found.unreadable),
        blobs=wire.Files(found.n_blobs, found.blobs_bytes),
        unreferenced=_files(found.unreferenced),
        partials=[_piece(piece) for piece in found.pieces if piece.kind == "partial"],
        corrupt=_files(piece for piece in found.pieces if piece.kind == "corrupt"),
        leftovers=_files(piece for piece in found.pieces if piece.kind == "leftover"),
        in_place=wire.Files(found.n_in_place, found.in_place_bytes),
        disk_free=found.free_bytes,
    )


def _pruned(report: PruneReport, *, dry_run: bool) -> wire.Pruned:
    return wire.Pruned(
        dry_run=dry_run,
        freed=report.freed_bytes,
        gone=[_piece(piece) for piece in report.gone],
        spared=report.n_spared,
        unreadable=list(report.unreadable),
        refused=report.is_refused,
        young=report.n_young,
        min_age_s=report.min_age_s,
    )


def _verdict(health: Health) -> wire.Verdict:
    problems = [
        wire.Trouble(one.kind, one.text, one.digest.text if one.digest else "")
        for one in health.problems
    ]
    return wire.Verdict(
        health.model, health.is_well, health.is_repaired, problems, list(health.notes)
    )


def _files(pieces: Iterable[Piece]) -> wire.Files:
    sizes = [piece.size_bytes for piece in pieces]
    return wire.Files(len(sizes), sum(sizes))


def _piece(piece: Piece) -> wire.Piece:
    return wire.Piece(piece.kind, piece.name, piece.size_bytes, piece.model, piece.total_bytes)


def _json(reply: wire.StoreUse | wire.Pruned) -> Response:
    return Response(encode_struct(reply), media_type=JSON_TYPE)
