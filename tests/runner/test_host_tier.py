"""States in ordinary memory: one limit, the least recently used goes, the pinned stay."""

import pytest

from localrun.runner.engine.host_tier import HostTier, Saved, default_limit_bytes

MIB = 1 << 20


def put(host: HostTier, n_bytes: int, *, pin: bool = False) -> Saved | None:
    return host.put([1, 2, 3], "", bytes(n_bytes), pin=pin)


def must_put(host: HostTier, n_bytes: int, *, pin: bool = False) -> Saved:
    saved = put(host, n_bytes, pin=pin)
    assert saved is not None
    return saved


@pytest.mark.parametrize(
    ("kv_mib", "most_mib", "limit_mib"),
    [
        pytest.param(800, 4096, 100, id="an eighth of the KV cache"),
        pytest.param(40, 4096, 24, id="enough for a chat, however small the cache"),
        pytest.param(65536, 4096, 4096, id="no more than memory allows"),
        pytest.param(40, 10, 10, id="not even a chat where memory is short"),
    ],
)
def test_the_limit_where_nobody_sets_one(kv_mib: int, most_mib: int, limit_mib: int) -> None:
    assert default_limit_bytes(kv_mib * MIB, most_mib * MIB) == limit_mib * MIB


def test_a_state_comes_back_as_it_was() -> None:
    host = HostTier(100)
    saved = host.put([1, 2], "key", b"abc")
    assert saved is not None
    assert (saved.tokens, saved.scope, saved.data) == ([1, 2], "key", b"abc")
    assert host.unpinned() == [saved]
    assert host.n_bytes == 3


def test_the_least_recently_used_goes_first() -> None:
    host = HostTier(100)
    first, second, third = (must_put(host, 30) for _ in range(3))
    host.touch(first)
    newest = must_put(host, 30)
    assert set(host.unpinned()) == {first, third, newest}
    assert second not in host.unpinned()
    assert host.n_bytes == 90


def test_as_many_go_as_are_needed() -> None:
    host = HostTier(100)
    for _ in range(3):
        put(host, 30)
    large = must_put(host, 100)
    assert host.unpinned() == [large]
    assert host.n_bytes == 100


def test_pinned_ones_stay_and_bound_the_rest() -> None:
    host = HostTier(100)
    pinned = must_put(host, 60, pin=True)
    loose = must_put(host, 30)
    assert not host.could_hold(41)
    assert put(host, 41) is None
    assert host.unpinned() == [loose]  # nothing was dropped in vain
    assert host.could_hold(40)
    assert must_put(host, 40) in host.unpinned()
    assert host.n_bytes == 100
    host.drop(pinned)
    assert host.could_hold(100)


def test_a_pinned_one_is_nobodys_prefix() -> None:
    host = HostTier(100)
    put(host, 10, pin=True)
    assert host.unpinned() == []


def test_dropping_twice_gives_bytes_back_once() -> None:
    host = HostTier(100)
    saved = must_put(host, 10)
    must_put(host, 20)
    host.drop(saved)
    host.drop(saved)
    assert host.n_bytes == 20


@pytest.mark.parametrize(
    ("limit", "n_bytes", "is_kept"), [(0, 1, False), (0, 0, True), (9, 10, False)]
)
def test_what_exceeds_the_limit_is_not_kept(limit: int, n_bytes: int, is_kept: bool) -> None:
    host = HostTier(limit)
    assert host.could_hold(n_bytes) is is_kept
    assert (put(host, n_bytes) is not None) is is_kept
    assert host.n_bytes <= limit


def test_bytes_of_a_view_count_as_bytes() -> None:
    host = HostTier(10)
    assert host.put([1], "", memoryview(bytearray(10))) is not None
    assert host.n_bytes == 10


def test_room_is_made_before_a_state_is_saved_and_never_from_the_pinned() -> None:
    host = HostTier(100)
    first, second = must_put(host, 40), must_put(host, 40, pin=True)
    assert host.make_room(50)
    assert (host.unpinned(), host.n_bytes) == ([], 40)
    assert not host.make_room(61)
    host.drop(second)
    host.drop(first)
    assert host.n_bytes == 0
