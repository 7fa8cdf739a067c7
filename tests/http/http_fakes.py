"""A scripted service behind the routes, and a raw ASGI client that can hang up or stop reading."""

import asyncio
import json
from pathlib import Path
from typing import Any

from localrun.core import Call, Done, Event, TextDelta, Usage
from localrun.diagnosis import diagnose
from localrun.http.routes import build_app
from localrun.ipc.messages import DevicesListed
from localrun.memory import Device
from localrun.settings import Settings
from localrun.spec import Resident
from modelstore.store import Store

DONE = Done("stop", Usage(prompt_count=3, completion_count=2, total_ns=9))


class ScriptedAnswer:
    """Gives what the test puts into `script`: events, or an exception to raise."""

    def __init__(self, *script: Event | Exception) -> None:
        self.script: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.n_closed = 0
        self.closed = asyncio.Event()
        self.n_taken = 0
        for step in script:
            self.script.put_nowait(step)

    n_prompt = 3
    loosened: tuple[str, ...] = ()

    def __aiter__(self):
        return self

    async def __anext__(self) -> Event:
        assert not self.n_closed, "a closed answer is not read"
        step = await self.script.get()
        self.n_taken += 1
        if isinstance(step, Exception):
            raise step
        return step

    async def aclose(self) -> None:
        self.n_closed += 1
        self.closed.set()


class ScriptedService:
    """Opens one prepared answer; `gate` holds `open` back, `error` is raised by it."""

    def __init__(self, *script: Event | Exception, error: Exception | None = None) -> None:
        self.answer = ScriptedAnswer(*script)
        self.error = error
        self.gate = asyncio.Event()
        self.gate.set()
        self.opening = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls: list[Call] = []
        self.residents: tuple[Resident, ...] = ()
        self.n_looks = 0

    async def open(self, call: Call) -> ScriptedAnswer:
        self.calls.append(call)
        self.opening.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.error is not None:
            raise self.error
        return self.answer

    async def count(self, call: Call) -> int:
        await self.open(call)
        return self.answer.n_prompt

    def resident(self) -> tuple[Resident, ...]:
        return self.residents

    async def unload_unnamed(self) -> None:
        self.n_looks += 1


def app_of(service: ScriptedService, root: Path, *, settings: Settings | None = None, **more: Any):
    settings = settings or Settings()

    async def list_devices() -> DevicesListed:
        return DevicesListed((Device("CPU", "cpu", 1, 2),), ("box:1",), "CPU : AVX = 1 | ")

    more.setdefault("diagnose", lambda: diagnose(settings, list_devices))
    return build_app(service, Store(root), settings, **more)


class Exchange:
    """One request, from inside: every message that the application sends, as it sends it."""

    def __init__(
        self,
        app,
        method: str,
        path: str,
        body: Any = b"",
        headers: dict[str, str] | None = None,
        peer: str = "127.0.0.1",
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in ({"Host": "127.0.0.1:11434"} | (headers or {})).items()
            ],
            "client": (peer, 50000),
            "server": ("127.0.0.1", 11434),
        }
        self._app = app
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.send_body(data, more=False)
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_reading = asyncio.Event()
        self.is_reading.set()

    def send_body(self, data: bytes, *, more: bool) -> None:
        self._requests.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def hang_up(self) -> None:
        self._requests.put_nowait({"type": "http.disconnect"})

    def start(self) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self._app(self.scope, self._requests.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.is_reading.wait()
        self.sent.put_nowait(message)

    async def head(self) -> tuple[int, dict[str, str]]:
        message = await self.sent.get()
        assert message["type"] == "http.response.start"
        return message["status"], {k.decode(): v.decode() for k, v in message["headers"]}

    async def piece(self) -> bytes:
        message = await self.sent.get()
        assert message["type"] == "http.response.body"
        return message.get("body", b"")

    async def run(self) -> tuple[int, dict[str, str], bytes]:
        """The whole exchange: status, headers, body; checks that the body is complete."""
        await self.start()
        status, headers = await self.head()
        body, more = b"", True
        while more:
            message = self.sent.get_nowait()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        assert self.sent.empty()
        return status, headers, body


def deltas(*texts: str) -> list[Event]:
    return [TextDelta(text) for text in texts]


def run(coroutine: Any) -> Any:
    """Runs a test's body, which must not need more than some seconds even on a busy machine."""
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def leave_while_it_opens(service: ScriptedService, exchange: Exchange) -> None:
    """The client hangs up before there is an answer: the work ends and nothing is sent."""
    service.gate.clear()
    task = exchange.start()
    await service.opening.wait()
    exchange.hang_up()
    await task
    assert service.cancelled.is_set()
    assert exchange.sent.empty()
