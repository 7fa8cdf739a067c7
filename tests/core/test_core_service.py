"""What the service makes of a call before any runner is needed: load spec, sampling, defaults."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import write_fake_model
from msgspec import structs

from localrun.core import Call, ChatPrompt, Message
from localrun.placement.fit import Defaults
from localrun.placement.verdicts import Verdicts
from localrun.preparing import ServiceDefaults
from localrun.residency.entry import EmptyRunner
from localrun.residency.owner import Residency
from localrun.service import InferenceService
from localrun.spec import LoadOptions, Verdict
from localrun.supervisor.client import RunnerClient
from modelstore.create import CreateRequest, create
from modelstore.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with `m`, whose Modelfile asks for a window of 512."""
    store = Store(tmp_path / "models")
    add(store, "m", {"pieces": ["x"], "n_ctx_train": 2048}, {"num_ctx": 512, "num_batch": 64})
    return store


def add(
    store: Store, name: str, script: dict[str, Any], parameters: dict[str, Any] | None = None
) -> None:
    path = write_fake_model(store.root.parent / f"{name}.gguf", script)
    request = CreateRequest(name=name, path=path, parameters=parameters or {})
    for _ in create(store, request, check_parameters=lambda parameters: parameters):
        pass


def service_of(store: Store, verdicts: Verdicts, **defaults: Any) -> InferenceService:
    async def spawn() -> EmptyRunner[RunnerClient]:
        raise AssertionError("nothing is loaded here")

    residency = Residency(spawn, max_loaded=1, max_queue=1, keep_alive_s=1)
    placement = Defaults(None, n_threads=2, n_threads_max=2)
    return InferenceService(
        store, residency, ServiceDefaults(placement, n_parallel=4, **defaults), verdicts
    )


def chat(options: dict[str, Any]) -> Call:
    return Call("m", (ChatPrompt((Message("user", "hi"),)),), options)


def prepared(store: Store, verdicts: Verdicts, options: dict[str, Any], **defaults: Any) -> Any:
    """The work that a chat with these options becomes."""
    preparing = service_of(store, verdicts, **defaults)._preparing
    return preparing.work(chat(options), (), makes_text=True)


@pytest.fixture
def verdicts(tmp_path: Path) -> Verdicts:
    return Verdicts(tmp_path / "verdicts.json")


def test_settings_shape_the_load(store: Store, verdicts: Verdicts) -> None:
    settings = {
        "kv_pool": 9000,
        "kv_layout": "split",
        "host_tier_bytes": 0,
        "tpot_target_ms": 50.0,
        "kv_cache_type": "q8_0",
        "flash_attention": True,
        "spreads": True,
        "rpc_servers": ("box:50052",),
    }
    spec = prepared(store, verdicts, {}, **settings).spec
    assert {name: getattr(spec, name) for name in settings} == settings
    assert spec.admission == "continuous"


def test_a_share_for_each_gpu_reaches_the_runner(store: Store, verdicts: Verdicts) -> None:
    assert prepared(store, verdicts, {"tensor_split": [3, 1]}).spec.tensor_split == (3.0, 1.0)


def test_the_spec_remembers_what_was_asked_for(store: Store, verdicts: Verdicts) -> None:
    spec = prepared(store, verdicts, {"num_batch": 32, "admission": "static"}).spec
    assert spec.asked == LoadOptions(num_ctx=512, num_batch=32, admission="static")
    assert (spec.n_ctx, spec.n_batch, spec.admission) == (512, 32, "static")


@pytest.mark.parametrize(("num_ctx", "n_ctx"), [(0, 512), (100, 100), (9999, 2048)])
def test_a_window_is_the_requests_the_models_or_the_trained_one(
    store: Store, verdicts: Verdicts, num_ctx: int, n_ctx: int
) -> None:
    assert prepared(store, verdicts, {"num_ctx": num_ctx}).spec.n_ctx == n_ctx


@pytest.mark.parametrize(
    ("setting", "options", "expected"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"deterministic": False}, False),
        (False, {"deterministic": True}, True),
    ],
)
def test_a_request_decides_about_determinism_before_the_setting(
    store: Store, verdicts: Verdicts, setting: bool, options: dict[str, Any], expected: bool
) -> None:
    work = prepared(store, verdicts, options, deterministic=setting)
    assert work.sampling.deterministic is expected


def test_a_load_gets_the_verdict_of_an_earlier_one(store: Store, verdicts: Verdicts) -> None:
    spec = prepared(store, verdicts, {}).spec
    assert spec.verdict is None
    verdict = Verdict("split", flash_attention=False)
    verdicts.keep(spec, verdict)
    again = prepared(store, verdicts, {}).spec
    assert again.verdict == verdict
    assert spec.covers(again)


# ---- what was read before


def test_what_was_read_before_needs_no_thread(store: Store, verdicts: Verdicts) -> None:
    preparing = service_of(store, verdicts)._preparing
    call = chat({"num_ctx": 100})
    assert preparing.at_once(call, (), makes_text=True) is None
    work = preparing.work(call, (), makes_text=True)
    assert preparing.at_once(call, (), makes_text=True) == work


def _touch_weights(store: Store) -> None:
    path = store.resolve("m").model_path
    assert path is not None
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.delete("m"),
        lambda store: store.copy("other", "m"),
        _touch_weights,
    ],
    ids=["removed", "replaced", "other weights"],
)
def test_what_has_changed_is_read_again(
    store: Store, verdicts: Verdicts, change: Callable[[Store], Any]
) -> None:
    add(store, "other", {"pieces": ["y"], "n_ctx_train": 64})
    preparing = service_of(store, verdicts)._preparing
    preparing.work(chat({}), (), makes_text=True)
    change(store)
    assert preparing.at_once(chat({}), (), makes_text=True) is None


def test_an_empty_template_is_none_of_its_own(store: Store, verdicts: Verdicts) -> None:
    preparing = service_of(store, verdicts)._preparing
    plain, empty = (
        preparing.work(structs.replace(chat({}), template=text), (), makes_text=True)
        for text in (None, "")
    )
    assert plain.template == empty.template
