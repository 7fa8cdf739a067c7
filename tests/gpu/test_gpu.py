"""A real GPU of this machine: what is planned for it is what it then has less of. Skipped without
one; on a machine that has one, `pytest tests/gpu -v` is all that is needed."""

from pathlib import Path
from typing import Any

import pytest

from localrun.memory import Device
from localrun.placement.layers import GPU_MARGIN_BYTES, usable
from localrun.runner.ggml.devices import Machine
from localrun.runner.library import LlamaLibrary
from localrun.runner.llama import LlamaModel
from localrun.spec import LoadSpec

MIB = 1 << 20


def gpu() -> Device:
    gpus, _ = usable(Machine().look().devices)
    if not gpus:
        pytest.skip("this machine has no GPU that llama.cpp was built for")
    return gpus[0]


def spec_of(path: Path, **fields: Any) -> LoadSpec:
    fields = {"n_ctx": 2048, "n_parallel": 2, "n_threads": 2, "main_gpu": 0, **fields}
    return LoadSpec(str(path), "digest", **fields)


def load(spec: LoadSpec) -> LlamaModel:
    library = LlamaLibrary()
    plan = library.plan(spec, {}).plan
    assert plan.fits, plan.reasons

    def start(_spec: LoadSpec, model: Any) -> Any:
        model.open(model.first_shape)
        return model

    model = library.load(spec, plan.split, lambda _fraction: None, start)
    assert isinstance(model, LlamaModel)
    for name, need in plan.needs.items():
        assert model.info.device_bytes[name] == pytest.approx(need.total_bytes, rel=0.01)
    return model


def greedy(model: LlamaModel, n: int) -> list[int]:
    """What the model says first, one token at a time."""
    tokens = model.vocab.tokenize("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n")
    outputs = [False] * (len(tokens) - 1) + [True]
    assert model.forward(tokens, range(len(tokens)), [0] * len(tokens), outputs) == 0
    said: list[int] = []
    while len(said) < n:
        said.append(model.greedy()[0])
        assert model.forward(said[-1:], [len(tokens) + len(said) - 1], [0], [True]) == 0
    return said


def test_a_model_on_the_gpu_says_what_it_says_in_ram(smollm2_path: Path) -> None:
    device = gpu()
    in_ram = load(spec_of(smollm2_path, n_gpu_layers=0))
    want = greedy(in_ram, 8)
    in_ram.close()
    whole = load(spec_of(smollm2_path))
    assert whole.info.device_bytes[device.name] > 100 * MIB
    assert greedy(whole, 8) == want
    whole.close()


@pytest.mark.parametrize("n_layers", [31, 12])
def test_the_gpu_has_less_of_what_was_planned(smollm2_path: Path, n_layers: int) -> None:
    device = gpu()
    machine = Machine()
    model = load(spec_of(smollm2_path, n_gpu_layers=n_layers))
    greedy(model, 2)
    free_bytes = machine.device(device.name, {}).free_bytes
    taken = device.free_bytes - free_bytes
    planned = model.info.device_bytes[device.name]
    model.close()
    assert planned <= taken + 16 * MIB
    # What no measurement sees stays below the margin of every plan.
    assert taken - planned < GPU_MARGIN_BYTES, f"{(taken - planned) / MIB:.0f} MiB"


def test_a_gpu_that_is_nearly_full_gets_a_part(smollm2_path: Path) -> None:
    device = gpu()
    # What stays free for the model, less what others may take meanwhile.
    overhead = device.free_bytes - GPU_MARGIN_BYTES - 100 * MIB
    model = load(spec_of(smollm2_path, gpu_overhead_bytes={device.name: overhead}))
    assert 0 < model.info.device_bytes[device.name] < 110 * MIB
    assert model.info.size_bytes > model.info.size_vram_bytes
    model.close()
