"""The documents say what the code says: settings, exit codes, paths, names, constants, words."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cli import errors as cli_errors
from cli.main import COMMANDS
from localrun.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()

# `path/file.py`, `path/file.py:Class.method`, `folder/`
_REFERENCE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|sh|toml|md)))(?::([\w.]+))?`")
# | `folder/` | what it owns | file, file |
_ROOM = re.compile(r"^\| `((?:\w+/)+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
# | `NAME` | `path/file.py` | `value` | reason |
_CONSTANT = re.compile(r"^\| `([\w.]+)` \| `([\w./]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)


def between(text: str, label: str) -> str:
    """What stands between the two comments of `label`, without blank edges."""
    _, found, rest = text.partition(f"<!-- {label}: begin -->")
    block, ended, _ = rest.partition(f"<!-- {label}: end -->")
    assert found, f"README.md has no block `{label}`"
    assert ended, f"the block `{label}` of README.md has no end"
    return block.strip()


def settings_table() -> str:
    """The README's table of settings."""
    lines = ["| variable | default | meaning | also read |", "|---|---|---|---|"]
    for row in SETTINGS:
        others = [f"`OLLAMA_{row.name}`"] * row.ollama + [f"`{row.name}`"] * row.bare
        default = f"`{row.default}`" if row.default else "none"
        lines.append(f"| `LOCALRUN_{row.name}` | {default} | {row.help} | {', '.join(others)} |")
    return "\n".join(lines)


def exit_codes() -> dict[int, str]:
    """Code → meaning, out of the table in the docstring of `cli.errors`."""
    rows = re.findall(r"(\d+) ([^·\n]+)", cli_errors.__doc__ or "")
    return {int(code): meaning.strip() for code, meaning in rows}


def exit_code_table() -> str:
    """The README's table of exit codes."""
    lines = ["| code | meaning |", "|---|---|"]
    return "\n".join([*lines, *(f"| {code} | {text} |" for code, text in exit_codes().items())])


def test_the_readme_has_every_setting() -> None:
    table = settings_table()
    assert between(README, "settings") == table, f"put this between the comments:\n\n{table}\n"


def test_every_setting_has_a_help_text() -> None:
    for row in SETTINGS:
        assert row.help, row.name
        assert not row.help.endswith("."), row.name
        assert "|" not in row.help + row.default, row.name


def test_the_exit_codes_of_the_docstring_are_those_of_the_code() -> None:
    constants = {
        value
        for name, value in vars(cli_errors).items()
        if name.isupper() and isinstance(value, int)
    }
    assert exit_codes().keys() == constants | {0}
    assert set(cli_errors.exit_codes().values()) <= constants


def test_the_readme_has_every_exit_code() -> None:
    table = exit_code_table()
    assert between(README, "exit codes") == table, f"put this between the comments:\n\n{table}\n"


def test_the_readme_lists_every_command() -> None:
    listed = re.findall(r"^\| `localrun ([a-z]+)", README, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@cache
def names_in(path: str) -> dict[str, str]:
    """Names that a Python file defines, with the source of a constant's value, else nothing."""
    return dict(_defined(ast.parse((ROOT / path).read_text()).body, ""))


def _defined(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        match node:
            case ast.ClassDef(name=name, body=inner):
                yield prefix + name, ""
                yield from _defined(inner, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name, ""
            case ast.Assign(targets=[target], value=value):
                yield from _assigned(target, value, prefix)
            case ast.AnnAssign(target=target, value=annotated):
                yield from _assigned(target, annotated, prefix)


def _assigned(target: ast.expr, value: ast.expr | None, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for item, part in zip(target.elts, value.elts, strict=True):
            yield from _assigned(item, part, prefix)
    elif isinstance(target, ast.Name):
        yield prefix + target.id, ast.unparse(value) if value else ""


def references() -> list[tuple[str, str]]:
    """(path, name) of everything that the architecture points at; the name may be empty."""
    return sorted(set(_REFERENCE.findall(ARCHITECTURE)))


def test_every_path_and_name_in_the_architecture_exists() -> None:
    assert len(references()) > 60
    missing = []
    for path, name in references():
        if not (ROOT / path).exists():
            missing.append(path)
        elif name and name not in names_in(path):
            missing.append(f"{path}:{name}")
    assert not missing, f"docs/architecture.md names what is not there: {missing}"


def test_the_rooms_of_the_architecture_hold_exactly_these_files() -> None:
    rows = _ROOM.findall(ARCHITECTURE)
    listed = {f"{room}{stem.strip(' `')}.py" for room, stems in rows for stem in stems.split(",")}
    files = {
        path.relative_to(ROOT).as_posix()
        for top in ("localrun", "modelstore", "cli")
        for path in (ROOT / top).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert files - listed == set(), "no row under Rooms has these"
    assert listed - files == set(), "these are listed but not there"


def test_every_constant_in_the_architecture_has_the_value_of_the_code() -> None:
    rows = _CONSTANT.findall(ARCHITECTURE)
    assert len(rows) > 15
    for name, path, value, _reason in rows:
        wanted = ast.unparse(ast.parse(value, mode="eval"))
        assert names_in(path).get(name) == wanted, f"{path}:{name} is not {value}"


def entries() -> list[str]:
    """The words that the glossary explains."""
    return re.findall(r"^\*\*([^*]+)\*\*", GLOSSARY, re.MULTILINE)


def test_the_glossary_is_sorted_and_explains_each_word_once() -> None:
    words = entries()
    assert words == sorted(set(words), key=str.lower)


def test_every_entry_says_what_the_word_is_not_called() -> None:
    blocks = re.split(r"\n(?=\*\*)", GLOSSARY.partition("\n**")[2])
    assert [block[:30] for block in blocks if "Not called:" not in block] == []


def test_the_glossary_explains_the_words_that_the_architecture_uses() -> None:
    used = set(re.findall(r"\*\*([^*\n]+)\*\*", ARCHITECTURE))
    assert used
    assert used <= set(entries())


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_relative_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []
