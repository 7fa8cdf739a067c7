"""What a run shows and writes: each level as soon as it is over, the rest at its end.

A pipe or a file has every line at once: whoever waits sees how far a run is, and one that is killed
has said what it knew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.bench.machine import this_machine
from cli.bench.plot import svg
from cli.bench.report import Result, Table, as_json, heading, notes, series
from cli.bench.slo import sentence
from cli.bench.sweep import Bench, Target
from cli.errors import Failed


@dataclass
class Output:
    """`say` writes a line for people. `names` are those of all targets, if they are known before.

    `targets` grows while the run goes on.
    """

    bench: Bench
    version: str
    say: Callable[[str], None]
    names: Sequence[str] = ()
    targets: list[Target] = field(default_factory=list)
    is_interrupted: bool = False
    _table: Table | None = None
    _n_shown: int = 0

    @property
    def result(self) -> Result:
        """The run as far as it is."""
        return Result(
            plan=self.bench.plan,
            machine=this_machine(),
            version=self.version,
            targets=self.targets,
            measured=self.bench.measured,
            verdicts=self.bench.verdicts,
            is_interrupted=self.is_interrupted,
        )

    def show_levels(self) -> None:
        """Writes the levels that are new. Raises: what `say` raises."""
        lines = []
        if self._table is None:
            names = self.names or [target.name for target in self.targets]
            self._table = Table(self.bench.plan, names)
            lines += [heading(self.result), "", self._table.head]
        fresh = self.bench.measured[self._n_shown :]
        # Before the writing: where that fails, nothing is written twice.
        self._n_shown += len(fresh)
        lines += [self._table.row(measured) for measured in fresh]
        if lines:
            self.say("\n".join(lines))

    def finish(self) -> None:
        """Writes what remains: the level that was cut short, ratios, failures, verdicts."""
        self.show_levels()
        if text := notes(self.result).rstrip("\n"):
            self.say(text)
        plan = self.bench.plan
        for target in self.targets:
            if plan.slo is not None and target.name in self.bench.verdicts:
                verdict = self.bench.verdicts[target.name]
                self.say("\n" + sentence(verdict, target.who, target.model, plan.slo))

    def json(self) -> bytes:
        """Everything, for programs."""
        return as_json(self.result)

    def plot(self) -> bytes:
        """The plot of the time to first token, as SVG."""
        x_label = "arrivals per second" if self.bench.plan.has_rates else "users at once"
        title = heading(self.result).partition("\n")[0]
        return svg(series(self.result), title=title, x_label=x_label).encode()


def write(path: Path, data: bytes) -> None:
    """Raises: Failed."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Failed(f"cannot write `{path}`: {error.strerror or error}") from error
