"""What there is to compute on: asked of a runner that loads nothing and ends after its answer.

Only a runner may look, since a driver can end or hang the process that asks it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec.structs import replace

from localrun.ipc.messages import DevicesListed, ListDevices, Outbox
from localrun.memory import Device
from localrun.supervisor.process import RunnerProcess

_log = logging.getLogger(__name__)

# A driver takes a second or two when it wakes up; one that hangs must not hold up requests.
_TIMEOUT_S = 15.0


class DevicesUnknown(Exception):
    """They could not be listed; the text says why."""


async def list_devices(
    rpc_servers: tuple[str, ...] = (), *, timeout_s: float = _TIMEOUT_S
) -> DevicesListed:
    """The devices of this machine and of `rpc_servers` (host:port), with their free memory now.

    Raises DevicesUnknown.
    """
    try:
        process = await RunnerProcess.spawn()
    except OSError as error:
        raise DevicesUnknown(f"no process could be started: {error.strerror}") from None
    connection = process.connection
    listed: asyncio.Future[DevicesListed] = asyncio.get_running_loop().create_future()

    def receive(outbox: Outbox) -> None:
        for item in outbox.items:
            if isinstance(item, DevicesListed):
                listed.set_result(item)

    connection.receive = receive
    try:
        connection.send(ListDevices(rpc_servers))
        ends = (listed, connection.closed)
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        process.kill()
    if not (listed.done() or connection.closed.done()):
        connection.close()
        # Its end is not waited for: what hangs in its driver may not even die.
        raise DevicesUnknown(f"no answer within {timeout_s:g} s; a driver may hang")
    how = await process.wait()
    if listed.done():
        return listed.result()
    tail = "; ".join(line for line in process.log_tail if line.strip())
    raise DevicesUnknown(f"the process that looked ended: {how}" + (f" ({tail})" if tail else ""))


class DeviceList:
    """The devices as they were seen last. Belongs to one event loop.

    They are looked at when somebody first needs them, not when the daemon starts: a daemon that
    starts with the machine may be there before its drivers, and what it saw then would count.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[DevicesListed]],
        *,
        has_gpus: bool,
        held: Callable[[], Mapping[str, int]] = dict,
        on_listed: Callable[[tuple[Device, ...]], object] = lambda _devices: None,
    ) -> None:
        """`has_gpus` False when there cannot be one: then `get` need not look.

        `held` tells the bytes that our models have, by device name.
        """
        self._ask = ask
        self._held = held
        self._on_listed = on_listed
        self._known: tuple[Device, ...] | None = None if has_gpus else ()
        self._asking: asyncio.Task[DevicesListed] | None = None

    async def get(self) -> tuple[Device, ...]:
        """The devices; none where they cannot be listed, which is logged."""
        if self._known is None:
            try:
                await self.renew()
            except DevicesUnknown as error:
                _log.warning("the GPUs are not known and do not count: %s", error)
                self._known = ()
        return self._known or ()

    async def renew(self) -> DevicesListed:
        """Looks, once for all who ask meanwhile; see `with_busy`. Raises DevicesUnknown."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._look(), name="list devices")
        # Others may wait for it too, so whoever leaves does not end it.
        return await asyncio.shield(self._asking)

    async def _look(self) -> DevicesListed:
        try:
            listed = await self._ask()
        finally:
            self._asking = None
        held = self._held()
        busy = busy_devices(listed, self._known or (), held)
        self._known = (*listed.devices, *busy)
        self._on_listed(self._known)
        listed = with_busy(listed, busy, held)
        for server in listed.unreachable:
            _log.warning("the RPC server %s does not answer", server)
        return listed


def busy_devices(
    listed: DevicesListed, known: Iterable[Device], held: Mapping[str, int]
) -> tuple[Device, ...]:
    """Those of the `known` devices that are away because they work for us. Pure.

    An RPC server has one client at a time: while a model of ours has it, it answers nobody else.
    """
    away = [device for device in known if device.endpoint in listed.unreachable]
    servers = {device.endpoint for device in away if held.get(device.name)}
    return tuple(device for device in away if device.endpoint in servers)


def with_busy(
    listed: DevicesListed, busy: tuple[Device, ...], held: Mapping[str, int]
) -> DevicesListed:
    """`listed` with the busy devices, of which is free what was free before our models. Pure."""
    servers = {device.endpoint for device in busy}
    now = (
        replace(device, free_bytes=max(0, device.free_bytes - held.get(device.name, 0)))
        for device in busy
    )
    return replace(
        listed,
        devices=(*listed.devices, *now),
        unreachable=tuple(server for server in listed.unreachable if server not in servers),
    )
