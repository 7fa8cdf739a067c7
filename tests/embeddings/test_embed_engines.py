"""Vectors by other ways through llama.cpp: a model that ranks, and layers on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from live import Daemon
from rpc_server import RpcServer

_POOLING = "bert.pooling_type"


@pytest.fixture(scope="module")
def minilm_gguf(vectors_daemon: Daemon) -> Path:
    """all-MiniLM-L6-v2 as the daemon has converted it."""
    text = vectors_daemon.json("POST", "/api/show", {"model": "minilm"})["modelfile"]
    (line,) = [line for line in text.splitlines() if line.startswith("FROM /")]
    return Path(line.removeprefix("FROM "))


def copied(source: Path, target: Path, pooling: gguf.PoolingType, **tensors: Any) -> Path:
    """`source` with another pooling and further tensors."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "bert")
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture")) or name == _POOLING:
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub)
    writer.add_pooling_type(pooling)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, data in tensors.items():
        writer.add_tensor(name.replace("__", "."), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def judge(source: Path, target: Path, weight: float, bias: float) -> Path:
    """A model that ranks by one number of the first token's output."""
    head = np.zeros((1, 384), np.float32)
    head[0, 5] = weight
    tensors = {"cls__output__weight": head, "cls__output__bias": np.full(1, bias, np.float32)}
    return copied(source, target, gguf.PoolingType.RANK, **tensors)


def test_a_score_is_what_the_head_makes_of_query_and_document(
    vectors_daemon: Daemon, minilm_gguf: Path, tmp_path: Path
) -> None:
    vectors_daemon.create("judge", judge(minilm_gguf, tmp_path / "one.gguf", 1, 10))
    vectors_daemon.create("double", judge(minilm_gguf, tmp_path / "two.gguf", 2, 0))
    documents = ["a fox", "a ship on a cold sea", "seven dogs", "the bank of a river"]

    def scores(model: str, query: str, given: list[str]) -> list[float]:
        body = {"model": model, "query": query, "documents": given}
        rows = vectors_daemon.json("POST", "/v1/rerank", body)["results"]
        assert [row["relevance_score"] for row in rows] == sorted(
            (row["relevance_score"] for row in rows), reverse=True
        )
        return [row["relevance_score"] for row in sorted(rows, key=lambda row: row["index"])]

    found = scores("judge", "boats", documents)
    assert len({round(score, 3) for score in found}) == 4
    alone = [scores("judge", "boats", [document])[0] for document in documents]
    assert alone == pytest.approx(found, abs=1e-3)
    doubled = [2 * (score - 10) for score in found]
    assert scores("double", "boats", documents) == pytest.approx(doubled, abs=1e-3)
    assert scores("judge", "wood", documents) != pytest.approx(found, abs=1e-3)
    body = {"model": "judge", "query": "fox " * 600, "documents": documents}
    error = vectors_daemon.json("POST", "/v1/rerank", body, status=400)["error"]
    assert (error["param"], "leaves no room" in error["message"]) == ("query", True)
    body = {"model": "judge", "input": "a"}
    error = vectors_daemon.json("POST", "/api/embed", body, status=400)["error"]
    assert error == '"judge" does not support embedding'


@pytest.mark.parametrize("embed_batch", [65, 513])
def test_any_number_of_rows_makes_the_same_vectors(
    start_daemon: Callable[..., Daemon],
    vectors_daemon: Daemon,
    minilm_gguf: Path,
    embed_batch: int,
) -> None:
    daemon = start_daemon(EMBED_BATCH=embed_batch, NUM_THREAD=8)
    daemon.create("minilm", minilm_gguf)
    body = {"model": "minilm", "input": [f"ship {n} of twenty on a cold sea" for n in range(40)]}
    found = daemon.json("POST", "/api/embed", body)["embeddings"]
    known = vectors_daemon.json("POST", "/api/embed", body)["embeddings"]
    for one, other in zip(found, known, strict=True):
        assert sum(a * b for a, b in zip(one, other, strict=True)) > 0.9999


def test_layers_on_a_gpu_give_the_same_vectors(
    start_daemon: Callable[..., Daemon],
    start_rpc_server: Callable[[], RpcServer],
    vectors_daemon: Daemon,
    minilm_gguf: Path,
) -> None:
    server = start_rpc_server()
    daemon = start_daemon(RPC_SERVERS=server.endpoint)
    daemon.create("minilm", minilm_gguf)
    body = {"model": "minilm", "input": ["a fox", "a ship on a cold sea"]}
    there = daemon.json("POST", "/api/embed", body)["embeddings"]
    here = vectors_daemon.json("POST", "/api/embed", body)["embeddings"]
    (model,) = daemon.ps()
    assert model["size_vram"] > 0
    for one, other in zip(there, here, strict=True):
        assert sum(a * b for a, b in zip(one, other, strict=True)) > 0.9999
