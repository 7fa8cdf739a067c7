"""The manifest tree as names: walking it, and finding a name whatever its case.

Owns the rule that each of the four parts of a name matches a folder entry without regard to case,
that an exact match is preferred, and that the spelling on disk wins. Decodes no manifest.
Source: Ollama resolves names part by part in the same way.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from modelstore.errors import CorruptManifest, ModelNotFound
from modelstore.manifest import MANIFEST_LIMIT_BYTES
from modelstore.names import PART_NAMES, ModelName, part_problem


def walk_manifests(
    folder: Path, unreadable: list[str] | None = None
) -> Iterator[tuple[ModelName, Path]]:
    """Yields every entry at tag level whose four parts are legal; order is the file system's.

    Folders that cannot be listed are passed over; their paths below `folder` go to `unreadable`.
    """
    yield from _walk(os.fspath(folder), (), [] if unreadable is None else unreadable)


def find_manifest(folder: Path, name: ModelName) -> ModelName | None:
    """The name as it is spelled on disk, or None when no manifest matches it."""
    parts = next(_matches(os.fspath(folder), name.parts, ()), None)
    return ModelName(*parts) if parts else None


def spelling_for_write(folder: Path, name: ModelName) -> ModelName:
    """The name under which a manifest should be written.

    An existing manifest is replaced whatever its case; else existing folders are joined.
    """
    found = find_manifest(folder, name)
    if found is not None:
        return found
    parts: list[str] = []
    for part in name.parts:
        parts.append(next(_spellings(os.path.join(folder, *parts), part), part))
    return ModelName(*parts)


def remove_empty_folders(folder: Path, top: Path) -> None:
    """Removes `folder` and its parents below `top` as long as they are empty."""
    while folder != top and top in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def read_manifest(name: ModelName, path: Path) -> bytes:
    """The bytes of a manifest, within bounds. Raises: ModelNotFound, CorruptManifest."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CorruptManifest(name.display(), "it is not a regular file")
            data = file.read(MANIFEST_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise ModelNotFound(name.display()) from None
    except OSError as error:
        raise CorruptManifest(name.display(), error.strerror or "it cannot be read") from error
    if len(data) > MANIFEST_LIMIT_BYTES:
        raise CorruptManifest(name.display(), f"it exceeds {MANIFEST_LIMIT_BYTES >> 20} MiB")
    return data


def remove_folder(path: Path, name: ModelName) -> None:
    """Removes an empty folder that took a manifest's place. Raises: CorruptManifest."""
    try:
        path.rmdir()
    except OSError as error:
        raise CorruptManifest(name.display(), "a folder with files is in its place") from error


def _walk(
    folder: str, above: tuple[str, ...], unreadable: list[str]
) -> Iterator[tuple[ModelName, Path]]:
    part_name = PART_NAMES[len(above)]
    try:
        entries = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        unreadable.append("/".join(above))
        return
    for entry in entries:
        if part_problem(part_name, entry, host=above[0] if above else "") is not None:
            continue
        parts = (*above, entry)
        path = os.path.join(folder, entry)
        if len(parts) == len(PART_NAMES):
            yield ModelName(*parts), Path(path)
        else:
            yield from _walk(path, parts, unreadable)


def _matches(
    folder: str, wanted: tuple[str, ...], above: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    if not wanted:
        yield above
        return
    for entry in _spellings(folder, wanted[0]):
        yield from _matches(os.path.join(folder, entry), wanted[1:], (*above, entry))


def _spellings(folder: str, part: str) -> Iterator[str]:
    """Entries that equal `part` but for case: the exact one first, the others sorted."""
    entries = _entries(folder)
    if part in entries:
        yield part
    lowered = part.lower()
    yield from sorted(entry for entry in entries if entry != part and entry.lower() == lowered)


def _entries(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
