"""Pulling a model: the order of reports, what is kept, and what is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faulty_server import Fault, FaultyRegistry
from gguf import GGUFWriter
from registry_servers import DockerRegistry, Nginx, digest_of

from modelstore.create import CreateRequest, create
from modelstore.digest import Digest
from modelstore.errors import (
    BadManifest,
    BadReply,
    HostUnreachable,
    IncompleteModel,
    InvalidGGUF,
    ManifestNotFound,
    ServerRefused,
    StoreError,
    UnsupportedFormat,
)
from modelstore.manifest import MODEL_TYPE, TEMPLATE_TYPE, TENSOR_TYPE
from modelstore.names import ModelName
from modelstore.pull import Puller
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.registry.sources import UrlSource, look_at
from modelstore.registry.web import Web
from modelstore.sources import Progress
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers
from modelstore.verify import Health, verify

Make = Callable[..., bytes]


def statuses(steps: list[Progress]) -> list[str]:
    """Each status once, as long as it stays the same."""
    return [
        step.status
        for number, step in enumerate(steps)
        if number == 0 or steps[number - 1].status != step.status
    ]


def short(data: bytes) -> str:
    return f"pulling {Digest.of(data).hex[:12]}"


def test_the_reports_of_a_pull_from_a_real_registry(
    store: Store, docker_registry: DockerRegistry, gguf: Make
) -> None:
    model, template = gguf(100_000), b"{{ .Prompt }}"
    manifest = docker_registry.put("library/tiny", "1b", model, template=template)
    access = Access((parse_registry(f"http://{docker_registry.host}"),))
    puller = Puller(store, Transfers(), access)
    name = f"{docker_registry.host}/library/tiny:1b"
    steps = list(puller.pull(name))
    config = b'{"model_format":"gguf"}'
    assert statuses(steps) == [
        "pulling manifest",
        short(model),
        short(template),
        short(config),
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    done = [step for step in steps if step.digest and step.completed == step.total]
    assert {(step.digest, step.total) for step in done} == {
        (digest_of(data), len(data)) for data in (model, template, config)
    }
    path = store.root / "manifests" / docker_registry.host / "library" / "tiny" / "1b"
    assert path.read_bytes() == manifest
    assert store.resolve(name).template == template.decode()
    again = list(puller.pull(name))
    assert [(step.completed, step.total) for step in again if step.digest == digest_of(model)] == [
        (len(model), len(model))
    ]


def test_an_insecure_pull_finds_out_that_a_listed_registry_speaks_http(
    store: Store, docker_registry: DockerRegistry, gguf: Make
) -> None:
    docker_registry.put("a/b", "latest", gguf())
    puller = Puller(store, Transfers(), Access((parse_registry(docker_registry.host),)))
    name = f"{docker_registry.host}/a/b"
    with pytest.raises(HostUnreachable):
        list(puller.pull(name))
    assert list(puller.pull(name, insecure=True))[-1].status == "success"


def test_a_newer_model_replaces_the_older_one(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    old, new = gguf(10_000), gguf(20_000)
    name = f"{registry.host}/a/b"
    registry.put("a/b", (MODEL_TYPE, old), (TEMPLATE_TYPE, b"same"))
    list(puller.pull(name))
    registry.put("a/b", (MODEL_TYPE, new), (TEMPLATE_TYPE, b"same"))
    assert statuses(list(puller.pull(name)))[-2:] == ["removing unused layers", "success"]
    blobs = puller.store.blobs
    assert not blobs.exists(Digest.of(old))
    assert blobs.exists(Digest.of(new))
    assert len(registry.of(b"same")) == 1


def test_a_pull_that_fails_leaves_the_model_that_was_there(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    old, new = gguf(10_000), gguf(20_000)
    name = f"{registry.host}/a/b"
    registry.put("a/b", (MODEL_TYPE, old))
    list(puller.pull(name))
    before = puller.store.resolve(name)
    registry.put("a/b", (MODEL_TYPE, new))
    registry.plan = lambda asked: Fault(status=404)
    with pytest.raises(StoreError):
        list(puller.pull(name))
    assert puller.store.resolve(name) == before
    puller.store.check_files(before)


def test_a_repair_brings_the_blobs_of_the_model_that_is_here(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    old, new = gguf(10_000), gguf(20_000)
    name = f"{registry.host}/a/b"
    registry.put("a/b", (MODEL_TYPE, old), (TEMPLATE_TYPE, b"t"))
    list(puller.pull(name))
    registry.put("a/b", (MODEL_TYPE, new))
    store = puller.store
    before = store.manifest_bytes(name)
    for data in (old, b"t"):
        store.blobs.delete(Digest.of(data))
    with pytest.raises(IncompleteModel, match="localrun verify --repair"):
        store.resolve(name)

    def repaired() -> Health:
        *_, health = verify(store, [name], repair=True, fetch=puller.fetch_blob)
        assert isinstance(health, Health)
        return health

    assert repaired().is_repaired
    assert store.manifest_bytes(name) == before
    store.check_files(store.resolve(name))
    assert not registry.of(new)
    assert verify_is_quiet(store)
    # Gone from there too: the model stays what it is.
    for data in (old, b"t"):
        store.blobs.delete(Digest.of(data))
    del registry.blobs[Digest.of(old).text]
    texts = [problem.text for problem in repaired().problems]
    assert len(texts) == 2
    assert texts[1] == (
        "not repaired: the registry does not have this blob; "
        f"`localrun pull {name}:latest` would replace the model"
    )
    assert store.blobs.exists(Digest.of(b"t"))
    assert store.manifest_bytes(name) == before


def verify_is_quiet(store: Store) -> bool:
    return all(step.is_well for step in verify(store) if isinstance(step, Health))


def test_a_manifest_with_another_size_of_a_blob_that_is_here_is_refused(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(10_000)
    manifest = registry.put("a/b", (MODEL_TYPE, data))
    list(puller.pull(f"{registry.host}/a/b"))
    size_before = puller.store.list()[0].size_bytes
    wrong = manifest.replace(b'"size": 10000', b'"size": 10000000000000')
    assert wrong != manifest
    registry.manifests["/v2/a/wrong/manifests/latest"] = wrong
    with pytest.raises(BadManifest, match="has 10000000000000 bytes, and it has 10000"):
        list(puller.pull(f"{registry.host}/a/wrong"))
    assert [one.size_bytes for one in puller.store.list()] == [size_before]


def test_an_unknown_model_has_the_words_that_clients_compare(
    puller: Puller, registry: FaultyRegistry
) -> None:
    with pytest.raises(ManifestNotFound) as caught:
        list(puller.pull(f"{registry.host}/a/nothing"))
    assert str(caught.value).startswith("pull model manifest: file does not exist")
    assert f"{registry.host}/a/nothing:latest" in str(caught.value)


BAD_DIGESTS = [
    "sha256:../../../../tmp/x",
    "sha256-..%2f",
    "sha256:" + "a" * 63,
    "sha256:" + "a" * 65,
    "sha256:" + "A" * 64,
    "sha512:" + "a" * 128,
    "../" + "a" * 64,
    "",
    "sha256:" + "a" * 64 + "\n",
]


@pytest.mark.parametrize("where", ["config", "layers"])
@pytest.mark.parametrize("digest", BAD_DIGESTS)
def test_a_digest_that_is_none_is_refused_before_anything_is_written(
    puller: Puller, registry: FaultyRegistry, tmp_path: Path, digest: str, where: str
) -> None:
    registry.put("a/b", (MODEL_TYPE, b"GGUF"))
    (path,) = registry.manifests
    document = json.loads(registry.manifests[path])
    (document["layers"][0] if where == "layers" else document["config"])["digest"] = digest
    registry.manifests[path] = json.dumps(document).encode()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadManifest) as caught:
        list(puller.pull(f"{registry.host}/a/b"))
    assert sorted(tmp_path.rglob("*")) == before
    assert len(digest) < 10 or digest[8:] not in str(caught.value)
    assert [asked.path for asked in registry.asked] == [path]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the answer is empty"),
        (b"<html>secret of the server</html>", "a page of HTML"),
        (b"secret of the server", "not JSON"),
        (b"[]", "no object"),
        (b'{"layers":[]}', "it has no config and no layers"),
        (b'{"manifests":[{"digest":"secret"}]}', "an index of manifests"),
        (
            b'{"config":{"mediaType":"x","digest":"sha256:' + b"a" * 64 + b'","size":-1},'
            b'"layers":[1]}',
            "its fields are not those",
        ),
    ],
)
def test_a_manifest_that_is_none(
    puller: Puller, registry: FaultyRegistry, body: bytes, words: str
) -> None:
    registry.manifests["/v2/a/b/manifests/latest"] = body
    with pytest.raises(BadManifest) as caught:
        list(puller.pull(f"{registry.host}/a/b"))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_refusal_says_how_one_signs_in(puller: Puller, registry: FaultyRegistry) -> None:
    registry.manifests["/v2/a/b/manifests/latest"] = b"{}"
    registry.manifest_status = 403
    with pytest.raises(ServerRefused, match="LOCALRUN_REGISTRIES"):
        list(puller.pull(f"{registry.host}/a/b"))


def test_a_manifest_has_a_bound(puller: Puller, registry: FaultyRegistry) -> None:
    registry.manifests["/v2/a/b/manifests/latest"] = b" " * (5 << 20)
    with pytest.raises(BadReply, match="4 MiB"):
        list(puller.pull(f"{registry.host}/a/b"))


def test_models_without_gguf_are_refused(puller: Puller, registry: FaultyRegistry) -> None:
    registry.put("a/b", (TENSOR_TYPE, b"tensor"))
    with pytest.raises(UnsupportedFormat, match="MLX"):
        list(puller.pull(f"{registry.host}/a/b"))
    assert registry.of(b"tensor") == []


def test_weights_that_are_no_gguf_do_not_become_a_model(
    puller: Puller, registry: FaultyRegistry
) -> None:
    registry.put("a/b", (MODEL_TYPE, b"not a model at all"))
    with pytest.raises(InvalidGGUF):
        list(puller.pull(f"{registry.host}/a/b"))
    assert puller.store.list() == []
    assert not puller.store.blobs.exists(Digest.of(b"not a model at all"))


def test_a_config_that_is_none_does_not_become_a_model(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    registry.put("a/b", (MODEL_TYPE, gguf()), config=b"no JSON")
    with pytest.raises(BadManifest):
        list(puller.pull(f"{registry.host}/a/b"))
    assert puller.store.list() == []


def test_the_url_of_one_part_brings_all_of_a_split_model(store: Store, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    writer = GGUFWriter(files / "big.gguf", "llama", split_max_tensors=2)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full((32, 32), number, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    nginx = Nginx(files, tmp_path / "nginx")
    try:
        access = Access((parse_registry(f"http://{nginx.host}"),))
        url = f"http://{nginx.host}/big-00002-of-00003.gguf"
        steps = list(Puller(store, Transfers(), access).pull(url))
    finally:
        nginx.kill()
    assert [step.status for step in steps].count("success") == 1
    layers = store.resolve("big").manifest.of_type(MODEL_TYPE)
    parts = [files / f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [layer.digest for layer in layers] == [Digest.of(part.read_bytes()) for part in parts]


def test_a_file_that_was_replaced_meanwhile_is_not_mixed_with_the_older_one(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "m.gguf").write_bytes(b"a" * 1000)
    nginx = Nginx(files, tmp_path / "nginx")
    try:
        access = Access((parse_registry(f"http://{nginx.host}"),))
        web = Web(access.policy())
        file = look_at(web, access, f"http://{nginx.host}/m.gguf")
        with UrlSource(web, access, file) as source:
            with source.open(10, 20) as delivery:
                assert (delivery.is_whole, b"".join(delivery.chunks)) == (False, b"a" * 10)
            (files / "m.gguf").write_bytes(b"b" * 1000)
            os.utime(files / "m.gguf", (1, 1))
            with source.open(10, 20) as delivery:
                assert (delivery.is_whole, b"".join(delivery.chunks)) == (True, b"b" * 1000)
    finally:
        nginx.kill()


def test_a_user_of_hugging_face_with_a_dot_is_kept_and_listed(store: Store, gguf: Make) -> None:
    path = store.root.parent / "m.gguf"
    path.write_bytes(gguf())
    name = ModelName.parse("hf.co/us.er/re.po:Q4_K_M")
    list(create(store, CreateRequest(name, path=path), check_parameters=lambda given: given))
    assert [listing.name for listing in store.list()] == [name]
    assert store.resolve("HF.co/us.er/re.po:q4_k_m").name == name
