"""`python -m bench.pull`: a pull through the daemon beside `curl` and `sha256sum`.

nginx on loopback serves files of 98 MB and 1 GB as a registry would; the daemon pulls them with
POST /api/pull, and `curl -o` fetches the same URL, followed by `sha256sum`. Our pull also flushes
the blob to the disk before it is visible, so `sync` of the file is timed apart. In turns, medians.
Resident memory is the daemon's peak. Prints Markdown. Needs nginx and curl.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import psutil

from bench.child import Child, request
from bench.report import spread, table
from bench.rig import say
from bench.servers import clean_environment

_SIZES = {"98 MB": 98_000_000, "1 GB": 1_000_000_000}
_LOOK_S = 0.02
_PIECE_BYTES = 1 << 20


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="bench.pull", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each size (5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="localrun-bench-") as folder:
        rows = list(_measure(Path(folder), arguments.rounds))
    head = ["file", "pull, s", "curl, s", "sha256sum, s", "ratio", "sync, s", "peak RSS, MB"]
    print(table(head, rows))


def _measure(folder: Path, n_rounds: int) -> Iterator[list[str]]:
    blobs = {label: _offer(folder / "files", label, size) for label, size in _SIZES.items()}
    with _nginx(folder) as host, _daemon(folder, host) as (port, process):
        for label, path in blobs.items():
            pulls: list[float] = []
            curls: list[float] = []
            sums: list[float] = []
            syncs: list[float] = []
            peak = 0
            for index in range(n_rounds):
                for is_ours in (index % 2 == 0, index % 2 == 1):
                    os.sync()
                    if is_ours:
                        took_s, rss = _pull(port, process, f"{host}/bench/{_tag(label)}")
                        pulls.append(took_s)
                        peak = max(peak, rss)
                    else:
                        url = f"http://{host}/{path.relative_to(folder / 'files')}"
                        for kept, took_s in zip(
                            (curls, sums, syncs), _curl(url, folder / "copy"), strict=True
                        ):
                            kept.append(took_s)
                say(f"  {label}: pull {pulls[-1]:.2f} s, curl {curls[-1]:.2f} + {sums[-1]:.2f} s")
            ratios = [p / (c + s) for p, c, s in zip(pulls, curls, sums, strict=True)]
            yield [
                label,
                spread(pulls, 2),
                spread(curls, 2),
                spread(sums, 2),
                f"{statistics.median(ratios):.2f}",
                spread(syncs, 2),
                f"{peak / 1e6:.0f}",
            ]


def _tag(label: str) -> str:
    return label.replace(" ", "").lower()


def _offer(root: Path, label: str, size: int) -> Path:
    """Makes a GGUF of `size` bytes and its manifest; the blob's path."""
    repository = root / "v2" / "bench" / _tag(label)
    (repository / "blobs").mkdir(parents=True)
    (repository / "manifests").mkdir()
    made = root / "made.gguf"
    writer = gguf.GGUFWriter(made, "bench")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    noise = random.Random(size)
    with made.open("ab") as file:
        while (left := size - file.tell()) > 0:
            file.write(noise.randbytes(min(_PIECE_BYTES, left)))
    with made.open("rb") as file:
        digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    blob = repository / "blobs" / digest
    made.rename(blob)
    config = b"{}"
    config_digest = "sha256:" + hashlib.sha256(config).hexdigest()
    (repository / "blobs" / config_digest).write_bytes(config)
    manifest = {
        "schemaVersion": 2,
        "config": {"mediaType": "x", "digest": config_digest, "size": len(config)},
        "layers": [
            {
                "mediaType": "application/vnd.ollama.image.model",
                "digest": digest,
                "size": size,
            }
        ],
    }
    (repository / "manifests" / "latest").write_text(json.dumps(manifest))
    return blob


@contextmanager
def _nginx(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(
        f"daemon off; master_process off; pid {folder / 'nginx.pid'}; {user}\n"
        "error_log stderr warn; events {}\n"
        f"http {{ access_log off; sendfile on; client_body_temp_path {folder / 'body'};\n"
        f"server {{ listen 127.0.0.1:{port}; root {folder / 'files'}; }} }}\n"
    )
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise SystemExit("nginx is not installed")
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(config)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("nginx does not start") from None
                time.sleep(_LOOK_S)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _daemon(folder: Path, host: str) -> Iterator[tuple[int, psutil.Process]]:
    settings = {
        "LOCALRUN_HOST": "127.0.0.1:0",
        "LOCALRUN_MODELS": str(folder / "models"),
        "LOCALRUN_REGISTRIES": f"http://{host}",
    }
    child = Child([sys.executable, "-m", "cli", "serve"], {**clean_environment(), **settings})
    try:
        yield child.wait_port(), psutil.Process(child.process.pid)
    finally:
        child.stop()


def _pull(port: int, process: psutil.Process, name: str) -> tuple[float, int]:
    """(seconds, peak resident bytes) of a pull; the model is removed again."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(_LOOK_S):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    request(port, "POST", "/api/pull", {"model": name, "stream": False})
    took_s = time.perf_counter() - began
    done.set()
    watcher.join()
    delete = ["curl", "-sf", "-X", "DELETE", "-d", json.dumps({"model": name})]
    subprocess.run([*delete, f"http://127.0.0.1:{port}/api/delete"], check=True)
    return took_s, peak


def _curl(url: str, target: Path) -> tuple[float, float, float]:
    """Seconds of the transfer, of the hash and of the flush."""
    times = [time.perf_counter()]
    for command in (["curl", "-sf", "-o", target, url], ["sha256sum", target], ["sync", target]):
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter())
    target.unlink()
    took = [later - earlier for earlier, later in itertools.pairwise(times)]
    return took[0], took[1], took[2]


if __name__ == "__main__":
    main()
