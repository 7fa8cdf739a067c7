"""How far a run is, on standard error of a terminal; nowhere else. The one importer of rich."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.bench.plan import Level
from cli.bench.sweep import Notify

# Drawing takes time from the server that is being measured.
_PER_SECOND = 2


@contextmanager
def shown(stream: TextIO) -> Iterator[Notify]:
    """What a run reports its progress to; the bar is gone at the end."""
    if not stream.isatty():
        yield lambda target, level, done, total: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(
        *columns, console=Console(file=stream), transient=True, refresh_per_second=_PER_SECOND
    )
    task = bar.add_task("warming up", total=None)

    def notify(target: str, level: Level, done: int, total: int | None) -> None:
        unit = "users" if level.n_users else ""
        text = f"{target}, {level} {unit}".rstrip()
        bar.update(task, description=text, completed=done, total=total)

    with bar:
        yield notify
