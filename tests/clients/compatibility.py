"""What a run of these tests has shown, as the table of docs/compatibility.md.

Owns the words for features and the layout of the page. A feature that two clients have is one row.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

# How a cell reads: shown to work, refused with clear words because it is not there yet.
WORKS, NOT_YET = "yes", "not yet"

_INTRODUCTION = """\
# Compatibility

Real clients against a running daemon with a real model (SmolLM2-135M), on every run of the tests;
for tools and thinking, with models that play a script. This page is written by that run:
`LOCALRUN_TEST_WRITE=1 python -m pytest tests/clients`. An empty cell means that the client has no
such feature, or that it is not tried. What is "not yet" is refused with a message that says so.
"""


@dataclass
class Compatibility:
    """`cells` by (feature, client); `notes` are a line each, below the table."""

    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, client: str, feature: str, outcome: str) -> None:
        """Notes one result; a failure is nobody's to write down, it fails the run."""
        self.cells[feature, client] = outcome

    def check_or_write(self, path: Path, hint: str) -> None:
        """Fails where the committed page says something else, or writes it if that is asked."""
        if os.environ.get("LOCALRUN_TEST_WRITE") == "1":
            path.write_text(self.page())
        assert path.read_text() == self.page(), hint

    def page(self) -> str:
        """The whole document."""
        clients = list(dict.fromkeys(sorted({client for _, client in self.cells})))
        rows: dict[str, dict[str, str]] = defaultdict(dict)
        for (feature, client), outcome in self.cells.items():
            rows[feature][client] = outcome
        lines = [_row(["feature", *clients]), _row(["---"] * (len(clients) + 1))]
        for feature in sorted(rows, key=lambda name: (-len(rows[name]), name)):
            lines.append(_row([feature, *(rows[feature].get(client, "") for client in clients)]))
        notes = [f"* {note}" for note in sorted(self.notes)]
        return "\n".join([_INTRODUCTION, *lines, "", *notes]).rstrip() + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
