"""Who may import whom: the two tables below are the rules, and every module is held to them."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("localrun", "modelstore", "cli")

# room → what it may import of this project; a name allows everything below it as well. The bare
# package `localrun` holds the version and is open to all but the store. A room is a module or
# package directly below `localrun`, the module `cli.commands.serve`, or else a package.
ROOMS: dict[str, tuple[str, ...]] = {
    "localrun": (),
    "localrun.core": (),
    "localrun.spec": ("localrun.memory",),
    "localrun.units": (),
    "localrun.loopback": (),
    "localrun.memory": (),
    "localrun.cgroups": (),
    "localrun.processors": (),
    "localrun.errors": (),
    "localrun.schemas": ("localrun.errors", "localrun.schemas"),
    "localrun.metrics": ("localrun.spec",),
    "localrun.options": ("localrun.core", "localrun.spec", "localrun.errors"),
    "localrun.setting_texts": ("localrun.units",),
    "localrun.settings": ("localrun.spec", "localrun.setting_texts", "localrun.units"),
    "localrun.ipc": (
        "localrun.core",
        "localrun.spec",
        "localrun.errors",
        "localrun.memory",
        "localrun.ipc",
    ),
    "localrun.runner": (
        "localrun.core",
        "localrun.spec",
        "localrun.errors",
        "localrun.memory",
        "localrun.metrics",
        "localrun.ipc",
        "localrun.schemas",
        "localrun.cgroups",
        "localrun.processors",
        "localrun.placement.layers",
        "localrun.runner",
    ),
    "localrun.placement": (
        "localrun.spec",
        "localrun.errors",
        "localrun.memory",
        "localrun.cgroups",
        "localrun.processors",
        "localrun.placement",
    ),
    "localrun.residency": (
        "localrun.spec",
        "localrun.errors",
        "localrun.memory",
        "localrun.units",
        "localrun.residency",
    ),
    "localrun.supervisor": (
        "localrun.core",
        "localrun.spec",
        "localrun.errors",
        "localrun.memory",
        "localrun.ipc",
        "localrun.processors",
        "localrun.supervisor",
    ),
    "localrun.wire": (
        "localrun.core",
        "localrun.errors",
        "localrun.schemas",
        "localrun.options",
        "localrun.units",
        "localrun.wire",
    ),
    "localrun.vectors": ("localrun.core",),
    "localrun.preparing": (
        "localrun.core",
        "localrun.errors",
        "localrun.spec",
        "localrun.memory",
        "localrun.options",
        "localrun.placement",
        "modelstore",
    ),
    "localrun.answering": (
        "localrun.core",
        "localrun.errors",
        "localrun.ipc.messages",
        "localrun.preparing",
        "localrun.residency",
        "localrun.supervisor",
    ),
    "localrun.service": (
        "localrun.answering",
        "localrun.preparing",
        "localrun.vectors",
        "localrun.core",
        "localrun.errors",
        "localrun.spec",
        "localrun.memory",
        "localrun.placement",
        "localrun.residency",
        "localrun.supervisor",
        "modelstore",
    ),
    "localrun.diagnosis": (
        "localrun.memory",
        "localrun.settings",
        "localrun.ipc.messages",
        "localrun.placement",
        "localrun.supervisor",
    ),
    "localrun.http": (
        "localrun.core",
        "localrun.spec",
        "localrun.diagnosis",
        "localrun.processors",
        "localrun.errors",
        "localrun.memory",
        "localrun.loopback",
        "localrun.metrics",
        "localrun.options",
        "localrun.settings",
        "localrun.units",
        "localrun.wire",
        "localrun.service",
        "localrun.http",
        "modelstore",
    ),
    "localrun.app": (
        "localrun.preparing",
        "localrun.diagnosis",
        "localrun.errors",
        "localrun.memory",
        "localrun.loopback",
        "localrun.settings",
        "localrun.spec",
        "localrun.units",
        "localrun.placement",
        "localrun.processors",
        "localrun.residency",
        "localrun.supervisor",
        "localrun.server",
        "localrun.service",
        "localrun.http",
        "modelstore",
    ),
    "localrun.server": ("localrun.loopback", "localrun.settings"),
    "modelstore": ("modelstore",),
    "modelstore.registry": ("modelstore",),
    "modelstore.transfer": ("modelstore",),
    "cli": (
        "cli",
        "localrun.spec",
        "localrun.errors",
        "localrun.loopback",
        "localrun.options",
        "localrun.settings",
        "localrun.units",
        "localrun.wire.native",
        "localrun.wire.streams",
        "modelstore.names",
        "modelstore.pull_names",
        "modelstore.digest",
        "modelstore.labels",
        "modelstore.modelfile",
        "modelstore.picking",
        "modelstore.errors",
    ),
}
ROOMS["cli.bench"] = (
    "cli.bench",
    "cli.client",
    "cli.errors",
    "cli.replies",
    "localrun.loopback",
    "localrun.units",
    "modelstore.names",
)
ROOMS["cli.commands"] = ROOMS["cli"]
ROOMS["cli.commands.serve"] = (*ROOMS["cli"], "localrun.app", "localrun.server")
# Without a daemon it looks at the machine itself, inside its function.
ROOMS["cli.commands.doctor"] = (*ROOMS["cli"], "localrun.diagnosis", "localrun.supervisor.devices")

# library → the modules or packages that may import it; one that is not listed is a new dependency.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "msgspec": ("localrun", "modelstore", "cli"),
    "llama_cpp": ("localrun.runner.llama", "localrun.runner.ggml", "localrun.runner.quantize"),
    "numpy": (
        "localrun.runner.llama",
        "localrun.runner.ggml.batch",
        "localrun.runner.ggml.candidates",
        "localrun.runner.ggml.logits",
        "localrun.runner.ggml.matching",
        "localrun.runner.convert",
    ),
    "gguf": ("localrun.runner.fake_script", "localrun.runner.convert"),
    "jinja2": ("localrun.runner.prompt.templates",),
    "llguidance": ("localrun.runner.structured",),
    "gotpl": ("localrun.runner.prompt.go_template",),
    "psutil": ("localrun.runner.measure", "localrun.placement.machine", "cli.commands.serve"),
    "starlette": ("localrun.http",),
    "uvicorn": ("localrun.server",),
    "platformdirs": ("localrun.settings", "cli.autostart"),
    "filelock": ("modelstore.locks", "modelstore.transfer.partial", "cli.autostart"),
    "httpx": ("modelstore.registry",),
    "httpcore": ("modelstore.registry.connection",),
    "typer": ("cli",),
    "rich": ("cli.bench.progress",),
}


def name_of(path: Path) -> str:
    """`localrun.http.guard` for the file of that module, `localrun.http` for its package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))}


def room_of(module: str) -> str:
    """The row of ROOMS that `module` belongs to, whether there is such a row or not."""
    if module in ROOMS:
        return module
    parts = module.split(".")
    if parts[0] == "localrun":
        return ".".join(parts[:2])
    return ".".join(parts[:-1])


def is_below(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


def imported(source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; a relative one begins with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield node.lineno, full if full in MODULES else module


def violations(module: str, source: str) -> list[str]:
    """What `module`, with this source, imports against the tables."""
    room = room_of(module)
    if room not in ROOMS:
        return [f"{module}: the room {room} has no row in ROOMS"]
    found = []
    for line, name in imported(source):
        top = name.partition(".")[0]
        if name.startswith("."):
            problem = "is a relative import"
        elif top in PACKAGES:
            is_version = name == "localrun" and room != "modelstore"
            problem = "" if is_version or is_below(name, ROOMS[room]) else "is not in its row"
        elif top in sys.stdlib_module_names:
            problem = ""
        elif top not in LIBRARIES:
            problem = "is a library that LIBRARIES does not know"
        else:
            problem = "" if is_below(module, LIBRARIES[top]) else "is not this module's to import"
        if problem:
            found.append(f"{module}:{line}: {name} {problem}")
    return found


def test_every_module_keeps_to_the_directions_of_imports() -> None:
    assert len(MODULES) > 80
    found = [v for name, path in MODULES.items() for v in violations(name, path.read_text())]
    assert not found, "\n".join(found)


def test_every_row_names_a_module_or_package_that_exists() -> None:
    named = {name for row in (*ROOMS.values(), *LIBRARIES.values()) for name in row} | set(ROOMS)
    assert named <= set(MODULES)


def test_package_inits_import_nothing() -> None:
    inits = [path for path in MODULES.values() if path.name == "__init__.py"]
    assert [path for path in inits if list(imported(path.read_text()))] == []


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("localrun.core", "from localrun.errors import BadRequest", "not in its row"),
        ("localrun.runner.text", "import localrun.settings", "not in its row"),
        ("localrun.residency.owner", "from localrun.supervisor import client", "not in its row"),
        ("localrun.wire.native", "def f():\n    import localrun.http.guard", "not in its row"),
        ("modelstore.store", "from localrun import __version__", "not in its row"),
        ("cli.main", "from localrun.app import serve", "not in its row"),
        ("cli.commands.run", "from modelstore.store import Store", "not in its row"),
        ("cli.client", "from localrun.wire import openai", "not in its row"),
        ("localrun.service", "import starlette.requests", "not this module's"),
        ("localrun.runner.engine.engine", "import llama_cpp", "not this module's"),
        ("localrun.app", "import requests", "LIBRARIES does not know"),
        ("localrun.http.guard", "from . import errors", "relative"),
        ("localrun.newroom.thing", "import os", "no row in ROOMS"),
        ("modelstore.newroom.thing", "import os", "no row in ROOMS"),
        ("cli.newroom.thing", "import os", "no row in ROOMS"),
        ("cli.commands.doctor", "from localrun.runner import llama", "not in its row"),
        ("cli.bench.load", "from cli.context import Context", "not in its row"),
        ("cli.bench.report", "import rich.table", "not this module's"),
    ],
)
def test_a_violation_is_found(module: str, source: str, problem: str) -> None:
    assert problem in violations(module, source)[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("cli.commands.serve", "from localrun.app import serve"),
        ("cli.commands.version", "from localrun import __version__"),
        ("localrun.http.errors", "from localrun import errors"),
        ("localrun.runner.llama", "import llama_cpp.llama_cpp as lib\nimport ctypes"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(module, source) == []
