"""Plans on real models and devices: what is planned is what is loaded. RPC servers stand for GPUs,
made small by what the user keeps free on them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from moe_model import EXPERT_BYTES, N_LAYERS, write_moe_model
from rpc_server import RpcServer

from localrun.core import SamplingParams
from localrun.ipc.messages import Planned
from localrun.memory import CPU, Plan, Split
from localrun.placement.layers import GPU_MARGIN_BYTES
from localrun.runner import library as library_module
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.traffic import StepOutput
from localrun.runner.library import LlamaLibrary
from localrun.runner.llama import LlamaModel
from localrun.runner.model import LoadRefused, Model, NoMemory
from localrun.spec import LoadOptions, LoadSpec

MIB = 1 << 20
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


class Rig:
    """An empty runner and the GPUs of some servers."""

    def __init__(self, *servers: RpcServer) -> None:
        self.library = LlamaLibrary()
        self.endpoints = tuple(server.endpoint for server in servers)
        self.totals = {
            device.name: device.total_bytes
            for device in self.library.list_devices(self.endpoints).devices
        }

    def spec(self, path: Path, *sizes_mib: int, **fields: Any) -> LoadSpec:
        """A spec for GPUs of which a model may have so many MiB each."""
        overheads = {
            f"RPC{number}": self.totals[f"RPC{number}"] - size * MIB - GPU_MARGIN_BYTES
            for number, size in enumerate(sizes_mib)
        }
        fields = {"n_ctx": 1024, "n_parallel": 2, "n_threads": 2, **fields}
        return LoadSpec(
            str(path), "digest", gpu_overhead_bytes=overheads, rpc_servers=self.endpoints, **fields
        )

    def plan(self, spec: LoadSpec, held: Mapping[str, int] | None = None) -> Plan:
        return self.library.plan(spec, held or {}).plan

    def load(self, spec: LoadSpec, split: Split | None = None) -> tuple[LlamaModel, str]:
        """The loaded model, and what it says."""
        model = self.library.load(spec, split, lambda _fraction: None, started)
        assert isinstance(model, LlamaModel)
        return model, said(model, spec)


def started(spec: LoadSpec, model: Model) -> Model:
    Engine(model, spec, lambda _output: None)  # makes the first context
    return model


def said(model: LlamaModel, spec: LoadSpec, n: int = 16) -> str:
    outputs: list[StepOutput] = []
    engine = Engine(model, spec, outputs.append)
    params = SamplingParams(temperature=0, num_predict=n)
    sequence = Sequence(0, model.vocab.tokenize(PROMPT), params, spec.n_ctx)
    engine.inbox.put(sequence)
    engine.step()
    while not engine.is_idle:
        engine.step()
    pieces = (model.vocab.token_bytes(token) for token in sequence.tokens[sequence.n_prompt :])
    return b"".join(pieces).decode()


@pytest.fixture(scope="module")
def rig(rpc_server: RpcServer) -> Rig:
    """One GPU."""
    return Rig(rpc_server)


@pytest.fixture
def two(start_rpc_server: Callable[[], RpcServer]) -> Rig:
    """Two GPUs."""
    return Rig(start_rpc_server(), start_rpc_server())


@pytest.fixture(scope="module")
def in_ram(smollm2_path: Path) -> str:
    """What the model says without a GPU."""
    rig = Rig()
    model, text = rig.load(rig.spec(smollm2_path))
    model.close()
    assert "Paris" in text
    return text


def check_load(rig: Rig, spec: LoadSpec, plan: Plan, text: str) -> None:
    """The load takes exactly what was planned, and says what it says elsewhere."""
    model, got = rig.load(spec, plan.split)
    try:
        assert model.info.device_bytes.keys() == plan.needs.keys()
        for name, need in plan.needs.items():
            assert model.info.device_bytes[name] == pytest.approx(need.total_bytes, abs=256)
        assert (model.info.n_ctx, model.info.n_cells) == (plan.n_ctx, plan.n_cells)
        assert got == text
    finally:
        model.close()


def test_without_gpus_all_goes_to_ram(smollm2_path: Path, in_ram: str) -> None:
    rig = Rig()
    spec = rig.spec(smollm2_path)
    plan = rig.plan(spec)
    assert (plan.fit, plan.fits, plan.split) == ("now", True, Split())
    assert set(plan.needs) == set(plan.available) == {CPU}
    assert plan.reasons == ("there is no GPU",)
    check_load(rig, spec, plan, in_ram)


@pytest.mark.parametrize(
    ("size_mib", "n_expected"), [(4000, range(31, 32)), (100, range(15, 26)), (80, range(5, 15))]
)
def test_as_much_as_fits_goes_to_the_gpu(
    rig: Rig, smollm2_path: Path, in_ram: str, size_mib: int, n_expected: range
) -> None:
    spec = rig.spec(smollm2_path, size_mib)
    plan = rig.plan(spec)
    assert (plan.fit, plan.fits) == ("now", True)
    assert plan.split.n_gpu_layers in n_expected, plan.reasons
    assert plan.split.devices == ("RPC0",)
    assert plan.available["RPC0"] == size_mib * MIB
    check_load(rig, spec, plan, in_ram)


def test_not_one_layer_more_would_have_fitted(rig: Rig, smollm2_path: Path) -> None:
    spec = rig.spec(smollm2_path, 100)
    n = rig.plan(spec).split.n_gpu_layers
    more = msgspec.structs.replace(spec, n_gpu_layers=n + 1)
    assert rig.plan(more).fit == "never"


def test_layers_are_spread_over_unequal_gpus(two: Rig, smollm2_path: Path, in_ram: str) -> None:
    spec = two.spec(smollm2_path, 100, 80)
    plan = two.plan(spec)
    assert plan.fits
    assert plan.split.n_gpu_layers == 31
    assert plan.split.devices == ("RPC0", "RPC1")
    assert plan.split.layers[0] > plan.split.layers[1] > 0
    check_load(two, spec, plan, in_ram)


@pytest.mark.parametrize(
    ("sizes", "fields", "devices", "layers"),
    [
        ((900, 800), {}, ("RPC0",), (31,)),
        ((800, 900), {}, ("RPC1",), (31,)),
        ((800, 800), {"spreads": True}, ("RPC0", "RPC1"), (20, 11)),
        ((800, 900), {"main_gpu": 0}, ("RPC0",), (31,)),
        ((800, 900), {"tensor_split": (2.0, 1.0)}, ("RPC0", "RPC1"), (21, 10)),
        ((800, 900), {"n_gpu_layers": 5}, ("RPC1",), (5,)),
        ((800, 900), {"n_gpu_layers": 0}, (), ()),
    ],
)
def test_wishes_are_obeyed(
    two: Rig,
    smollm2_path: Path,
    in_ram: str,
    sizes: tuple[int, ...],
    fields: dict[str, Any],
    devices: tuple[str, ...],
    layers: tuple[int, ...],
) -> None:
    spec = two.spec(smollm2_path, *sizes, **fields)
    plan = two.plan(spec)
    assert plan.fits
    assert (plan.split.devices, plan.split.layers) == (devices, layers)
    check_load(two, spec, plan, in_ram)


def test_wishes_that_cannot_be_meant_are_refused(rig: Rig, smollm2_path: Path) -> None:
    with pytest.raises(LoadRefused, match="main_gpu is 3, but there is no such GPU: it is 0"):
        rig.plan(rig.spec(smollm2_path, 900, main_gpu=3))


def test_what_others_hold_makes_a_plan_crowded(rig: Rig, smollm2_path: Path) -> None:
    spec = rig.spec(smollm2_path, 400)
    crowded = rig.plan(spec, {"RPC0": 340 * MIB})
    assert (crowded.fit, crowded.fits) == ("crowded", True)
    assert 0 < crowded.split.n_gpu_layers < 31
    assert rig.plan(spec, {"RPC0": 100 * MIB}).fit == "now"
    alone = rig.plan(spec)
    assert (alone.fit, alone.split.n_gpu_layers) == ("now", 31)


def test_ram_that_others_hold_makes_a_plan_crowded(smollm2_path: Path) -> None:
    rig = Rig()
    plan = rig.plan(rig.spec(smollm2_path), {CPU: rig.totals[CPU] - 300 * MIB})
    assert (plan.fit, plan.fits) == ("crowded", False)


def test_what_is_too_large_for_the_machine_never_fits(rig: Rig, smollm2_path: Path) -> None:
    asked = LoadOptions(num_ctx=1 << 22)
    spec = rig.spec(smollm2_path, 400, n_ctx=1 << 22, asked=asked)
    plan = rig.plan(spec, {"RPC0": 100 * MIB})
    assert (plan.fit, plan.fits) == ("never", False)
    assert plan.needs[CPU].total_bytes > plan.available[CPU]
    with pytest.raises(LoadRefused, match=r"needs \d+ MiB of CPU, which has room for \d+ MiB"):
        rig.load(spec)


def test_a_window_that_nobody_asked_for_gives_way_before_layers_do(
    rig: Rig, gemma3_path: Path
) -> None:
    size_mib = 246_587_904 // MIB + 90
    spec = rig.spec(gemma3_path, size_mib, n_ctx=32768)
    plan = rig.plan(spec)
    assert plan.split.n_gpu_layers == 19
    assert 4096 <= plan.n_ctx < 32768
    asked = msgspec.structs.replace(spec, asked=LoadOptions(num_ctx=32768))
    plan = rig.plan(asked)
    assert plan.n_ctx == 32768
    assert plan.split.n_gpu_layers < 19
    pool = msgspec.structs.replace(spec, n_ctx=4096, n_parallel=16, kv_pool=32768)
    plan = rig.plan(pool)
    assert plan.n_cells == 32768
    assert plan.split.n_gpu_layers < 19


def test_a_pool_takes_a_quarter_of_what_is_left(rig: Rig, smollm2_path: Path) -> None:
    few, many = (
        rig.plan(rig.spec(smollm2_path, size, n_ctx=2048, n_parallel=16)) for size in (500, 1500)
    )
    assert few.split.n_gpu_layers == many.split.n_gpu_layers == 31
    assert 2048 < few.n_cells < many.n_cells
    left = few.available["RPC0"] - few.needs["RPC0"].weights_bytes
    assert few.needs["RPC0"].kv_bytes == pytest.approx(left / 4, rel=0.1)


def test_a_loaded_model_knows_what_a_larger_window_could_have(rig: Rig, smollm2_path: Path) -> None:
    model, _ = rig.load(rig.spec(smollm2_path, 400))
    try:
        # A server's CPU does not say what is taken of it; the overhead and the margin count.
        needs = model._needs["RPC0"]
        assert model.free_bytes() == 400 * MIB + needs.kv_bytes
    finally:
        model.close()


def test_a_server_that_serves_another_model_makes_a_plan_crowded(
    rig: Rig, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = rig.spec(smollm2_path, 400)
    monkeypatch.setattr(
        "localrun.runner.ggml.rpc.problem_of", lambda _endpoint: "it does not answer"
    )
    answer = rig.library.plan(spec, {"RPC0": 100 * MIB})
    assert answer.unreachable == rig.endpoints
    assert answer.plan.fit == "crowded"
    assert f"the RPC server {rig.endpoints[0]} is left out" in answer.plan.reasons[0]
    assert rig.library.plan(spec, {}).plan.fit == "now"


def test_a_load_that_lacks_memory_after_all_is_tried_again_with_less_on_the_gpu(
    rig: Rig, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    class Reluctant(LlamaModel):
        def __init__(self, *arguments: Any) -> None:
            tried.append(arguments[3].split.n_gpu_layers)
            if len(tried) == 1:
                raise NoMemory("there is no memory for the weights")
            super().__init__(*arguments)

    monkeypatch.setattr(library_module, "LlamaModel", Reluctant)
    model, text = rig.load(rig.spec(smollm2_path, 400))
    model.close()
    assert tried == [31, 0]
    assert "Paris" in text


def test_a_load_that_lacks_memory_twice_is_refused(
    rig: Rig, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any) -> None:
        raise NoMemory("there is no memory for the weights")

    monkeypatch.setattr(library_module, "LlamaModel", refuse)
    with pytest.raises(LoadRefused, match="no memory for the weights"):
        rig.load(rig.spec(smollm2_path, 400))


def test_a_first_context_without_memory_frees_the_weights_and_is_tried_again(
    rig: Rig, smollm2_path: Path
) -> None:
    closed: list[LlamaModel] = []

    def start(spec: LoadSpec, model: Model) -> Model:
        if not closed:
            assert isinstance(model, LlamaModel)
            closed.append(model)
            raise NoMemory("no memory for a context")
        return started(spec, model)

    spec = rig.spec(smollm2_path, 1200)
    model = rig.library.load(spec, None, lambda _fraction: None, start)
    assert isinstance(model, LlamaModel)
    assert closed[0]._weights is None
    assert model.info.size_vram_bytes > 0
    model.close()


def test_plans_are_messages(rig: Rig, smollm2_path: Path) -> None:
    answer = rig.library.plan(rig.spec(smollm2_path, 100), {})
    data = msgspec.msgpack.encode(answer)
    assert msgspec.msgpack.decode(data, type=Planned) == answer


@pytest.fixture(scope="module")
def moe_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moe_model(tmp_path_factory.mktemp("moe") / "moe.gguf")


@pytest.mark.parametrize("n_kept_out", [0, 2, N_LAYERS])
def test_experts_leave_the_gpu_before_layers_do(rig: Rig, moe_path: Path, n_kept_out: int) -> None:
    fields: dict[str, Any] = {"n_ctx": 256, "n_parallel": 1}
    needs = rig.plan(rig.spec(moe_path, 4000, **fields)).needs["RPC0"]
    n_bytes = needs.total_bytes + needs.kv_bytes // 2 - n_kept_out * EXPERT_BYTES
    overhead = rig.totals["RPC0"] - GPU_MARGIN_BYTES - n_bytes
    spec = rig.spec(moe_path, **fields)
    spec = msgspec.structs.replace(spec, gpu_overhead_bytes={"RPC0": overhead})
    plan = rig.plan(spec)
    assert plan.fits
    assert (plan.split.n_gpu_layers, plan.split.n_cpu_experts) == (N_LAYERS + 1, n_kept_out)
    assert needs.weights_bytes - plan.needs["RPC0"].weights_bytes == n_kept_out * EXPERT_BYTES
    model = rig.library.load(spec, plan.split, lambda _fraction: None, started)
    assert isinstance(model, LlamaModel)
    try:
        sizes = {name: need.total_bytes for name, need in plan.needs.items()}
        assert model.info.device_bytes == sizes
        assert model.forward([1, 2], [0, 1], [0, 0], [False, True]) == 0
    finally:
        model.close()
