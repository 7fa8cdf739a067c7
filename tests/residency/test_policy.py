"""The truth tables of residency's decisions, and the arithmetic of keep-alive and memory."""

from typing import Any

import pytest

from localrun.memory import Fit, Need, Plan, Split
from localrun.residency.keep_alive import effective_s, next_expiry_s
from localrun.residency.memory import RETURN_LIMIT_S, not_enough, planned_info, returning
from localrun.residency.policy import (
    Admission,
    Decision,
    Evict,
    Held,
    Load,
    Refuse,
    Start,
    State,
    Use,
    Wait,
    admit,
    decide,
)
from localrun.spec import LoadOptions, LoadSpec
from localrun.units import FOREVER


def spec(name: str, n_ctx: int = 4096, **changes: Any) -> LoadSpec:
    return LoadSpec(f"/{name}", name, n_ctx=n_ctx, n_parallel=8, n_threads=2, **changes)


def ready(name: str, n_leases: int = 0, last_used_s: float = 0, **changes: float) -> Held:
    return Held(spec(name), "ready", n_leases, last_used_s=last_used_s, **changes)


def draining(name: str, **memory: int) -> Held:
    return Held(spec(name), "stopping", n_leases=1, device_bytes=memory, is_draining=True)


A = spec("a")

TABLE: dict[str, tuple[LoadSpec, list[Held], int, Decision]] = {
    "nothing loaded": (A, [], 1, Start()),
    "loaded and ready": (A, [ready("a")], 1, Use()),
    "loaded and busy": (A, [ready("a", n_leases=20)], 1, Use()),
    "a smaller window is served": (spec("a", 100), [ready("a")], 1, Use()),
    "a larger window is served": (spec("a", 9999), [ready("a")], 1, Use()),
    "other layers load again": (
        spec("a", n_gpu_layers=3, asked=LoadOptions(num_gpu=3)),
        [ready("a")],
        3,
        Evict("a"),
    ),
    "on its way in": (A, [Held(A, "loading")], 1, Wait()),
    "on its way out": (A, [Held(A, "stopping")], 3, Wait()),
    "room beside another": (A, [ready("b")], 2, Start()),
    "room, but another one is loading": (A, [Held(spec("b"), "loading")], 9, Wait()),
    "room beside one that is leaving": (A, [Held(spec("b"), "stopping")], 2, Start()),
    "no room": (A, [ready("b")], 1, Evict("b")),
    "no room, one is leaving already": (A, [Held(spec("b"), "stopping")], 1, Wait()),
    "one that drains goes on while all others are busy": (
        A,
        [draining("b"), ready("c", n_leases=1)],
        2,
        Wait(),
    ),
    "one that drains stays when another has become idle": (
        A,
        [draining("b"), ready("c", n_leases=1), ready("d", last_used_s=5)],
        3,
        Evict("d", spares="b"),
    ),
    "nobody else goes when one is sure to go": (
        A,
        [draining("b"), Held(spec("c"), "stopping"), ready("d")],
        3,
        Wait(),
    ),
    "no room, one is loading": (A, [Held(spec("b"), "loading")], 1, Wait()),
    "the one used longest ago goes": (
        A,
        [ready("b", last_used_s=5), ready("c", last_used_s=3), ready("d", last_used_s=9)],
        3,
        Evict("c"),
    ),
    "an idle one goes before a busy one": (
        A,
        [ready("b", n_leases=1, last_used_s=1), ready("c", last_used_s=9)],
        2,
        Evict("c"),
    ),
    "what stays for ever goes last": (
        A,
        [ready("b", keep_alive_s=FOREVER, last_used_s=1), ready("c", last_used_s=9)],
        2,
        Evict("c"),
    ),
    "for ever is not for always": (A, [ready("b", keep_alive_s=FOREVER)], 1, Evict("b")),
    "all busy: the least recently used drains": (
        A,
        [ready("b", n_leases=1, last_used_s=2), ready("c", n_leases=1, last_used_s=1)],
        2,
        Evict("c"),
    ),
}


@pytest.mark.parametrize(("wanted", "held", "max_loaded", "expected"), TABLE.values(), ids=TABLE)
def test_decision(wanted: LoadSpec, held: list[Held], max_loaded: int, expected: Decision) -> None:
    assert decide(wanted, held, max_loaded) == expected


def plan(fit: Fit, *, fits: bool = True) -> Plan:
    available = {"CPU": 100 if fits else 1, "CUDA0": 3}
    return Plan(fit, Split(), {"CPU": Need(50), "CUDA0": Need(1, 1, 1)}, available)


def holder(
    name: str, state: State = "ready", last_used_s: float = 0, n_leases: int = 0, **memory: int
) -> Held:
    return Held(spec(name), state, n_leases, last_used_s=last_used_s, device_bytes=memory)


CROWDED, TOO_CROWDED = plan("crowded"), plan("crowded", fits=False)

ADMISSIONS: dict[str, tuple[Plan, list[Held], bool, Admission]] = {
    "nothing to gain by waiting": (plan("now"), [holder("b", CUDA0=9)], True, Load()),
    "nothing to gain, whatever has changed": (plan("now"), [], False, Load()),
    "not even alone": (plan("never", fits=False), [holder("b", CUDA0=9)], True, Refuse()),
    "something has changed": (TOO_CROWDED, [], False, Wait()),
    "a holder is on its way out": (
        CROWDED,
        [holder("b", CUDA0=9), holder("c", "stopping", CUDA0=9)],
        True,
        Wait(),
    ),
    "a holder that drains stays when another one is idle": (
        CROWDED,
        [draining("b", CUDA0=9), holder("c", CUDA0=9), holder("d", n_leases=1, CUDA0=9)],
        True,
        Evict("c", spares="b"),
    ),
    "a holder that drains does not stay for one that holds nothing": (
        CROWDED,
        [draining("b", CUDA0=9), holder("c", CPU=9)],
        True,
        Wait(),
    ),
    "one that is on its way out does not help": (
        CROWDED,
        [holder("b", CUDA0=9), holder("c", "stopping", CPU=9)],
        True,
        Evict("b"),
    ),
    "one at a time, the one used longest ago": (
        CROWDED,
        [holder("b", last_used_s=5, CUDA0=1), holder("c", last_used_s=3, CUDA0=1)],
        True,
        Evict("c"),
    ),
    "an idle one before a busy one": (
        CROWDED,
        [holder("b", last_used_s=5, CUDA0=1), holder("c", n_leases=1, CUDA0=1)],
        True,
        Evict("b"),
    ),
    "busy ones too": (CROWDED, [holder("b", n_leases=1, CUDA0=1)], True, Evict("b")),
    "a better place is one on a GPU": (CROWDED, [holder("b", CPU=9)], True, Load()),
    "what does not even fit into ram can use any memory": (
        TOO_CROWDED,
        [holder("b", CPU=9)],
        True,
        Evict("b"),
    ),
    "a model without memory": (TOO_CROWDED, [holder("b")], True, Refuse()),
    "nobody left, and it fits": (CROWDED, [], True, Load()),
    "nobody left, and it does not fit": (TOO_CROWDED, [], True, Refuse()),
}


@pytest.mark.parametrize(
    ("made", "others", "is_current", "expected"), ADMISSIONS.values(), ids=ADMISSIONS
)
def test_admission(made: Plan, others: list[Held], is_current: bool, expected: Admission) -> None:
    assert admit(made, others, is_current=is_current) == expected


def test_a_model_on_its_way_in_is_as_large_as_its_plan() -> None:
    info = planned_info(CROWDED, A)
    assert (info.n_ctx, info.n_slots) == (4096, 8)
    assert info.device_bytes == {"CPU": 50, "CUDA0": 3}
    assert (info.size_bytes, info.size_vram_bytes) == (53, 3)


def test_what_is_missing_is_said_for_every_device_that_is_needed() -> None:
    gib = 2**30
    needs = {"CPU": Need(3 * gib), "CUDA0": Need(0, gib, gib // 2), "CUDA1": Need()}
    refused = Plan("never", Split(), needs, {"CPU": gib, "CUDA0": 200 << 20, "CUDA1": gib})
    error = not_enough(refused, {"CPU": gib, "CUDA1": 5})
    assert error.needed == {"CPU": 3 * gib, "CUDA0": gib + gib // 2}
    assert error.available == {"CPU": 2 * gib, "CUDA0": 200 << 20}
    text = str(error)
    assert "3.00 GiB of RAM (available: 2.00 GiB)" in text
    assert "1.50 GiB of CUDA0's memory (available: 200.0 MiB)" in text


@pytest.mark.parametrize(
    ("available", "now_s", "expected"),
    [
        ({"CUDA0": 10, "CUDA1": 10}, 101, False),
        ({"CUDA0": 10 + 75, "CUDA1": 10}, 101, False),
        ({"CUDA0": 10 + 75, "CUDA1": 10 + 150}, 101, True),
        ({"CUDA0": 10, "CUDA1": 10}, 102 + RETURN_LIMIT_S, True),
        ({}, 101, False),
    ],
)
def test_memory_is_back_when_most_of_it_is_seen_or_its_time_is_up(
    available: dict[str, int], now_s: float, expected: bool
) -> None:
    before = {"CUDA0": 10, "CUDA1": 10}
    first = returning(None, {"CPU": 999, "CUDA0": 100}, before, 100)
    both = returning(first, {"CUDA1": 200}, {"CUDA0": 99, "CUDA1": 99}, 102)
    assert both is not None
    assert both.held == {"CUDA0": 100, "CUDA1": 200}
    assert both.is_over(available, now_s) is expected


def test_without_a_plan_from_before_only_time_tells_that_memory_is_back() -> None:
    one = returning(None, {"CUDA0": 100}, None, 0)
    assert one is not None
    assert not one.is_over({"CUDA0": 10**9}, RETURN_LIMIT_S - 1)
    assert one.is_over({}, RETURN_LIMIT_S)


def test_ram_is_back_at_once_and_old_expectations_are_forgotten() -> None:
    assert returning(None, {"CPU": 100}, None, 0) is None
    old = returning(None, {"CUDA0": 100}, None, 0)
    assert returning(old, {"CPU": 100}, None, 1) is old
    new = returning(old, {"CUDA0": 7}, {"CUDA0": 1}, 60)
    assert new is not None
    assert (new.held, new.before) == ({"CUDA0": 7}, {"CUDA0": 1})


@pytest.mark.parametrize(
    ("requested", "current", "expected"),
    [
        (None, None, 300),
        (None, 10, 10),
        (0, 10, 0),
        (FOREVER, 10, FOREVER),
        (None, FOREVER, FOREVER),
        (5, None, 5),
    ],
)
def test_keep_alive_sticks_until_a_request_brings_another(
    requested: float | None, current: float | None, expected: float
) -> None:
    assert effective_s(requested, current, 300) == expected


def test_the_next_expiry_is_the_earliest() -> None:
    assert next_expiry_s([7, 3, FOREVER]) == 3
    assert next_expiry_s([]) == FOREVER
