"""The store's lock: one holder among threads and processes, re-entrant within a thread."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from modelstore.errors import StoreBusy
from modelstore.locks import StoreLock

HOLDER = """
import sys
from pathlib import Path
from modelstore.locks import StoreLock
with StoreLock(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_can_be_taken_again_within_a_thread(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path, timeout_s=0.05)
    with lock.held(), lock.held():
        pass
    with lock.held():
        pass


def test_two_objects_on_one_folder_exclude_each_other(tmp_path: Path) -> None:
    with StoreLock(tmp_path).held(), pytest.raises(StoreBusy), StoreLock(tmp_path, 0.05).held():
        pass


def test_another_thread_waits_and_gives_up(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path, timeout_s=0.05)
    outcomes: list[str] = []

    def contend() -> None:
        try:
            with lock.held():
                outcomes.append("held")
        except StoreBusy:
            outcomes.append("busy")

    with lock.held():
        thread = threading.Thread(target=contend)
        thread.start()
        thread.join()
    assert outcomes == ["busy"]


def test_threads_take_turns(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with lock.held():
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_another_process_is_kept_out_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environ = os.environ | {"PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(StoreBusy, match="another process"), StoreLock(tmp_path, 0.05).held():
            pass
        process.kill()
        process.wait()
        with StoreLock(tmp_path, 10.0).held():
            pass
