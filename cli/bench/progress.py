"""How far a run is, on standard error of a terminal; nowhere else. The one importer of rich."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.bench.plan import Level
from cli.bench.sweep import Notify

# Drawing takes time from the server that is being measured.
_PER_SECOND = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """`notify` is what a run reports its progress to; within `hidden()` no bar is drawn."""

    notify: Notify
    hidden: Callable[[], AbstractContextManager[None]] = nullcontext


@contextmanager
def shown(stream: TextIO) -> Iterator[Bar]:
    """The bar of a run; it is gone at the end."""
    if not stream.isatty():
        yield Bar(lambda target, level, done, total: None)
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

    @contextmanager
    def hidden() -> Iterator[None]:
        bar.stop()
        yield
        bar.start()

    with bar:
        yield Bar(notify, hidden)
