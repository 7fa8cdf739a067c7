"""Manifests and configs: Ollama's JSON in both directions, and clear refusals."""

import json

import pytest

from modelstore.digest import Digest
from modelstore.errors import CorruptManifest
from modelstore.manifest import (
    CONFIG_TYPE,
    LICENSE_TYPE,
    MODEL_TYPE,
    Layer,
    Manifest,
    ModelConfig,
    decode_config,
    decode_manifest,
    encode_config,
    encode_manifest,
)

A, B, C = (Digest.of(letter) for letter in (b"a", b"b", b"c"))
MANIFEST = Manifest(
    Layer(CONFIG_TYPE, A, 10),
    (Layer(MODEL_TYPE, B, 2_000, from_="base:latest"), Layer(LICENSE_TYPE, C, 300)),
)


def test_a_manifest_has_the_reference_layout() -> None:
    assert json.loads(encode_manifest(MANIFEST)) == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "digest": A.text,
            "size": 10,
        },
        "layers": [
            {
                "mediaType": "application/vnd.ollama.image.model",
                "digest": B.text,
                "size": 2000,
                "from": "base:latest",
            },
            {"mediaType": "application/vnd.ollama.image.license", "digest": C.text, "size": 300},
        ],
    }


def test_a_manifest_comes_back_unchanged() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "m") == MANIFEST
    assert MANIFEST.digests == {A, B, C}
    assert MANIFEST.of_type(LICENSE_TYPE, MODEL_TYPE) == MANIFEST.layers


def test_unknown_keys_and_null_layers_are_tolerated() -> None:
    raw = json.loads(encode_manifest(MANIFEST)) | {"layers": None, "annotations": {"x": 1}}
    assert decode_manifest(json.dumps(raw).encode(), "m").layers == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b'{"schemaVersion": 2, "lay', "truncated"),
        (b"\0" * 200, "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "object"),
        (b"{}", "no config"),
        (b"[" * 100_000, ""),
        (b'{"config":{"mediaType":"x","digest":"sha256:../../x","size":1}}', "invalid digest"),
        (b'{"config":{"mediaType":"x","digest":"sha256:%s","size":-1}}' % (b"0" * 64), "negative"),
        (b'{"config":{"mediaType":"x","size":1}}', "digest"),
    ],
)
def test_a_damaged_manifest_is_one_kind_of_error(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptManifest) as caught:
        decode_manifest(data, "tiny:latest")
    assert "manifest of `tiny:latest` is corrupt" in str(caught.value)
    assert problem in caught.value.problem


def test_a_config_keeps_what_it_does_not_know() -> None:
    wire = {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": "7B",
        "file_type": "Q4_0",
        "capabilities": ["tools"],
        "context_length": 4096,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers"},
        "draft": {"architecture": "x"},
    }
    config = decode_config(json.dumps(wire).encode(), "m")
    assert config.model_families == ("llama",)
    assert config.others == {"rootfs": {"type": "layers"}, "draft": {"architecture": "x"}}
    assert json.loads(encode_config(config)) == wire
    assert decode_config(encode_config(config), "m") == config


def test_optional_config_keys_appear_only_when_they_say_something() -> None:
    assert json.loads(encode_config(ModelConfig())) == {
        "model_format": "",
        "model_family": "",
        "model_families": None,
        "model_type": "",
        "file_type": "",
        "architecture": "amd64",
        "os": "linux",
    }


@pytest.mark.parametrize("data", [b"", b"[]", b'{"model_family": 3}', b'{"model_families": "x"}'])
def test_a_damaged_config_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptManifest, match="its config"):
        decode_config(data, "m")
