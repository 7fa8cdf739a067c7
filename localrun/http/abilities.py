"""What models can do, remembered over restarts: a small JSON file in the user's cache folder.

To find out takes the header of a GGUF file, with its vocabulary some 20 ms, and lists want it of
every model. An entry holds for one manifest, whose digest names all that counts, and for the rules
of `modelstore.show` and `modelstore.vocabulary`. The file is a cache: one that cannot be read
counts as empty.
"""

import hashlib
import logging
import threading
from pathlib import Path

import msgspec

from modelstore import show, vocabulary
from modelstore.errors import StoreError
from modelstore.files import make_folders, write_atomically, writing

_log = logging.getLogger(__name__)

# An entry is about 100 bytes.
_N_KEPT = 4096


class _File(msgspec.Struct):
    rules: str
    known: dict[str, list[str]]


class Abilities:
    """Capabilities by the digest of a manifest. Safe to share between threads.

    Read when first asked. Several daemons may share the file: the last one to save wins.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, list[str]] | None = None
        self._is_saved = True

    def get(self, digest: str) -> list[str] | None:
        """What was found out; None when nobody has looked."""
        with self._lock:
            return self._load().get(digest)

    def put(self, digest: str, found: list[str]) -> None:
        """Remembers it until the end of the process, and beyond once `save` was called."""
        with self._lock:
            known = self._load()
            known[digest] = found
            while len(known) > _N_KEPT:
                del known[next(iter(known))]
            self._is_saved = False

    def save(self) -> None:
        """Writes the file if there is anything new. One that cannot be written is logged."""
        with self._lock:
            if self._is_saved:
                return
            self._is_saved = True
            data = msgspec.json.encode(_File(_rules(), self._load()))
        try:
            with writing(self._path.parent):
                make_folders(self._path.parent)
                write_atomically(self._path, data)
        except (StoreError, OSError) as error:
            _log.warning("%s is not written: %s", self._path, error)

    def _load(self) -> dict[str, list[str]]:
        if self._known is None:
            self._known = _read(self._path)
        return self._known


def _read(path: Path) -> dict[str, list[str]]:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return {}
    return file.known if file.rules == _rules() else {}


def _rules() -> str:
    # Other rules find other capabilities, and nobody thinks of a number that has to be raised.
    rules = hashlib.sha256()
    for path in (show.__file__, vocabulary.__file__):
        rules.update(Path(path).read_bytes())
    return rules.hexdigest()
