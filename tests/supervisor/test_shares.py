"""Which runner hears of which others, and when."""

from collections.abc import Callable

from localrun.supervisor.shares import Shares


class FakeRunner:
    """Keeps what it was told."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_active = self.is_lost = False
        self.on_activity: Callable[[], object] = lambda: None
        self.cpu: int | None = None
        self.told: list[tuple[int, tuple[int, ...]]] = []

    def share(self, n_active: int, siblings: tuple[int, ...]) -> None:
        self.told.append((n_active, siblings))

    def become(self, *, active: bool, cpu: int | None = None) -> None:
        self.is_active = active
        self.cpu = cpu
        self.on_activity()


def joined(
    *pids: int, keep_off: Callable[[frozenset[int]], object] = lambda _cpus: None
) -> list[FakeRunner]:
    shares = Shares(keep_off)
    runners = [FakeRunner(pid) for pid in pids]
    for runner in runners:
        shares.join(runner)
    return runners


def test_a_runner_alone_hears_nothing() -> None:
    (one,) = joined(1)
    one.become(active=True)
    one.become(active=False)
    assert one.told == []


def test_those_who_are_active_hear_of_each_other_and_of_idle_ones() -> None:
    one, two, idle = joined(1, 2, 3)
    one.become(active=True)
    assert one.told == [(1, (2, 3))]
    two.become(active=True)
    assert (one.told[-1], two.told) == ((2, (2, 3)), [(2, (1, 3))])
    one.become(active=False)
    assert (len(one.told), two.told[-1], idle.told) == (2, (1, (1, 3)), [])


def test_nothing_is_said_twice() -> None:
    one, two = joined(1, 2)
    one.become(active=True)
    two.become(active=True)
    n_told = len(one.told)
    one.on_activity()
    two.on_activity()
    assert (len(one.told), len(two.told)) == (n_told, 1)


def test_what_changed_while_it_was_idle_is_told_with_its_next_request() -> None:
    one, two = joined(1, 2)
    one.become(active=True)
    two.become(active=True)
    one.become(active=False)
    two.become(active=False)
    assert one.told[-1] == (2, (2,))
    one.become(active=True)
    assert one.told[-1] == (1, (2,))


def test_a_lost_runner_shares_no_more() -> None:
    one, two = joined(1, 2)
    one.become(active=True)
    two.become(active=True)
    two.is_lost = True
    two.become(active=False)
    assert one.told[-1] == (1, ())


def test_the_loop_keeps_off_the_engines_of_those_who_are_active() -> None:
    kept: list[set[int]] = []
    one, two = joined(1, 2, keep_off=lambda cpus: kept.append(set(cpus)))
    one.become(active=True)
    assert kept == [], "it has not said where it computes"
    one.become(active=True, cpu=3)
    one.become(active=True, cpu=3)
    two.become(active=True, cpu=5)
    assert kept == [{3}, {3, 5}]
    one.become(active=True, cpu=4)
    two.become(active=False, cpu=5)
    one.become(active=False, cpu=4)
    assert kept[2:] == [{4, 5}, {4}, set()]
