"""Whom the daemon contacts: addresses, entries of REGISTRIES, redirects, proxies."""

import ipaddress
import socket
import threading
from typing import Any

import pytest
from faulty_server import Fault, FaultyRegistry, serving

from modelstore.errors import AddressNotAllowed, BadReply, HostUnreachable, InvalidName, Stopped
from modelstore.registry.access import Pace
from modelstore.registry.address import Policy, is_public, parse_registry
from modelstore.registry.web import MAX_REDIRECTS, Web

PACE = Pace(5.0, 5.0)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("127.8.9.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.31.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("198.18.0.1", False),
        ("192.0.2.1", False),
        ("224.0.0.1", False),
        ("239.1.1.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fc00::1", False),
        ("fd12::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("2001:db8::1", False),
    ],
)
def test_which_addresses_are_public(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("Host", ("host", None, "", "", "")),
        ("host:5000", ("host", 5000, "", "", "")),
        ("http://10.0.0.1:5000/", ("10.0.0.1", 5000, "http", "", "")),
        ("[::1]:5000", ("::1", 5000, "", "", "")),
        ("https://me:p%40ss@host", ("host", None, "https", "me", "p@ss")),
    ],
)
def test_an_entry(text: str, entry: tuple[Any, ...]) -> None:
    made = parse_registry(text)
    assert (made.host, made.port, made.scheme, made.user, made.password) == entry
    assert "p@ss" not in repr(made)


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://h", "h/path", "h:port", "http://me:secret@h", "me:secret@h", "é"]
)
def test_an_entry_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="`") as caught:
        parse_registry(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "host", "insecure", "urls"),
    [
        ("", "host", False, ["https://host"]),
        ("", "host", True, ["https://host"]),
        ("host", "host", False, ["https://host"]),
        ("host", "host", True, ["https://host", "http://host"]),
        ("host", "host:5000", True, ["https://host:5000", "http://host:5000"]),
        ("host:5000", "host", True, ["https://host"]),
        ("http://host:5000", "host:5000", False, ["http://host:5000"]),
        ("http://host:5000", "HOST:5000", False, ["http://HOST:5000"]),
        ("http://host:80", "host", False, ["http://host"]),
        ("https://host", "host", True, ["https://host"]),
    ],
)
def test_where_a_registry_is(entry: str, host: str, insecure: bool, urls: list[str]) -> None:
    entries = (parse_registry(entry),) if entry else ()
    assert list(Policy(entries, insecure).base_urls(host)) == urls


@pytest.mark.parametrize("host", ["host:x", "host:0", "host:65536", "fe80::1", "a:1:2"])
def test_a_host_that_no_url_can_have(host: str) -> None:
    with pytest.raises(InvalidName):
        Policy().base_urls(host)


def resolver(*answers: str) -> Any:
    """Answers with one address after the other, the last one for ever."""
    left = list(answers)

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        address = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    return resolve


def test_a_name_that_leads_inside_is_refused() -> None:
    with pytest.raises(AddressNotAllowed, match="LOCALRUN_REGISTRIES"):
        Policy(resolver=resolver("10.0.0.1")).addresses("inside.example", 443)


def test_one_inside_address_among_others_is_enough() -> None:
    def both(host: str, port: int, **_: Any) -> list[Any]:
        return [*resolver("8.8.8.8")(host, port), *resolver("127.0.0.1")(host, port)]

    with pytest.raises(AddressNotAllowed):
        Policy(resolver=both).addresses("two.example", 443)


def test_what_is_connected_to_is_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[str] = []

    def connect(address: tuple[str, int], *_: Any, **__: Any) -> socket.socket:
        connected.append(address[0])
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "create_connection", connect)
    policy = Policy(resolver=resolver("8.8.8.8", "127.0.0.1"))
    web = Web(policy, pace=PACE)
    with pytest.raises(HostUnreachable), web.open("GET", "https://rebinding.example/x"):
        pass
    web.close()
    assert connected == ["8.8.8.8"]


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:{port}/x",
        "http://127.0.0.1:{port}/x",
        "https://localhost:{port}/x",
        "https://127.1:{port}/x",
        "https://2130706433:{port}/x",
        "https://0x7f000001:{port}/x",
        "https://[::1]:{port}/x",
        "https://[::ffff:127.0.0.1]:{port}/x",
        "https://0.0.0.0:{port}/x",
        "ftp://127.0.0.1:{port}/x",
    ],
)
def test_this_machine_is_not_contacted_unless_it_is_listed(url: str, insecure: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        web = Web(Policy(insecure=insecure), pace=PACE)
        with (
            pytest.raises((AddressNotAllowed, HostUnreachable)) as caught,
            web.open("GET", url.format(port=listener.getsockname()[1])),
        ):
            pass
        web.close()
        if isinstance(caught.value, AddressNotAllowed):
            assert "LOCALRUN_REGISTRIES" in str(caught.value)
        with pytest.raises(BlockingIOError):
            listener.accept()


def listed(server: FaultyRegistry) -> Policy:
    return Policy((parse_registry(f"http://{server.host}"),))


def test_a_redirect_is_checked_like_a_first_request(registry: FaultyRegistry) -> None:
    with serving() as inside:
        inside.put("a/b", ("x", b"internal"))
        registry.put("a/b", ("x", b"data"))
        registry.plan = lambda asked: Fault(location=f"http://{inside.host}/secret")
        web = Web(listed(registry), pace=PACE)
        (digest, *_) = (d for d, data in registry.blobs.items() if data == b"data")
        url = f"http://{registry.host}/v2/a/b/blobs/{digest}"
        with pytest.raises(AddressNotAllowed), web.open("GET", url):
            pass
        web.close()
        assert inside.asked == []


def test_redirects_have_an_end(registry: FaultyRegistry) -> None:
    registry.put("a/b", ("x", b"data"))
    (digest, *_) = (d for d, data in registry.blobs.items() if data == b"data")
    registry.plan = lambda asked: Fault(location=f"/again/{digest}")
    web = Web(listed(registry), pace=PACE)
    with (
        pytest.raises(BadReply, match="redirects"),
        web.open("GET", f"http://{registry.host}/v2/a/b/blobs/{digest}"),
    ):
        pass
    web.close()
    assert len(registry.asked) == MAX_REDIRECTS + 1


def test_a_read_ends_soon_after_it_is_stopped(registry: FaultyRegistry) -> None:
    data = b"x" * 100_000
    registry.put("a/b", ("x", data))
    registry.plan = lambda asked: Fault(stall_at=50_000)
    (digest, *_) = (d for d, blob in registry.blobs.items() if blob == data)
    stop = threading.Event()
    web = Web(listed(registry), stop=stop, pace=Pace(60.0, 3600.0))
    with web.open("GET", f"http://{registry.host}/v2/a/b/blobs/{digest}") as response:
        chunks = response.iter_raw()
        n_bytes = 0
        while n_bytes < 50_000:
            n_bytes += len(next(chunks))
        stop.set()
        with pytest.raises(Stopped):
            next(chunks)
    web.close()


def test_a_page_in_the_way_of_the_proxy_names_it(
    monkeypatch: pytest.MonkeyPatch, registry: FaultyRegistry
) -> None:
    monkeypatch.setenv("https_proxy", f"http://me:secret@{registry.host}")
    web = Web(Policy(resolver=resolver("8.8.8.8")), pace=PACE)
    with pytest.raises(HostUnreachable) as caught, web.open("GET", "https://models.example/x"):
        pass
    web.close()
    assert registry.host in str(caught.value)
    assert "models.example" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_proxy_is_no_way_inside(
    monkeypatch: pytest.MonkeyPatch, registry: FaultyRegistry
) -> None:
    monkeypatch.setenv("https_proxy", f"http://{registry.host}")
    web = Web(Policy(resolver=resolver("10.0.0.1")), pace=PACE)
    with pytest.raises(AddressNotAllowed), web.open("GET", "https://inside.example/x"):
        pass
    web.close()
    assert registry.asked == []
