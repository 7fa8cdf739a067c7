"""Files that stand for what the kernel tells of control groups."""

from pathlib import Path


def pretend(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """(`/proc`, `/sys/fs/cgroup`) where `self/cgroup` says `own` and these files are there."""
    proc, root = folder / "proc", folder / "cgroup"
    for path, text in {
        "proc/self/cgroup": own,
        **{f"cgroup/{k}": v for k, v in files.items()},
    }.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return proc, root
