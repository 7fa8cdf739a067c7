"""What is measured without allocating is what a load then takes, on each device, byte for byte."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rpc_server import RpcServer

from localrun.memory import CPU, Need, Split
from localrun.placement.layers import needs_of
from localrun.runner.engine.layout import Shape
from localrun.runner.ggml import library
from localrun.runner.ggml.devices import Machine
from localrun.runner.ggml.probe import Probe, Tensors
from localrun.runner.llama import LlamaModel
from localrun.runner.model import Berth, LoadRefused
from localrun.spec import LoadSpec

MODELS = pytest.mark.parametrize("name", ["smollm2", "gemma3"])

IN_RAM, ON_GPU, HALF = Split(), Split(99, ("RPC0",), (1,)), Split(12, ("RPC0",), (12,))

SHAPES = [
    Shape("unified", 512, 2, 18, 512, None),
    Shape("unified", 2048, 4, 20, 4096, True),
    Shape("split", 4096, 4, 4, 4 * 4096, False),
]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@pytest.fixture
def path(name: str, smollm2_path: Path, gemma3_path: Path) -> Path:
    return {"smollm2": smollm2_path, "gemma3": gemma3_path}[name]


def spec_of(path: Path, **fields: Any) -> LoadSpec:
    return LoadSpec(str(path), "digest", n_ctx=512, n_parallel=4, n_threads=2, **fields)


@contextmanager
def loaded(spec: LoadSpec, split: Split, machine: Machine) -> Iterator[LlamaModel]:
    with Probe(spec, split, machine) as probe:
        needs = probe.measure(SHAPES[0]).needs
    model = LlamaModel(spec, lambda _fraction: None, machine, Berth(split, needs, SHAPES[0], 1))
    try:
        yield model
    finally:
        model.close()


def check_all(spec: LoadSpec, split: Split, machine: Machine) -> None:
    """Every shape and type of KV cache: what the probe says is what the model then has."""
    with loaded(spec, split, machine) as model:
        for kv_cache_type in ("f16", "q8_0"):
            spec = msgspec.structs.replace(spec, kv_cache_type=kv_cache_type)
            model._spec = spec
            with Probe(spec, split, machine) as probe:
                for shape in SHAPES:
                    measured = probe.measure(shape).needs
                    model.open(shape)
                    assert model._needs == measured, (kv_cache_type, shape)
                    totals = {name: need.total_bytes for name, need in measured.items()}
                    assert model.info.device_bytes == totals


@MODELS
def test_in_ram(path: Path, machine: Machine) -> None:
    check_all(spec_of(path, use_mmap=False), IN_RAM, machine)


@MODELS
@pytest.mark.parametrize("split", [ON_GPU, HALF], ids=["all", "half"])
def test_on_a_gpu(path: Path, split: Split, machine: Machine, rpc_server: RpcServer) -> None:
    assert not machine.look((rpc_server.endpoint,)).away
    check_all(spec_of(path, use_mmap=False), split, machine)


@MODELS
@pytest.mark.parametrize(("n", "layers"), [(99, (5, 5)), (12, (5, 7))], ids=["all", "some"])
def test_on_two_gpus(
    path: Path,
    n: int,
    layers: tuple[int, ...],
    machine: Machine,
    rpc_server: RpcServer,
    start_rpc_server: Callable[[], RpcServer],
) -> None:
    assert not machine.look((rpc_server.endpoint, start_rpc_server().endpoint)).away
    split = Split(n, ("RPC0", "RPC1"), layers)
    spec = spec_of(path, use_mmap=False)
    with loaded(spec, split, machine) as model, Probe(spec, split, machine) as probe:
        for shape in SHAPES:
            measured = probe.measure(shape).needs
            model.open(shape)
            assert model._needs.keys() == measured.keys()
            for name, need in model._needs.items():
                assert measured[name].total_bytes == pytest.approx(need.total_bytes, rel=0.01)


@MODELS
def test_of_a_mapped_file_only_what_is_read_in_ram_counts(
    path: Path, machine: Machine, rpc_server: RpcServer
) -> None:
    assert not machine.look((rpc_server.endpoint,)).away
    for split in (IN_RAM, HALF):
        check_all(spec_of(path), split, machine)


def test_only_what_lies_outside_of_ram_is_vram(
    smollm2_path: Path, machine: Machine, rpc_server: RpcServer
) -> None:
    assert not machine.look((rpc_server.endpoint,)).away
    with loaded(spec_of(smollm2_path), HALF, machine) as model:
        model.open(SHAPES[0])
        assert set(model.info.device_bytes) == {CPU, "RPC0"}
        assert model.info.size_vram_bytes == model.info.device_bytes["RPC0"] > 0
        assert model.info.size_bytes == sum(model.info.device_bytes.values())


@MODELS
def test_the_parts_of_a_measurement_foretell_other_splits(
    path: Path, machine: Machine, rpc_server: RpcServer
) -> None:
    assert not machine.look((rpc_server.endpoint,)).away
    spec = spec_of(path)
    for shape in SHAPES:
        with Probe(spec, ON_GPU, machine) as probe:
            sizes = probe.sizes(probe.measure(shape))
        for n in (1, 5, 12, sizes.n_layers):
            split = Split(n, ("RPC0",), (n,))
            foretold = needs_of(sizes, split)
            with Probe(spec, split, machine) as probe:
                measured = probe.measure(shape).needs
            for name in ("RPC0", CPU):
                for field in ("weights_bytes", "kv_bytes"):
                    got, want = getattr(foretold[name], field), getattr(measured[name], field)
                    assert got == pytest.approx(want, rel=0.01, abs=1 << 20), (n, name, field)


@MODELS
def test_where_llama_cpp_does_not_tell_exactly_the_log_does_to_a_hundredth(
    path: Path, machine: Machine, rpc_server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not machine.look((rpc_server.endpoint,)).away
    spec = spec_of(path, use_mmap=False)
    for split in (IN_RAM, HALF):
        with loaded(spec, split, machine) as model, Probe(spec, split, machine) as probe:
            for shape in SHAPES:
                exact = probe.measure(shape).needs
                monkeypatch.setattr(library, "_breakdown", None)
                rough = probe.measure(shape).needs
                model.open(shape)
                for needs in (rough, model._needs):
                    assert needs.keys() == exact.keys()
                    for name, need in exact.items():
                        about = pytest.approx(need.total_bytes, rel=0.01, abs=1 << 20)
                        assert needs[name].total_bytes == about, (shape, name)
                monkeypatch.undo()


@pytest.mark.parametrize(
    "tree",
    [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 8, 0, 0, 1 << 40],  # no such count
        [0, 0, 0, 0, 0, 3],  # no root
    ],
)
def test_what_does_not_look_like_sums_is_not_followed(
    tree: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = library._Map((library.ctypes.c_uint64 * 6)(*tree))
    monkeypatch.setattr(library, "_breakdown", lambda _context: words)
    assert library.breakdown(None) is None


def test_a_file_that_is_no_model_is_refused(tmp_path: Path, machine: Machine) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(LoadRefused, match="cannot load the file"):
        Probe(spec_of(path), IN_RAM, machine)


def test_tensors_are_counted_by_block_expert_and_end() -> None:
    tensors = Tensors.of(
        {
            "token_embd.weight": 100,
            "blk.0.attn_q.weight": 1,
            "blk.0.ffn_up_exps.weight": 20,
            "blk.1.ffn_gate_up_exps.weight": 30,
            "blk.1.ffn_up_shexp.weight": 4,
            "output_norm.weight": 5,
            "output.weight": 60,
        },
        2,
    )
    assert tensors == Tensors((21, 34), (20, 30), 100, 65, False)
    assert Tensors.of({"token_embd.weight": 7, "output_norm.weight": 1}, 0).output_bytes == 8
    assert Need(1, 2, 3).total_bytes == 6
