"""Works on a store until it dies by its own hand, as by `kill -9`, at a moment drawn by lot.

    python -m tests.keep.kill_child FOLDER SEED OPERATION [REGISTRY]

Says on standard output what there is, `listed NAME…`, and what it begins, `rm NAME` or `make NAME`.
Half of the moments are counted in system calls that touch files, so that they fall between two of
them; the others are counted in microseconds, so that they also fall into writing and hashing.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from modelstore.create import CreateRequest, create
from modelstore.names import ModelName
from modelstore.pruning import PruneRules
from modelstore.pull import Puller
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.store import Store
from modelstore.transfer.transfers import Transfers
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf

NAMES = [f"m{number}" for number in range(6)]
_TOUCHING = ("open", "os.", "shutil.", "fcntl.", "tempfile.")
# About as many as one operation makes.
_MAX_CALLS = 60
_MAX_US = 30_000


def _gguf(folder: Path, lot: random.Random) -> Path:
    path = folder / f"{lot.getrandbits(64):x}.gguf"
    text = lot.randbytes(lot.choice([10, 100_000, 1_000_000])).hex()
    write_gguf(path, tiny_metadata(general__description=text), tiny_tensors())
    return path


def _create(store: Store, lot: random.Random, name: str, *, in_place: bool = False) -> None:
    path = _gguf(store.root.parent, lot)
    request = CreateRequest(name, path=path, in_place=in_place, system=lot.choice(["a", "b", None]))
    for _ in create(store, request, check_parameters=lambda parameters: parameters):
        pass
    if not in_place:
        path.unlink()


def _create_in_place(store: Store, lot: random.Random, name: str) -> None:
    _create(store, lot, name, in_place=True)


def _create_from(store: Store, lot: random.Random, name: str) -> None:
    source = lot.choice(store.list()).name
    request = CreateRequest(name, from_=source, system=f"{lot.random()}")
    for _ in create(store, request, check_parameters=lambda parameters: parameters):
        pass


def _rm(store: Store, lot: random.Random, name: str) -> None:
    if store.exists(name):
        store.delete(name)
    else:
        _create(store, lot, name)


def _cp(store: Store, lot: random.Random, name: str) -> None:
    store.copy(lot.choice(store.list()).name, name)


def _prune(store: Store, lot: random.Random, name: str) -> None:
    for _ in range(3):
        store.blobs.ingest([lot.randbytes(5000)], None)
    store.prune(PruneRules(min_age_s=0, partial_age_s=0))


def _pull(store: Store, lot: random.Random, name: str) -> None:
    host = name.partition("/")[0]
    puller = Puller(store, Transfers(), Access((parse_registry(f"http://{host}"),)))
    for _ in puller.pull(name):
        pass


# Operation → what it does with a model of that name. Each may end anywhere.
OPERATIONS: dict[str, Callable[[Store, random.Random, str], None]] = {
    "create": _create,
    "create in place": _create_in_place,
    "create from": _create_from,
    "rm": _rm,
    "cp": _cp,
    "prune": _prune,
    "pull": _pull,
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(lot: random.Random) -> None:
    if lot.random() < 0.5:
        timer = threading.Timer(lot.randrange(_MAX_US) / 1e6, _die)
        timer.daemon = True
        timer.start()
        return
    n_left = lot.randrange(1, _MAX_CALLS)

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal n_left
        if event.startswith(_TOUCHING):
            n_left -= 1
            if n_left == 0:
                _die()

    sys.addaudithook(count)


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def _say_list(store: Store) -> None:
    _say(" ".join(["listed", *(listing.name.display() for listing in store.list())]))


def main(folder: str, seed: str, operation: str, registry: str = "") -> None:
    lot = random.Random(int(seed))
    store = Store(Path(folder))
    while len(store.list()) < 2:
        _create(store, lot, lot.choice(NAMES))
    _say_list(store)
    _arm(lot)
    while True:
        name = lot.choice(NAMES)
        if operation == "pull":
            name = f"{registry}/library/{name}"
            if store.exists(name):
                _say(f"rm {name}:latest")
                store.delete(name)
                _say_list(store)
        is_removal = operation == "rm" and store.exists(name)
        _say(f"{'rm' if is_removal else 'make'} {ModelName.parse(name).display()}")
        OPERATIONS[operation](store, lot, name)
        _say_list(store)


if __name__ == "__main__":
    main(*sys.argv[1:])
