"""Settings: where they are looked up, and what is refused."""

from typing import get_args

import pytest

from localrun.setting_texts import parse_host
from localrun.settings import SETTINGS, BadSetting, from_env
from localrun.spec import KvLayout


def test_a_setting_is_found_under_each_of_its_names_in_order() -> None:
    names = {"LOCALRUN_NUM_PARALLEL": "1", "OLLAMA_NUM_PARALLEL": "2", "NUM_PARALLEL": "3"}
    for n_parallel in (1, 2, 3):
        assert from_env(names).num_parallel == n_parallel
        names.pop(next(iter(names)))
    assert from_env(names).num_parallel == 8


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOCALRUN_NUM_PARALLEL", "many"),
        ("OLLAMA_KEEP_ALIVE", "5 minutes"),
        ("LOCALRUN_HOST", "host:99999"),
        ("LOCALRUN_KV_CACHE_TYPE", "q3"),
        ("LOCALRUN_FLASH_ATTENTION", "maybe"),
        ("LOCALRUN_KV_POOL", "-1"),
        ("LOCALRUN_KV_POOL", "2GiB"),
        ("LOCALRUN_KV_LAYOUT", "paged"),
        ("LOCALRUN_HOST_TIER", "some"),
        ("LOCALRUN_HOST_TIER", "-1"),
        ("LOCALRUN_TPOT_TARGET_MS", "0"),
        ("LOCALRUN_TPOT_TARGET_MS", "nan"),
        ("LOCALRUN_TPOT_TARGET_MS", "fast"),
        ("LOCALRUN_DETERMINISTIC", "sometimes"),
        ("LOCALRUN_GPU_OVERHEAD", "much"),
        ("LOCALRUN_GPU_OVERHEAD", "CUDA0="),
        ("LOCALRUN_GPU_OVERHEAD", "=1GiB"),
        ("LOCALRUN_GPU_OVERHEAD", "1GiB,2GiB"),
        ("LOCALRUN_GPU_OVERHEAD", "CUDA0=1GiB,CUDA0=2GiB"),
        ("LOCALRUN_SCHED_SPREAD", "wide"),
        ("LOCALRUN_RPC_SERVERS", "box"),
        ("LOCALRUN_RPC_SERVERS", ":50052"),
        ("LOCALRUN_RPC_SERVERS", "box:0"),
        ("LOCALRUN_RPC_SERVERS", "box:65536"),
        ("LOCALRUN_RPC_SERVERS", "[::1]:50052"),
        ("LOCALRUN_RPC_SERVERS", "http://box:50052"),
        ("LOCALRUN_RPC_SERVERS", "box:50052,box:50052"),
        ("LOCALRUN_TYPO", "1"),
    ],
)
def test_a_bad_setting_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(BadSetting, match=variable):
        from_env({variable: value})


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("KV_POOL", "32768", "kv_pool", 32768),
        ("KV_POOL", "auto", "kv_pool", None),
        ("KV_LAYOUT", "Split", "kv_layout", "split"),
        ("KV_LAYOUT", "auto", "kv_layout", None),
        ("HOST_TIER", "2GiB", "host_tier_bytes", 2 << 30),
        ("HOST_TIER", "0", "host_tier_bytes", 0),
        ("HOST_TIER", "AUTO", "host_tier_bytes", None),
        ("TPOT_TARGET_MS", "62.5", "tpot_target_ms", 62.5),
        ("TPOT_TARGET_MS", "auto", "tpot_target_ms", None),
        ("DETERMINISTIC", "1", "deterministic", True),
    ],
)
def test_settings_of_the_kv_cache_and_the_step(
    name: str, text: str, field: str, value: object
) -> None:
    assert getattr(from_env({f"LOCALRUN_{name}": text}), field) == value
    assert getattr(from_env({f"OLLAMA_{name}": text}), field) == getattr(from_env({}), field)


@pytest.mark.parametrize("layout", get_args(KvLayout))
def test_every_layout_is_a_setting(layout: str) -> None:
    assert from_env({"LOCALRUN_KV_LAYOUT": layout}).kv_layout == layout


def test_secrets_are_not_shown_with_the_other_settings() -> None:
    secrets = {"API_KEY": "sk-1", "HF_TOKEN": "hf-1", "REGISTRIES": "https://me:pw-1@host"}
    settings = from_env({f"LOCALRUN_{name}": text for name, text in secrets.items()})
    assert (settings.api_key, settings.hf_token) == ("sk-1", "hf-1")
    assert "num_parallel=8" in repr(settings)
    assert "-1" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("GPU_OVERHEAD", "1GiB", "gpu_overhead_bytes", {"": 1 << 30}),
        ("GPU_OVERHEAD", "500", "gpu_overhead_bytes", {"": 500}),
        (
            "GPU_OVERHEAD",
            "RPC0=20GiB, RPC1 = 22GiB",
            "gpu_overhead_bytes",
            {"RPC0": 20 << 30, "RPC1": 22 << 30},
        ),
        ("GPU_OVERHEAD", "1KiB,CUDA1=0", "gpu_overhead_bytes", {"": 1024, "CUDA1": 0}),
        ("SCHED_SPREAD", "1", "sched_spread", True),
        ("RPC_SERVERS", "10.0.0.2:50052, box:1", "rpc_servers", ("10.0.0.2:50052", "box:1")),
    ],
)
def test_settings_of_gpus(name: str, text: str, field: str, value: object) -> None:
    assert getattr(from_env({f"LOCALRUN_{name}": text}), field) == value
    # The servers of another program need not be meant for this one.
    other = getattr(from_env({f"OLLAMA_{name}": text}), field)
    assert other == (() if name == "RPC_SERVERS" else value)


def test_quotes_spaces_and_empty_values() -> None:
    settings = from_env({"LOCALRUN_MAX_QUEUE": ' "7" ', "LOCALRUN_NUM_PARALLEL": ""})
    assert (settings.max_queue, settings.num_parallel) == (7, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:11434", ("127.0.0.1", 11434)),
        ("localhost", ("localhost", 11434)),
        (":8080", ("0.0.0.0", 8080)),
        ("[::1]:99", ("::1", 99)),
        ("::1", ("::1", 11434)),
        ("http://host", ("host", 80)),
        ("http://host:5/prefix", ("host", 5)),
        ("0.0.0.0", ("0.0.0.0", 11434)),
    ],
)
def test_hosts(text: str, expected: tuple[str, int]) -> None:
    assert parse_host(text) == expected


def test_a_client_reaches_a_daemon_that_listens_everywhere_on_loopback() -> None:
    assert from_env({"OLLAMA_HOST": "0.0.0.0:5"}).url == "http://127.0.0.1:5"
    assert from_env({"OLLAMA_HOST": "[::]:5"}).url == "http://[::1]:5"


def test_every_setting_has_a_help_text() -> None:
    assert all(row.help and row.default is not None for row in SETTINGS)
