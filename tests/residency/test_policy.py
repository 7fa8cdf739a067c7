"""The truth table of residency's decision, and the arithmetic of keep-alive."""

from typing import Any

import pytest

from localrun.core import LoadOptions, LoadSpec
from localrun.residency.keep_alive import effective_s, next_expiry_s
from localrun.residency.policy import Decision, Evict, Held, Start, Use, Wait, decide
from localrun.units import FOREVER


def spec(name: str, n_ctx: int = 4096, **changes: Any) -> LoadSpec:
    return LoadSpec(f"/{name}", name, n_ctx=n_ctx, n_parallel=8, n_threads=2, **changes)


def ready(name: str, n_leases: int = 0, last_used_s: float = 0, **changes: float) -> Held:
    return Held(spec(name), "ready", n_leases, last_used_s=last_used_s, **changes)


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
    "no room": (A, [ready("b")], 1, Evict("b")),
    "no room, one is leaving already": (A, [Held(spec("b"), "stopping")], 1, Wait()),
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
