"""Models go to a real registry and come back as the same bytes, whatever happens on the way."""

import hashlib
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live import Daemon, wait_until
from registry_servers import DockerRegistry, make_certificates

from modelstore.digest import Digest
from modelstore.errors import (
    AddressNotAllowed,
    BlobNotFound,
    ModelNotFound,
    ServerRefused,
    SignInRequired,
    Stopped,
    TransferFailed,
)
from modelstore.names import ModelName
from modelstore.pull import Puller
from modelstore.push import push
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.registry.push import next_size
from modelstore.sources import Progress
from modelstore.store import Store
from modelstore.transfer.effort import Effort
from modelstore.transfer.transfers import Transfers
from tests.keep.front import Front
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.model_maker import make
from tests.modelstore.store_writer import add

MIB = 1 << 20
QUICK = Effort(n_tries=3, first_pause_s=0.001)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    server = DockerRegistry(tmp_path_factory.mktemp("registry"))
    yield server
    server.kill()


@pytest.fixture
def start_front(registry: DockerRegistry) -> Iterator[Callable[..., Front]]:
    fronts: list[Front] = []

    def start(**faults: object) -> Front:
        fronts.append(Front(registry.port, **faults))  # type: ignore[arg-type]
        return fronts[-1]

    yield start
    for front in fronts:
        front.close()


def access(*entries: str) -> Access:
    return Access(tuple(map(parse_registry, entries)))


def send(store: Store, host: str, name: str) -> list[Progress]:
    wanted = ModelName.parse(f"{host}/library/{name}")
    return list(push(store, access(f"http://{host}"), wanted, effort=QUICK))


def fetch(store: Store, host: str, name: str) -> None:
    puller = Puller(store, Transfers(), access(f"http://{host}"))
    for _ in puller.pull(f"{host}/library/{name}"):
        pass


def make_model(store: Store, name: str, *, n_bytes: int = 100) -> bytes:
    """A model of random weights; returns them."""
    path = store.root.parent / "model.gguf"
    lot = random.Random(name)
    text = lot.randbytes(n_bytes // 2).hex()
    write_gguf(path, tiny_metadata(general__description=text), tiny_tensors())
    make(store, name, path=path, system=f"You are {name}.", parameters={"stop": ["x"]})
    return path.read_bytes()


def is_monotonic(steps: list[Progress]) -> bool:
    done: dict[str | None, int] = {}
    for step in steps:
        if step.digest and (step.completed or 0) < done.get(step.digest, 0):
            return False
        done[step.digest] = step.completed or 0
    return True


def test_a_pushed_model_comes_back_as_the_same_bytes(
    store: Store, tmp_path: Path, start_front: Callable[..., Front]
) -> None:
    front = start_front()
    weights = make_model(store, f"{front.host}/library/m:1", n_bytes=5 * MIB)
    steps = send(store, front.host, "m:1")
    assert [step.status for step in steps if step.digest is None] == [
        "retrieving manifest",
        "pushing manifest",
        "success",
    ]
    record = store.resolve(f"{front.host}/library/m:1")
    digests = [layer.digest.text for layer in (*record.manifest.layers, record.manifest.config)]
    assert list(dict.fromkeys(step.digest for step in steps if step.digest)) == digests
    assert {step.status for step in steps if step.digest} == {
        f"pushing {digest[7:19]}" for digest in digests
    }
    assert is_monotonic(steps)
    assert all(
        [step.completed for step in steps if step.digest == digest][-1]
        == [step.total for step in steps if step.digest == digest][-1]
        for digest in digests
    )
    other = Store(tmp_path / "other")
    fetch(other, front.host, "m:1")
    found = other.resolve(f"{front.host}/library/m:1")
    assert found.digest == record.digest
    assert found.model_path is not None
    assert found.model_path.read_bytes() == weights
    assert found.system == record.system


def test_what_is_there_is_not_sent_again(store: Store, start_front: Callable[..., Front]) -> None:
    front = start_front()
    make_model(store, f"{front.host}/library/again:1")
    send(store, front.host, "again:1")
    sent = front.count("PATCH"), front.count("POST")
    assert sent[0] == 4
    store.copy(f"{front.host}/library/again:1", f"{front.host}/library/again:2")
    send(store, front.host, "again:2")
    assert (front.count("PATCH"), front.count("POST")) == sent


def test_a_layer_of_another_repository_is_mounted(
    store: Store, start_front: Callable[..., Front]
) -> None:
    front = start_front()
    base = f"{front.host}/library/base:1"
    make_model(store, base, n_bytes=3 * MIB)
    send(store, front.host, "base:1")
    make(store, f"{front.host}/library/derived:1", from_=base, system="Be brief.")
    weights = store.resolve(base).model_digest
    assert weights is not None
    n_before = len(front.ranges)
    steps = send(store, front.host, "derived:1")
    mounts = [path for method, path in front.requests if method == "POST" and "mount=" in path]
    assert f"/v2/library/derived/blobs/uploads/?mount={weights.text}&from=library/base" in mounts
    assert all(part.startswith("0-") and int(part[2:]) < MIB for part in front.ranges[n_before:])
    assert steps[-1].status == "success"


@pytest.mark.parametrize("is_relative", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("cut", [1, 700_000])
def test_a_connection_that_breaks_in_the_middle_of_a_piece_is_taken_up(
    store: Store,
    tmp_path: Path,
    start_front: Callable[..., Front],
    cut: int,
    keeps: bool,
    is_relative: bool,
) -> None:
    front = start_front(cuts={2: cut}, keeps=keeps, is_relative=is_relative)
    name = f"cut{cut}{keeps}{is_relative}".lower()
    make_model(store, f"{front.host}/library/{name}:1", n_bytes=5 * MIB)
    steps = send(store, front.host, f"{name}:1")
    assert is_monotonic(steps)
    starts = [int(part.partition("-")[0]) for part in front.ranges]
    assert starts[:2] == [0, MIB]
    # docker-registry may be asked before it has noticed, and then goes on, or gives up.
    assert starts[2] in ([MIB + cut] if keeps else [0, MIB])
    other = Store(tmp_path / "other")
    fetch(other, front.host, f"{name}:1")
    assert (
        other.resolve(f"{front.host}/library/{name}:1").digest
        == store.resolve(f"{front.host}/library/{name}:1").digest
    )


@pytest.mark.parametrize(("status", "n_patches"), [(503, 3), (404, 3), (403, 1)])
def test_refusals_that_pass_are_tried_again_and_others_end_the_push(
    store: Store, start_front: Callable[..., Front], status: int, n_patches: int
) -> None:
    front = start_front(statuses=dict.fromkeys(range(1, 20), status))
    make_model(store, f"{front.host}/library/refused{status}:1")
    with pytest.raises(TransferFailed if n_patches > 1 else ServerRefused) as caught:
        send(store, front.host, f"refused{status}:1")
    assert front.count("PATCH") == n_patches
    assert front.host in str(caught.value)


def test_a_token_is_asked_for_with_the_right_to_push(
    store: Store, start_front: Callable[..., Front]
) -> None:
    front = start_front(wants_token=True)
    make_model(store, f"{front.host}/library/m:token")
    assert send(store, front.host, "m:token")[-1].status == "success"
    assert front.scopes == [["repository:library/m:pull,push"]]


# `user` with the password `secret`, by bcrypt.
HTPASSWD = "user:$2b$04$F84fc5Qhq.dm6Wqzfn35l.EiwKByi.e6d83Qy/JNXazo5TqFuzTQK\n"


def test_a_registry_with_passwords_takes_only_who_has_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, certificate, key = make_certificates(tmp_path / "tls")
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    extra = (
        f"  tls:\n    certificate: {certificate}\n    key: {key}\n"
        f"auth:\n  htpasswd:\n    realm: test\n    path: {tmp_path / 'htpasswd'}\n"
    )
    server = DockerRegistry(tmp_path / "registry", extra=extra)
    try:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        name = ModelName.parse(f"{server.host}/library/m:1")
        make_model(store, name.full(), n_bytes=2 * MIB)
        for entry in (server.host, f"https://user:wrong@{server.host}"):
            with pytest.raises(SignInRequired):
                list(push(store, access(entry), name, effort=QUICK))
        right = access(f"https://user:secret@{server.host}")
        assert list(push(store, right, name, effort=QUICK))[-1].status == "success"
        other = Store(tmp_path / "other")
        assert list(Puller(other, Transfers(), right).pull(name))[-1].status == "success"
        assert other.resolve(name).digest == store.resolve(name).digest
    finally:
        server.kill()


def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(
    store: Store, start_front: Callable[..., Front]
) -> None:
    front = start_front()
    nobody = Access()
    add(store, "m")
    with pytest.raises(SignInRequired, match="signing key"):
        next(push(store, nobody, ModelName.parse("m")))
    with pytest.raises(ModelNotFound):
        next(push(store, nobody, ModelName.parse("absent")))
    name = ModelName.parse(f"{front.host}/library/m")
    steps = push(store, access(f"http://{front.host}"), name)
    assert [next(steps).status, next(steps).status] == [
        "retrieving manifest",
        "couldn't retrieve manifest",
    ]
    with pytest.raises(ModelNotFound):
        next(steps)
    store.copy("m", name)
    for insecure in (True, False):
        with pytest.raises(AddressNotAllowed, match="LOCALRUN_REGISTRIES"):
            list(push(store, nobody, name, insecure=insecure))
    store.blobs.delete(Digest.of(b"weights"))
    with pytest.raises(BlobNotFound):
        list(push(store, access(f"http://{front.host}"), name))
    assert front.requests == []


def test_a_model_that_is_removed_meanwhile_is_still_sent_whole(
    store: Store, tmp_path: Path, start_front: Callable[..., Front]
) -> None:
    front = start_front()
    name = f"{front.host}/library/removed:1"
    make_model(store, name, n_bytes=3 * MIB)
    steps = push(store, access(f"http://{front.host}"), ModelName.parse(name), effort=QUICK)
    while next(steps).digest is None:
        pass
    store.delete(name)
    assert list(steps)[-1].status == "success"
    assert os.listdir(store.blobs.folder) == []
    fetch(Store(tmp_path / "other"), front.host, "removed:1")


@pytest.mark.parametrize(
    ("size", "took_s", "then"),
    [
        (MIB, 0.1, 2 * MIB),
        (MIB, 1.0, MIB),
        (MIB, 3.0, MIB // 2),
        (64 * MIB, 0.1, 64 * MIB),
        (256 << 10, 60.0, 256 << 10),
    ],
)
def test_pieces_grow_and_shrink_with_the_pace_of_the_way(
    size: int, took_s: float, then: int
) -> None:
    assert next_size(size, took_s) == then


def test_a_registry_may_want_larger_pieces() -> None:
    assert next_size(MIB, 60.0, 5 * MIB) == 5 * MIB


def test_a_daemon_pushes_and_says_where(
    start_daemon: Callable[..., Daemon],
    fake_model: Callable[..., Path],
    registry: DockerRegistry,
    tmp_path: Path,
) -> None:
    daemon = start_daemon(REGISTRIES=f"http://{registry.host}")
    daemon.create("m", fake_model(pieces=["ok"]))  # in place: what is lent can be sent too
    name = f"{registry.host}/library/live:1"
    daemon.json("POST", "/api/copy", {"source": "m", "destination": name})

    code, out, err = daemon.cli("push", name)
    assert (code, out) == (0, f"You can find your model at:\n\n\t{name}\n")
    assert err.splitlines()[0] == "retrieving manifest"
    assert err.splitlines()[-1] == "success"
    assert daemon.json("POST", "/api/push", {"model": name, "stream": False}) == {
        "status": "success"
    }
    code, out, err = daemon.cli("push", "m")
    assert (code, out) == (1, "")
    assert "signing key" in err
    code, _, err = daemon.cli("push", f"{registry.host}/library/nosuch")
    assert code == 4
    assert "not found" in err
    daemon.json("POST", "/api/push", {"model": "a b"}, status=400)

    # Back into another store, and there from a damaged state to a whole one.
    other = start_daemon(REGISTRIES=f"http://{registry.host}", MODELS=tmp_path / "other")
    other.json("POST", "/api/pull", {"model": name, "stream": False})
    assert other.chat(name, "hi")["message"]["content"] == "ok"
    (weights,) = (
        path
        for path in (tmp_path / "other" / "blobs").iterdir()
        if path.read_bytes()[:4] == b"GGUF"
    )
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + b"?")
    found = other.json("POST", "/api/verify", {"repair": True, "stream": False})
    assert found["ok"]
    assert found["models"][0]["repaired"]
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == weights.name[7:]


def test_a_blob_that_is_corrupt_here_is_refused_once(
    store: Store, start_front: Callable[..., Front]
) -> None:
    front = start_front()
    name = f"{front.host}/library/corrupt:1"
    weights = make_model(store, name, n_bytes=3 * MIB)
    store.blobs.path(Digest.of(weights)).write_bytes(weights[:-1] + b"?")
    with pytest.raises(ServerRefused, match="400"):
        send(store, front.host, "corrupt:1")
    assert [part.partition("-")[0] for part in front.ranges].count("0") == 1


def test_an_upload_that_was_mended_wrongly_begins_anew(
    store: Store, start_front: Callable[..., Front]
) -> None:
    front = start_front(cuts={2: 500_000}, keeps=True, lies=True)
    make_model(store, f"{front.host}/library/mended:1", n_bytes=3 * MIB)
    assert send(store, front.host, "mended:1")[-1].status == "success"
    starts = [int(part.partition("-")[0]) for part in front.ranges]
    assert starts[:3] == [0, MIB, MIB]
    assert 0 in starts[3:]


def test_a_daemon_that_is_told_to_go_does_not_wait_for_a_push(
    start_daemon: Callable[..., Daemon],
    fake_model: Callable[..., Path],
    start_front: Callable[..., Front],
) -> None:
    front = start_front(statuses=dict.fromkeys(range(1, 50), 503))  # with pauses of seconds
    daemon = start_daemon(REGISTRIES=f"http://{front.host}")
    daemon.create("m", fake_model(pieces=["ok"]))
    name = f"{front.host}/library/left:1"
    daemon.json("POST", "/api/copy", {"source": "m", "destination": name})
    with daemon.open("POST", "/api/push", {"model": name}) as response:
        assert json.loads(response.readline()) == {"status": "retrieving manifest"}
        wait_until(lambda: front.count("PATCH"), "the upload to fail")
        assert daemon.terminate() == 0
    assert front.count("PATCH") < 6


def test_a_push_that_nobody_wants_any_more_ends_in_the_middle_of_a_pause(
    store: Store, start_front: Callable[..., Front]
) -> None:
    front = start_front(statuses=dict.fromkeys(range(1, 50), 503))
    name = ModelName.parse(f"{front.host}/library/stopped:1")
    make_model(store, name.full())
    stop = threading.Event()
    patient = Effort(n_tries=100, first_pause_s=1000.0)
    steps = push(store, access(f"http://{front.host}"), name, effort=patient, stop=stop)
    watcher = threading.Thread(
        target=lambda: (wait_until(lambda: front.count("PATCH"), "a failure"), stop.set())
    )
    watcher.start()
    with pytest.raises(Stopped):
        list(steps)
    watcher.join()
    assert front.count("PATCH") == 1
