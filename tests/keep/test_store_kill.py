"""A store survives the death of whoever works on it, at any moment: see `kill_child`."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_servers import DockerRegistry

from modelstore.pruning import PruneRules
from modelstore.store import Store
from modelstore.usage import usage
from modelstore.verify import Health, verify
from tests.keep.kill_child import NAMES, OPERATIONS
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf
from tests.modelstore.store_writer import blob_files, names, referenced

ROOT = Path(__file__).resolve().parents[2]
N_KILLS = 200 if os.environ.get("LOCALRUN_TEST_FULL") == "1" else 10


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The host of a registry that has all the models; empty where there can be none."""
    if shutil.which("docker-registry") is None:
        yield ""
        return
    server = DockerRegistry(tmp_path / "registry")
    path = tmp_path / "registry.gguf"
    for number, name in enumerate(NAMES):
        text = random.Random(number).randbytes(1_000_000).hex()
        write_gguf(path, tiny_metadata(general__description=text), tiny_tensors())
        server.put(f"library/{name}", "latest", path.read_bytes())
    yield server.host
    server.kill()


def die_at_work(
    store: Store, seed: int, operation: str, registry: str
) -> tuple[set[str], set[str]]:
    """The models that must be there after a child's death, and those that may be."""
    arguments = [str(store.root), str(seed), operation, registry]
    done = subprocess.run(
        [sys.executable, "-m", "tests.keep.kill_child", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done
    lines = [line.split() for line in done.stdout.splitlines()]
    listed = set(next(line[1:] for line in reversed(lines) if line[0] == "listed"))
    verb, *named = lines[-1]
    if verb == "rm":
        return listed - {*named}, listed
    return listed, listed | {*named}


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_death_loses_a_model_or_shows_half_of_one(tmp_path: Path, registry: str) -> None:
    store = Store(tmp_path / "store")
    operations = [one for one in OPERATIONS if registry or one != "pull"]
    lot = random.Random(20)
    for number in range(N_KILLS):
        operation = operations[number % len(operations)]
        seed = lot.getrandbits(32)
        what = f"death {number}, of {operation!r} with seed {seed}"
        must, may = die_at_work(store, seed, operation, registry)
        store = Store(store.root)
        listed = set(names(store))
        assert must <= listed <= may, what
        health = [step for step in verify(store) if isinstance(step, Health)]
        assert {one.model for one in health if one.is_well} == listed, what
        assert len(health) == len(listed), what
        leaked = usage(store)
        leaked_bytes = sum(piece.size_bytes for piece in (*leaked.pieces, *leaked.unreferenced))
        assert store.prune(PruneRules(min_age_s=0, partial_age_s=0)).freed_bytes == leaked_bytes
        is_link = {f"{name}.in-place" for name in referenced(store)}
        assert referenced(store) <= blob_files(store) <= referenced(store) | is_link, what
        assert set(names(store)) == listed, what
        assert not list(store.root.rglob(".tmp-*")), what
