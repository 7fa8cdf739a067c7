"""Where the clients live that are tested against us: kept in a cache folder, by their versions.

They are no dependencies of this project: each Python client has a virtual environment of its own,
so that what it needs never meets what we need.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import filelock
import platformdirs

# Read at once: a test gets a cache folder of its own.
_CACHE = Path(platformdirs.user_cache_dir("localrun", appauthor=False))
_FOLDER = Path(os.environ.get("LOCALRUN_TEST_CLIENTS", _CACHE / "test-clients"))

# An installation that hangs is a hang; one that is slow, on a slow machine, is not.
_INSTALL_S = 600


def python_with(*requirements: str) -> Path:
    """The interpreter of an environment that has exactly these and what they need."""

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=_INSTALL_S)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        command = [*pip, "--disable-pip-version-check", *requirements]
        subprocess.run(command, check=True, timeout=_INSTALL_S)

    return _made_once("venv", (sys.version, *requirements), make) / "bin" / "python"


def source_of(requirement: str) -> Path:
    """The unpacked source distribution of `name==version`, with the tests in it."""

    def make(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command = [*pip, "--no-binary", ":all:", "--dest", str(folder), requirement]
        subprocess.run(command, check=True, timeout=_INSTALL_S)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        archive.unlink()

    return next(_made_once("sdist", (requirement,), make).glob("*/pyproject.toml")).parent


def node_folder_with(*packages: str) -> Path:
    """A folder in which Node finds these npm packages, of `name@version`."""

    def make(folder: Path) -> None:
        folder.mkdir()
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", *packages]
        subprocess.run(npm, cwd=folder, check=True, timeout=_INSTALL_S)

    return _made_once("node", packages, make)


def has_node() -> bool:
    """Whether programs for Node can be installed and run here."""
    return bool(shutil.which("node") and shutil.which("npm"))


def _made_once(kind: str, parts: tuple[str, ...], make: Callable[[Path], None]) -> Path:
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    folder = _FOLDER / f"{kind}-{key}"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        is_ready = folder / ".ready"
        if not is_ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            is_ready.touch()
    return folder
