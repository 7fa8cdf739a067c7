"""What self-tests found, kept between loads: a small JSON file in the user's cache folder.

A verdict holds for one model as this build of llama.cpp runs it on this CPU with so many threads;
another of these means another self-test. The file is a cache: one that cannot be read counts as
empty, and one that cannot be written costs a self-test after the next start.
"""

import contextlib
import logging
import os
import tempfile
import threading
from importlib import metadata
from pathlib import Path

import msgspec

from localrun.placement.machine import cpu_model
from localrun.spec import LoadSpec, Verdict

_log = logging.getLogger(__name__)

# An entry is some 150 bytes; whoever has more models than this tests the oldest ones again.
_N_KEPT = 500

_decode = msgspec.json.Decoder(dict[str, Verdict]).decode


class Verdicts:
    """The verdicts in the file at `path`. Safe to share between threads.

    Several daemons may share the file: each writes what it knows over what it finds there.
    """

    def __init__(self, path: Path, *, build: str | None = None, cpu: str | None = None) -> None:
        self._path = path
        self._machine = f"{build or _build()} {cpu or cpu_model()}"
        self._lock = threading.Lock()
        self._known = _read(path)

    def find(self, spec: LoadSpec) -> Verdict | None:
        """What an earlier self-test of such a load found; None without one."""
        return self._known.get(self._key(spec))

    def keep(self, spec: LoadSpec, verdict: Verdict) -> None:
        """Remembers the verdict and writes the file. A file that cannot be written is logged."""
        key = self._key(spec)
        with self._lock:
            known = self._known | _read(self._path)
            known.pop(key, None)  # the newest stands last
            known[key] = verdict
            self._known = dict(list(known.items())[-_N_KEPT:])
            try:
                _write(self._path, msgspec.json.encode(self._known))
            except OSError as error:
                _log.warning("%s is not written: %s", self._path, error.strerror)

    def _key(self, spec: LoadSpec) -> str:
        return f"{spec.weights_digest} {spec.kv_cache_type} x{spec.n_threads} {self._machine}"


def _build() -> str:
    # Not from llama_cpp itself: importing it would load llama.cpp into the daemon.
    try:
        return metadata.version("llama_cpp_python")
    except metadata.PackageNotFoundError:
        return "unknown"


def _read(path: Path) -> dict[str, Verdict]:
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return {}


def _write(path: Path, data: bytes) -> None:
    """Puts the whole of `data` in the place of the file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(scratch, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
