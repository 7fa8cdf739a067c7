"""Who shares a transfer: two pulls, two sources, two processes."""

import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from faulty_server import QUICK, Fault, FaultyRegistry
from live import wait_until
from transfer_steps import SIZE, Make, followed, leftovers, offer, only

from modelstore.digest import Digest
from modelstore.errors import (
    TransferFailed,
)
from modelstore.manifest import MODEL_TYPE
from modelstore.pull import Puller
from modelstore.registry.access import Pace
from modelstore.store import Store
from modelstore.transfer.partial import read_journal
from modelstore.transfer.ranges import RangeSet
from modelstore.transfer.transfers import Transfers


def test_two_pulls_share_one_transfer_and_one_may_leave(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    gate = threading.Event()
    registry.plan = only(data, lambda asked: Fault(gate=gate))
    first, second = puller.pull(name), puller.pull(name)
    for steps in (first, second):
        next(step for step in steps if step.digest)
    first.close()
    gate.set()
    assert followed(second)[-1].status == "success"
    assert registry.n_bytes == len(data) + 23
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


@pytest.mark.parametrize("fault", [Fault(stall_at=500_000), Fault(status=403), Fault(flip_at=9)])
def test_a_shared_transfer_goes_on_from_the_source_of_the_other(
    puller: Puller, registry: FaultyRegistry, gguf: Make, fault: Fault
) -> None:
    data = gguf(SIZE)
    gate = threading.Event()
    bad = replace(fault, gate=gate)
    stall_s = 60.0 if fault.stall_at is None else 1.0
    puller = replace(puller, access=replace(puller.access, pace=Pace(5.0, stall_s)))
    registry.put("bad/b", (MODEL_TYPE, data))
    registry.put("good/b", (MODEL_TYPE, data))
    registry.plan = only(data, lambda asked: bad if "/bad/" in asked.path else None)
    first, second = puller.pull(f"{registry.host}/bad/b"), puller.pull(f"{registry.host}/good/b")
    for steps in (first, second):
        next(step for step in steps if step.digest)
    gate.set()
    assert followed(second)[-1].status == "success"
    assert followed(first)[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data
    assert any("/good/" in asked.path for asked in registry.of(data))


def test_whoever_joined_a_transfer_that_fails_before_his_turn_begins_his_own(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    gate = threading.Event()
    registry.put("bad/b", (MODEL_TYPE, data))
    registry.put("good/b", (MODEL_TYPE, data))
    registry.plan = only(
        data, lambda asked: Fault(status=500, gate=gate) if "/bad/" in asked.path else None
    )
    patient = replace(puller.access, pace=Pace(5.0, 60.0))  # the gate is no stall
    puller = Puller(puller.store, Transfers(replace(QUICK, n_tries=1)), patient)
    first, second = puller.pull(f"{registry.host}/bad/b"), puller.pull(f"{registry.host}/good/b")
    for steps in (first, second):
        next(step for step in steps if step.digest)
    gate.set()
    with pytest.raises(TransferFailed):
        followed(first)
    assert followed(second)[-1].status == "success"


def test_whoever_waits_hears_something_all_the_time(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    gate = threading.Event()
    registry.plan = only(data, lambda asked: Fault(gate=gate))
    waiting = Puller(puller.store, Transfers(QUICK), replace(puller.access, pace=Pace(9, 3600)))
    steps = waiting.pull(name)
    first = next(step for step in steps if step.digest)
    assert [next(steps), next(steps)] == [first, first]
    gate.set()
    assert followed(steps)[-1].status == "success"


_OTHER = """
import sys
from modelstore.pull import Puller
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers
from pathlib import Path
from types import SimpleNamespace

root, host = sys.argv[1:]
puller = Puller(Store(Path(root)), Transfers(), Access((parse_registry("http://" + host),)))
for step in puller.pull(host + "/a/b"):
    print(step.status, flush=True)
"""


def other_process(store: Store, registry: FaultyRegistry) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(store.root), registry.host],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_do_not_fetch_the_same_bytes(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(SIZE)
    name = offer(registry, data)
    gate = threading.Event()
    registry.plan = only(data, lambda asked: Fault(gate=gate))
    steps = puller.pull(name)
    next(step for step in steps if step.digest)
    with other_process(puller.store, registry) as other:
        assert other.stdout is not None
        said = iter(other.stdout)
        next(line for line in said if "another process" in line)
        gate.set()
        assert followed(steps)[-1].status == "success"
        assert list(said)[-1] == "success\n"
        assert other.wait(30) == 0
    assert registry.n_bytes == len(data) + 23
    assert leftovers(puller.store) == []


def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(
    puller: Puller, registry: FaultyRegistry, gguf: Make
) -> None:
    data = gguf(40 << 20)
    name = offer(registry, data)
    held_at = 35 << 20
    registry.plan = only(
        data, lambda asked: Fault(stall_at=held_at) if asked.end > held_at else None
    )
    journal = puller.store.blobs.folder / f"{Digest.of(data).file_name}-partial.json"

    def n_saved() -> int:
        found = read_journal(journal)
        return RangeSet(found.completed).n_bytes if found else 0

    with other_process(puller.store, registry) as other:
        wait_until(lambda: n_saved() > 30 << 20, "the journal to say so")
        other.kill()
    sent = registry.n_bytes
    registry.plan = lambda asked: None
    assert followed(puller.pull(name))[-1].status == "success"
    assert registry.n_bytes - sent < 10 << 20
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data
