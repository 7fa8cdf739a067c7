"""Makes models with `modelstore.create` as the daemon does. For use by any test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelstore.create import CreateRequest, Progress, create
from modelstore.digest import Digest
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf


class UnknownParameter(Exception):
    pass


def checked(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    if "bogus" in parameters:
        raise UnknownParameter("bogus")
    return parameters


def make(
    store: Store, name: str = "m", *, job: tuple[str, ...] = (), **fields: Any
) -> list[Progress]:
    return list(create(store, CreateRequest(name, **fields), check_parameters=checked, job=job))


def upload(store: Store, path: Path) -> Digest:
    return store.blobs.ingest([path.read_bytes()], None)[0]


def variant(tmp_path: Path, **metadata: Any) -> Path:
    path = tmp_path / "variant.gguf"
    write_gguf(path, tiny_metadata(**metadata), tiny_tensors())
    return path


def write_lora(path: Path, **metadata: Any) -> Path:
    """A LoRA adapter for the tiny model."""
    keys = {"general__type": "adapter", "adapter__type": "lora", **metadata}
    tensors = [
        ("blk.0.attn_q.weight.lora_a", (64, 1), 0, bytes(256)),
        ("blk.0.attn_q.weight.lora_b", (1, 2), 0, bytes(8)),
    ]
    write_gguf(path, tiny_metadata(**keys), tensors)
    return path
