"""`python -m bench.store`: a store with many models: how long lists take, and what `create` adds.

500 tiny models, each with weights of its own, in a temporary store. The first answer after the
daemon's start reads what later ones remember; the very first list also reads the headers of all
models, which the daemon remembers over restarts. The page cache is warm for all. Then the import of
the tests' SmolLM2 in place, beside the hashing of its 98 MB alone. Prints Markdown.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gguf

from bench import rig
from bench.child import Child, request
from bench.report import spread, table
from bench.rig import commit, model_path, say
from bench.servers import clean_environment
from modelstore.create import CreateRequest, create
from modelstore.digest import hash_file
from modelstore.store import Store

_TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def main() -> None:
    """Measures and prints."""
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="localrun-bench-") as folder:
        root = Path(folder) / "models"
        say(f"making {arguments.models} models")
        names = _fill(Store(root), arguments.models, arguments.words, Path(folder))
        rows = _lists(root, names, arguments.rounds)
        added_ms = _in_place(root, model_path(arguments.model), arguments.rounds)
    print(
        f"commit {commit()}, {os.cpu_count()} CPUs, {arguments.models} models with "
        f"{arguments.words} words each, {arguments.rounds} rounds\n"
    )
    print(table(["answer", "first, ms", "later, ms"], rows))
    print(f"\n`create --in-place` beyond hashing: {spread(added_ms, 0)} ms")


def _parser() -> argparse.ArgumentParser:
    parser = rig.parser("store", __doc__)
    parser.add_argument("--models", type=int, default=500, help="models in the store (500)")
    parser.add_argument("--words", type=int, default=1000, help="words of each vocabulary (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="daemons, one after the other (5)")
    return parser


def _fill(store: Store, n_models: int, n_words: int, folder: Path) -> list[str]:
    """Makes the models; returns their names."""
    names = [f"family{number % 20}/model{number}:q4" for number in range(n_models)]
    path = folder / "model.gguf"
    for number, name in enumerate(names):
        _write_gguf(path, number, n_words)
        wanted = CreateRequest(name, path=path, system=f"You are number {number}.")
        for _ in create(store, wanted, check_parameters=lambda parameters: parameters):
            pass
    return names


def _write_gguf(path: Path, number: int, n_words: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"model {number}")
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_chat_template(_TEMPLATE)
    writer.add_token_list([f"word{word}" for word in range(n_words)])
    writer.add_token_scores([0.0] * n_words)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _lists(root: Path, names: list[str], n_rounds: int) -> list[list[str]]:
    """One row for each kind of answer: the first one of a daemon, and the median of later ones."""
    kinds: dict[str, Callable[[int], Callable[[], object]]] = {
        "/api/tags": lambda port: lambda: request(port, "GET", "/api/tags"),
        "/v1/models": lambda port: lambda: request(port, "GET", "/v1/models"),
        "/api/show": lambda port: lambda: request(port, "POST", "/api/show", {"model": names[-1]}),
        "/api/df": lambda port: lambda: request(port, "GET", "/api/df"),
        "`localrun list`": lambda port: lambda: _cli(port, "list"),
        "`localrun show`": lambda port: lambda: _cli(port, "show", names[-1]),
        "`localrun --version`, for the start of Python": lambda port: (
            lambda: _cli(port, "--version")
        ),
    }
    with _daemon(root) as port:
        ever_ms = _ms(lambda: request(port, "GET", "/api/tags"))
    rows = [["/api/tags, the very first", f"{ever_ms:.0f}", "–"]]
    for what, made in kinds.items():
        first_ms, later_ms = [], []
        for _ in range(n_rounds):
            with _daemon(root) as port:
                ask = made(port)
                first_ms.append(_ms(ask))
                later_ms.append(statistics.median(_ms(ask) for _ in range(5)))
        say(f"  {what}: {statistics.median(first_ms):.0f} {statistics.median(later_ms):.0f} ms")
        rows.append([what, spread(first_ms, 0), spread(later_ms, 0)])
    return rows


def _in_place(root: Path, model: Path, n_rounds: int) -> list[float]:
    """Milliseconds of each `create --in-place` that are not hashing."""
    added = []
    with _daemon(root) as port:
        for number in range(n_rounds):
            hashing_ms = _ms(lambda: hash_file(model))
            body = {"model": f"big{number}", "path": str(model), "in_place": True, "stream": False}
            made_ms = _ms(partial(request, port, "POST", "/api/create", body))
            say(f"  create --in-place: {made_ms:.0f} ms, of which hashing {hashing_ms:.0f} ms")
            added.append(made_ms - hashing_ms)
    return added


@contextmanager
def _daemon(root: Path) -> Iterator[int]:
    settings = {
        "LOCALRUN_MODELS": str(root),
        "LOCALRUN_HOST": "127.0.0.1:0",
        "XDG_CACHE_HOME": str(root.parent / "cache"),
    }
    child = Child([sys.executable, "-m", "cli", "serve"], {**clean_environment(), **settings})
    try:
        yield child.wait_port()
    finally:
        child.stop()


def _cli(port: int, *arguments: str) -> None:
    environment = {**clean_environment(), "LOCALRUN_HOST": f"127.0.0.1:{port}"}
    # As installed: nobody's command compiles our modules anew each time.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _ms(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
