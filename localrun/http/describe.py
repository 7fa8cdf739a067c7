"""What the daemon says about models: rows of lists, and the long description of one.

Reads the store and headers of GGUF files, so it runs in threads and is safe to share between them.
What a model can do is remembered by `abilities`: a header takes some milliseconds.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from localrun.http.abilities import Abilities
from localrun.memory import CPU
from localrun.spec import Resident, RunnerInfo, RunnerStats
from localrun.wire.native_models import (
    Description,
    Details,
    DevicePart,
    InstalledModel,
    Kv,
    RunningModel,
    ShowModel,
    Slots,
)
from localrun.wire.timestamps import expiry
from modelstore import show
from modelstore.errors import BlobNotFound, StoreError
from modelstore.gguf import Header, read_model_header
from modelstore.records import Listing, Record
from modelstore.store import Store
from modelstore.templates import active_template
from modelstore.vocabulary import vocabulary_of

_log = logging.getLogger(__name__)

# What Ollama uses where neither the model nor its file has a template.
_PLAIN_TEMPLATE = "{{ .Prompt }}"


class Describer:
    """Answers from one store. Safe to share between threads."""

    def __init__(self, store: Store, abilities: Abilities) -> None:
        self._store = store
        self._abilities = abilities

    def installed(self) -> list[InstalledModel]:
        """A row for every model that can be read, latest change first."""
        rows = [
            InstalledModel(
                name=listing.name.display(),
                model=listing.name.display(),
                modified_at=listing.modified_at,
                size=listing.size_bytes,
                digest=listing.digest,
                details=_details(listing, with_lengths=True),
                capabilities=self._capabilities_of(listing) or UNSET,
                incomplete=self._is_incomplete(listing) or UNSET,
            )
            for listing in self._store.list()
        ]
        self._abilities.save()
        return rows

    def running(self, residents: Sequence[Resident]) -> list[RunningModel]:
        """A row for every model in memory, the one that leaves last first."""
        now_s = time.time()
        latest_first = sorted(residents, key=lambda one: one.expires_at_s, reverse=True)
        return [self._row(resident, now_s) for resident in latest_first]

    def describe(self, wanted: ShowModel, *, titled: bool) -> Description:
        """The long description; `titled` puts the name among the values of the header.

        Raises InvalidName, ModelNotFound, CorruptManifest, IncompleteModel.
        """
        verbose = wanted.verbose
        record = self._store.resolve(wanted.model)
        record = dataclasses.replace(
            record,
            system=wanted.system or record.system,
            parameters={**record.parameters, **wanted.options},
        )
        files = _Headers.of(record, arrays=verbose)
        info = show.model_info(files.model, verbose=verbose) if files.model else {}
        if titled:
            info["general.basename"] = wanted.model
        projector = show.model_info(files.projector, verbose=verbose) if files.projector else UNSET
        active = active_template(record, files.model)
        return Description(
            license="\n".join(record.licenses) or UNSET,
            modelfile=show.render_modelfile(record),
            parameters=show.parameters_text(record) or UNSET,
            template=active.source or _PLAIN_TEMPLATE,
            template_origin=active.origin,
            system=record.system or UNSET,
            details=_details(record),
            messages=record.messages or UNSET,
            model_info=info,
            projector_info=projector,
            tensors=show.tensor_list(files.model) if verbose and files.model else UNSET,
            capabilities=_capabilities(record, files),
            modified_at=record.modified_at,
            requires=record.config.requires or UNSET,
            problem=self._problem(record) or UNSET,
        )

    def _is_incomplete(self, listing: Listing) -> bool:
        return not all(map(self._store.blobs.exists, listing.weight_digests))

    def _problem(self, record: Record) -> str:
        try:
            self._store.check_files(record)
        except BlobNotFound:
            name = record.name.display()
            return f"the weights are missing; `localrun verify --repair {name}` fetches them again"
        except StoreError as error:
            return str(error)
        return ""

    def _row(self, resident: Resident, now_s: float) -> RunningModel:
        record = self._record(resident.model)
        info = resident.info
        loaded = info if resident.state != "loading" else None
        return RunningModel(
            name=resident.model,
            model=resident.model,
            size=info.size_bytes if info else 0,
            digest=record.digest if record else "",
            details=_details(record) if record else Details(),
            expires_at=expiry(resident.expires_at_s, now_s),
            size_vram=info.size_vram_bytes if info else 0,
            context_length=info.n_ctx if info else 0,
            slots=Slots(info.n_slots if info else 0, resident.n_busy),
            queued=resident.n_queued,
            state=resident.state,
            layout=loaded.layout if loaded else UNSET,
            kv=_kv(loaded, resident.stats) if loaded else UNSET,
            devices=_parts(info) if info else UNSET,
        )

    def _record(self, name: str) -> Record | None:
        try:
            return self._store.resolve(name)
        except StoreError as error:
            # It was removed while in memory, where it stays until it is idle.
            _log.info("%s is in memory but not in the store: %s", name, error)
            return None

    def _capabilities_of(self, listing: Listing) -> list[str]:
        found = self._abilities.get(listing.digest)
        if found is None:
            try:
                record = self._store.resolve(listing.name)
            except StoreError:
                return []
            files = _Headers.of(record)
            found = _capabilities(record, files)
            if files.model is not None:
                self._abilities.put(listing.digest, found)
        return found


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers of a model's files; None where there is none that can be read."""

    model: Header | None
    projector: Header | None

    @staticmethod
    def of(record: Record, *, arrays: bool = False) -> "_Headers":
        projector = next(iter(record.projector_paths), None)
        return _Headers(
            _header(record.model_paths, arrays), _header((projector,) if projector else (), arrays)
        )


def _capabilities(record: Record, files: _Headers) -> list[str]:
    vocabulary = vocabulary_of(record.model_paths) if files.model else None
    return show.capabilities(record, files.model, files.projector, vocabulary)


def _header(paths: tuple[Path, ...], arrays: bool) -> Header | None:
    if not paths:
        return None
    try:
        return read_model_header(paths, arrays=arrays)
    except StoreError as error:
        _log.warning("a model cannot be described in full: %s", error)
        return None


def _parts(info: RunnerInfo) -> tuple[DevicePart, ...]:
    """What lies where, RAM first."""
    by_name = sorted(info.needs.items(), key=lambda part: (part[0] != CPU, part[0]))
    return tuple(
        DevicePart(name, n.total_bytes, n.weights_bytes, n.kv_bytes, n.compute_bytes)
        for name, n in by_name
    )


def _kv(info: RunnerInfo, stats: RunnerStats | None) -> Kv:
    """What the runner said last; before its first word all cells are free."""
    said = stats.values if stats else {"kv_cells": info.n_cells, "kv_cells_free": info.n_cells}
    names = ("kv_cells", "kv_cells_used", "kv_cells_retained", "kv_cells_free", "kv_cells_used_max")
    return Kv(*(int(said.get(name, 0)) for name in names))


def _details(found: Listing | Record, *, with_lengths: bool = False) -> Details:
    config = found.config
    return Details(
        parent_model=found.parent_model,
        format=config.model_format,
        family=config.model_family,
        families=config.model_families,
        parameter_size=config.model_type,
        quantization_level=config.file_type,
        context_length=(with_lengths and config.context_length) or UNSET,
        embedding_length=(with_lengths and config.embedding_length) or UNSET,
    )
