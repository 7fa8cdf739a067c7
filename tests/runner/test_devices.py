"""Devices and RPC servers: what is found, under which name, and what is left out without harm."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from rpc_server import RpcServer, free_port

from localrun.memory import CPU
from localrun.runner.ggml import rpc
from localrun.runner.ggml.devices import Machine, build
from localrun.runner.measure import free_ram_bytes, total_ram_bytes

Start = Callable[[], RpcServer]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes | None], str]]:
    """Listens and says something, or nothing, to whoever connects."""
    listeners: list[socket.socket] = []

    def start(answer: bytes | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 10)
                if answer is None:
                    connection.recv(1 << 10)  # until the other side gives up
                else:
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def test_the_cpu_has_the_memory_of_this_machine(machine: Machine) -> None:
    (cpu,) = [device for device in machine.look().devices if device.kind == "cpu"]
    assert cpu.name == CPU
    assert cpu.total_bytes == total_ram_bytes() >= cpu.free_bytes > 0
    assert cpu.free_bytes == pytest.approx(free_ram_bytes(), rel=0.2)
    assert cpu.description


def test_the_build_tells_what_it_can_use() -> None:
    assert "CPU" in build()


def test_a_server_lends_its_devices_as_gpus(machine: Machine, start_rpc_server: Start) -> None:
    endpoint = start_rpc_server().endpoint
    found = machine.look((endpoint,), {"": 1 << 30})
    (gpu,) = [device for device in found.devices if device.endpoint]
    assert (gpu.name, gpu.kind, gpu.endpoint, found.away) == ("RPC0", "gpu", endpoint, {})
    assert gpu.total_bytes > gpu.free_bytes > 0


@pytest.mark.parametrize(
    ("overheads", "kept_bytes"),
    [({}, 0), ({"": 5}, 5), ({"RPC0": 7, "": 5}, 7), ({"RPC1": 7}, 0), ({"": 1 << 60}, None)],
)
def test_what_the_user_keeps_is_not_free(
    machine: Machine, rpc_server: RpcServer, overheads: dict[str, int], kept_bytes: int | None
) -> None:
    def free(overheads: dict[str, int]) -> int:
        devices = machine.look((rpc_server.endpoint,), overheads).devices
        return next(device.free_bytes for device in devices if device.name == "RPC0")

    want = 0 if kept_bytes is None else free({}) - kept_bytes
    assert free(overheads) == want


def test_a_server_keeps_its_name_while_another_one_is_away(
    machine: Machine, rpc_server: RpcServer, start_rpc_server: Start
) -> None:
    gone, there = f"127.0.0.1:{free_port()}", rpc_server.endpoint
    found = machine.look((gone, there))
    assert [device.name for device in found.devices if device.endpoint] == ["RPC1"]
    assert list(found.away) == [gone]
    other = start_rpc_server().endpoint
    names = {device.endpoint: device.name for device in machine.look((other, there)).devices}
    assert (names[other], names[there]) == ("RPC0", "RPC1")


def test_a_server_that_is_named_twice_is_one(machine: Machine, rpc_server: RpcServer) -> None:
    found = machine.look((rpc_server.endpoint, rpc_server.endpoint))
    assert [device.name for device in found.devices if device.endpoint] == ["RPC0"]


def test_a_server_that_serves_somebody_else_is_left_out(
    machine: Machine, rpc_server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "TIMEOUT_S", 0.2)
    host, port = rpc_server.endpoint.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(rpc._HELLO)
        assert client.recv(1 << 10)
        found = machine.look((rpc_server.endpoint,))
        assert "one client at a time" in found.away[rpc_server.endpoint]
    assert not machine.look((rpc_server.endpoint,)).away


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "one client at a time"),
        (b"", "no RPC server"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no RPC server"),
        (b"\x05", "no RPC server"),
    ],
)
def test_whoever_is_no_server_is_left_out(
    stranger: Callable[[bytes | None], str], answer: bytes | None, problem: str
) -> None:
    assert problem in rpc.problem_of(stranger(answer), timeout_s=0.2)


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("127.0.0.1", "host:port"),
        (":5", "host:port"),
        ("host:", "host:port"),
        ("host:x", "host:port"),
        ("host:99999", "host:port"),
        ("nowhere.invalid:5000", "nobody answers"),
    ],
)
def test_what_is_no_address_is_left_out(endpoint: str, problem: str) -> None:
    assert problem in rpc.problem_of(endpoint)


def test_nobody_answers_at_a_free_port() -> None:
    assert "nobody answers" in rpc.problem_of(f"127.0.0.1:{free_port()}")
