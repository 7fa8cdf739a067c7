"""What tests of transfers do with a registry and a store."""

import os
import threading
from collections.abc import Callable, Iterator

from faulty_server import Asked, Fault, FaultyRegistry

from modelstore.digest import Digest
from modelstore.manifest import MODEL_TYPE
from modelstore.pull import Puller
from modelstore.sources import Progress
from modelstore.store import Store

Make = Callable[..., bytes]
SIZE = 3_000_000


def offer(registry: FaultyRegistry, data: bytes) -> str:
    registry.put("a/b", (MODEL_TYPE, data))
    return f"{registry.host}/a/b"


def only(data: bytes, plan: Callable[[Asked], Fault | None]) -> Callable[[Asked], Fault | None]:
    """`plan` for the requests of one blob."""
    digest = Digest.of(data).text
    return lambda asked: plan(asked) if asked.path.endswith(digest) else None


def followed(steps: Iterator[Progress]) -> list[Progress]:
    """All steps; `completed` must never fall."""
    seen: list[Progress] = []
    most: dict[str, int] = {}
    for step in steps:
        seen.append(step)
        if step.digest:
            assert (step.completed or 0) >= most.get(step.digest, 0)
            most[step.digest] = step.completed or 0
    return seen


def arrives(puller: Puller, name: str, data: bytes) -> None:
    """A pull ends well, and the blob is what it should be."""
    assert followed(puller.pull(name))[-1].status == "success"
    assert puller.store.blobs.path(Digest.of(data)).read_bytes() == data


def leftovers(store: Store) -> list[str]:
    return [name for name in os.listdir(store.blobs.folder) if "-partial" in name or "tmp" in name]


def threads_of(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]
