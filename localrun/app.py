"""The composition root: settings → store, residency, service → the HTTP application, served.

Also the life of the daemon, up to a shutdown that finishes what it can; sockets and signals are
`server`'s.
"""

import asyncio
import gc
import logging
import logging.handlers
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from localrun import processors
from localrun.diagnosis import diagnose
from localrun.http.routes import Life, Registries, build_app
from localrun.http.threads import workers
from localrun.memory import Device
from localrun.placement.fit import Defaults, default_max_loaded
from localrun.placement.layers import usable
from localrun.placement.machine import gpu_backends, n_cpus
from localrun.placement.verdicts import Verdicts
from localrun.preparing import ServiceDefaults
from localrun.residency.memory import total
from localrun.residency.owner import Residency
from localrun.server import FLUSH_S, Server, bind, config
from localrun.service import InferenceService
from localrun.settings import BadSetting, Settings, cache_folder, models_folder
from localrun.supervisor.client import RunnerClient
from localrun.supervisor.devices import DeviceList, list_devices
from localrun.supervisor.empty import EmptyRunner
from localrun.supervisor.shares import Shares
from modelstore.errors import StoreError
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers

_log = logging.getLogger(__name__)

# Running answers get this long after SIGTERM; service managers kill after 10 s or more.
GRACE_S = 5.0

# A transfer that is stopped writes down what it has; a read notices within a quarter of a second.
_JOURNAL_S = 2.0

# How often a drain looks whether the last answer has ended.
_DRAIN_POLL_S = 0.05

# A file is some hundred thousand lines: days of a busy daemon. Three of them are kept beside it.
_LOG_BYTES = 10_000_000
_LOG_FILES = 3


class Daemon:
    """One daemon: its parts, and the order in which they start and end."""

    def __init__(self, settings: Settings) -> None:
        """Raises BadSetting for an entry of REGISTRIES that is none, StoreNotWritable."""
        self.settings = settings
        self.verdicts = Verdicts(cache_folder() / "verdicts.json")
        self.registries = Registries(_access(settings), Transfers())
        self.store = Store(models_folder(settings))
        self.residency: Residency[RunnerClient] = Residency(
            self._spawn,
            max_loaded=settings.max_loaded_models or default_max_loaded(n_gpus=0),
            max_queue=settings.max_queue,
            keep_alive_s=settings.keep_alive_s,
        )
        self.shares = Shares(processors.keep_off)
        self.devices = DeviceList(
            lambda: list_devices(settings.rpc_servers),
            has_gpus=bool(settings.rpc_servers) or gpu_backends() != (),
            held=self._held,
            on_listed=self._allow,
        )
        self.service = InferenceService(
            self.store,
            self.residency,
            ServiceDefaults(
                Defaults(
                    settings.context_length,
                    settings.num_thread or n_cpus(),
                    n_threads_max=max(settings.num_thread or 0, os.cpu_count() or 1),
                    gpu_overhead_bytes=settings.gpu_overhead_bytes,
                ),
                n_parallel=settings.num_parallel,
                kv_cache_type=settings.kv_cache_type,
                flash_attention=settings.flash_attention,
                kv_pool=settings.kv_pool,
                kv_layout=settings.kv_layout,
                host_tier_bytes=settings.host_tier_bytes,
                spreads=settings.sched_spread,
                rpc_servers=settings.rpc_servers,
                tpot_target_ms=settings.tpot_target_ms,
                embed_batch=settings.embed_batch,
                embed_delay_s=settings.embed_delay_ms / 1e3,
                deterministic=settings.deterministic,
                cuts_prompts=settings.truncate == "drop",
            ),
            self.verdicts,
            self.devices.get,
        )
        self.is_draining = False

    def _held(self) -> Mapping[str, int]:
        """Bytes that our models have, by device name."""
        return total(one.info.device_bytes for one in self.residency.resident() if one.info)

    def _allow(self, devices: tuple[Device, ...]) -> None:
        if self.settings.max_loaded_models is None:
            self.residency.allow(default_max_loaded(len(usable(devices)[0])))

    async def _spawn(self) -> EmptyRunner:
        loop = asyncio.get_running_loop()
        return await EmptyRunner.spawn(
            stall_timeout_s=self.settings.load_timeout_s,
            # On a thread: it writes a file.
            on_tested=lambda spec, found: loop.run_in_executor(
                None, self.verdicts.keep, spec, found
            ),
            on_loaded=self.shares.join,
        )

    @asynccontextmanager
    async def lifespan(self, _app: Any = None) -> AsyncIterator[None]:
        """Runs the owner of the loaded models; ends every runner at the end."""
        asyncio.get_running_loop().set_default_executor(workers(None, "worker"))
        if not self.settings.no_prune:
            await asyncio.to_thread(self._prune)
        owner = asyncio.create_task(self.residency.run(), name="residency")
        owner.add_done_callback(_report_escape)
        try:
            yield
        finally:
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)
            await self.residency.close()
            await asyncio.to_thread(self.registries.transfers.close, _JOURNAL_S)

    def _prune(self) -> None:
        try:
            self.store.prune()
        except StoreError as error:  # a store that is busy or read-only can still be served
            _log.warning("unreferenced blobs stay: %s", error)

    async def drain(self) -> None:
        """Refuses new requests, lets running answers end, and aborts those that do not."""
        self.is_draining = True
        self.residency.refuse_waiting()
        await self._wait_idle(GRACE_S)
        self.service.abort()
        await self._wait_idle(FLUSH_S)

    async def _wait_idle(self, limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while self.service.n_open and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)


def _access(settings: Settings) -> Access:
    try:
        entries = tuple(map(parse_registry, settings.registries))
    except ValueError as error:
        raise BadSetting("LOCALRUN_REGISTRIES", str(error)) from None
    return Access(entries, settings.hf_token)


def _report_escape(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception():
        _log.critical("the owner of the loaded models ended", exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)


def serve(settings: Settings, log_file: Path | None = None) -> int:
    """Runs the daemon in the foreground until SIGTERM or SIGINT; returns its exit code.

    Logs to `log_file`, which is rotated, or to stderr.
    Raises AddressInUse, InsecureAddress, OSError, errors of `modelstore.errors`.
    """
    _set_up_logging(settings.log_level, log_file)
    sock = bind(settings)
    host, port = sock.getsockname()[:2]
    # From here on the address that was really taken counts, not the name that led to it.
    settings = replace(settings, host=host, port=port)
    daemon = Daemon(settings)
    app = build_app(
        daemon.service,
        daemon.store,
        settings,
        diagnose=lambda: diagnose(settings, daemon.devices.renew),
        registries=daemon.registries,
        life=Life(daemon.lifespan, lambda: daemon.is_draining),
    )
    server = Server(config(app), daemon.drain)
    # The modules and the application live as long as the daemon: nothing to collect among them.
    gc.collect()
    gc.freeze()
    _log.info("listening on %s port %d, models in %s", host, port, daemon.store.root)
    server.run(sockets=[sock])
    return 0 if server.started else 1


def _set_up_logging(level: str, log_file: Path | None) -> None:
    handler: logging.Handler = logging.StreamHandler()
    if log_file is not None:
        handler = logging.handlers.RotatingFileHandler(
            log_file, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8"
        )
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[handler],
    )
