"""LoRA adapters: checked when a model is made, applied by its runner, counted in its memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from create_steps import greedy, make, refusal, upload
from live import Daemon, running
from rpc_server import RpcServer

from localrun.memory import CPU, Split
from localrun.runner.engine.layout import Shape
from localrun.runner.ggml.devices import Machine
from localrun.runner.ggml.probe import Probe
from localrun.runner.llama import LlamaModel
from localrun.runner.model import Berth, LoadRefused
from localrun.spec import LoadSpec

SHAPE = Shape("unified", 256, 1, 4, 256, False)
# 30 layers, each with a pair of 4 × 576 F32.
ADAPTER_BYTES = 30 * 2 * 4 * 576 * 4


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("adapted")
    with running(folder, CONTEXT_LENGTH=256, NUM_PARALLEL=1) as daemon:
        daemon.create("base", smollm2_path)
        yield daemon


def adapted(daemon: Daemon, name: str, adapter: Path) -> None:
    make(daemon, name, **{"from": "base"}, adapters={adapter.name: upload(daemon, adapter)})


def test_an_adapter_changes_what_a_model_says(daemon: Daemon, adapters: dict[str, Path]) -> None:
    adapted(daemon, "same", adapters["zero"])
    adapted(daemon, "other", adapters["strong"])
    expected = greedy(daemon, "base")
    assert greedy(daemon, "same") == expected
    assert greedy(daemon, "other") != expected
    # Each combination of weights and adapters is a runner of its own.
    sizes = {one["name"]: one["size"] for one in daemon.ps()}
    assert sizes.keys() == {"base:latest", "same:latest", "other:latest"}
    assert sizes["same:latest"] - sizes["base:latest"] >= ADAPTER_BYTES


def test_an_adapter_still_counts_in_a_larger_window(
    daemon: Daemon, adapters: dict[str, Path]
) -> None:
    adapted(daemon, "other", adapters["strong"])
    expected = greedy(daemon, "other")
    options = {"temperature": 0, "num_predict": 12, "num_ctx": 1024}
    body = {"model": "other", "prompt": "The capital of France is", "raw": True, "stream": False}
    grown = daemon.json("POST", "/api/generate", {**body, "options": options})["response"]
    assert grown == expected
    assert next(one for one in daemon.ps() if one["name"] == "other:latest")[
        "context_length"
    ] in range(1024, 2048)


def test_a_new_adapter_takes_the_place_of_the_inherited_one(
    daemon: Daemon, adapters: dict[str, Path]
) -> None:
    adapted(daemon, "other", adapters["strong"])
    zero = upload(daemon, adapters["zero"])
    make(daemon, "again", **{"from": "other"}, adapters={"zero.gguf": zero})
    modelfile = daemon.json("POST", "/api/show", {"model": "again"})["modelfile"]
    assert [line for line in modelfile.splitlines() if line.startswith("ADAPTER")] == [
        next(line for line in modelfile.splitlines() if zero.replace(":", "-") in line)
    ]


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("other kind", "the adapter is of type `ia3`; only LoRA"),
        ("other architecture", "is for the architecture `gemma3`, the model has `llama`"),
        ("model", "is not a GGUF adapter"),
    ],
)
def test_what_is_no_adapter_for_the_model_is_refused(
    daemon: Daemon, adapters: dict[str, Path], smollm2_path: Path, which: str, words: str
) -> None:
    digest = upload(daemon, {**adapters, "model": smollm2_path}[which])
    assert words in refusal(daemon, **{"from": "base"}, adapters={"a.gguf": digest})


def test_safetensors_adapters_and_two_adapters_are_refused(
    daemon: Daemon, adapters: dict[str, Path]
) -> None:
    digest = upload(daemon, adapters["zero"])
    safetensors = refusal(daemon, **{"from": "base"}, adapters={"a.safetensors": digest})
    assert "convert_lora_to_gguf.py" in safetensors
    two = {"a.gguf": digest, "b.gguf": digest}
    assert "only one adapter" in refusal(daemon, **{"from": "base"}, adapters=two)
    assert "exactly one file must be a model" in refusal(daemon, files={"a.gguf": digest})


def spec_of(smollm2_path: Path, adapter: Path) -> LoadSpec:
    return LoadSpec(
        str(smollm2_path),
        "digest",
        n_ctx=256,
        n_parallel=1,
        n_threads=2,
        adapter_paths=(str(adapter),),
    )


@pytest.mark.parametrize("where", ["ram", "gpu", "half"])
def test_a_plan_counts_the_adapter_where_its_tensors_lie(
    smollm2_path: Path, adapters: dict[str, Path], rpc_server: RpcServer, where: str
) -> None:
    machine = Machine()
    machine.look((rpc_server.endpoint,))
    split = {
        "ram": Split(),
        "gpu": Split(31, ("RPC0",), (31,)),
        "half": Split(16, ("RPC0",), (16,)),
    }[where]
    spec = spec_of(smollm2_path, adapters["zero"])
    plain = LoadSpec(str(smollm2_path), "digest", n_ctx=256, n_parallel=1, n_threads=2)
    with Probe(plain, split, machine) as probe:
        without = probe.measure(SHAPE).needs
    with Probe(spec, split, machine) as probe:
        needs = probe.measure(SHAPE).needs
    more = {name: need.weights_bytes - without[name].weights_bytes for name, need in needs.items()}
    on_gpu = {"ram": 0, "gpu": ADAPTER_BYTES, "half": ADAPTER_BYTES // 2}[where]
    assert {name: n for name, n in more.items() if n} == {
        name: n for name, n in ((CPU, ADAPTER_BYTES - on_gpu), ("RPC0", on_gpu)) if n
    }
    model = LlamaModel(spec, lambda _: None, machine, Berth(split, needs, SHAPE, 1))
    try:
        model.open(SHAPE)
        assert model.info.device_bytes == {name: need.total_bytes for name, need in needs.items()}
    finally:
        model.close()


def test_an_adapter_for_another_model_is_refused_at_load(
    smollm2_path: Path, gemma3_path: Path, adapters: dict[str, Path]
) -> None:
    # Past the checks of `create`, as a manifest from elsewhere may bring it.
    with pytest.raises(LoadRefused, match="cannot apply the adapter"):
        LlamaModel(spec_of(gemma3_path, adapters["strong"]), lambda _: None)
