"""What each process has in memory after its imports: a daemon without llama.cpp, a quick CLI."""

import subprocess
import sys

import pytest

DAEMON_ONLY = {"localrun.app", "localrun.http", "starlette", "uvicorn"}
RUNNER_ONLY = {"llama_cpp", "numpy", "jinja2", "gotpl", "gguf", "llguidance"}

# statement → modules that must not be there afterwards
ABSENT: dict[str, set[str]] = {
    "import localrun.app": {*RUNNER_ONLY, "localrun.runner", "cli", "typer", "rich", "httpx"},
    "import modelstore.store, modelstore.create": {*RUNNER_ONLY, *DAEMON_ONLY, "localrun", "cli"},
    "import cli.main": {*RUNNER_ONLY, *DAEMON_ONLY, "httpx", "rich", "typer", "asyncio"},
    "import cli.main; cli.main.parse(['ps'])": {
        *RUNNER_ONLY,
        *DAEMON_ONLY,
        "modelstore",
        "localrun.errors",
        "localrun.spec",
        "httpx",
        "rich",
        "asyncio",
        "pydantic",  # as typer does from 0.29 on
        "filelock",
        "platformdirs",
    },
    "import cli.main; cli.main.parse(['doctor'])": {
        *RUNNER_ONLY,
        *DAEMON_ONLY,
        "localrun.supervisor",
        "asyncio",
    },
    "import cli.main; cli.main.parse(['bench', 'm'])": {
        *RUNNER_ONLY,
        *DAEMON_ONLY,
        "rich",
        "asyncio",
    },
    "import cli.bench.progress, cli.bench.target, cli.bench.report": {*RUNNER_ONLY, *DAEMON_ONLY},
    "import localrun.runner.__main__": {
        *DAEMON_ONLY,
        "llama_cpp",  # only once a model of llama.cpp is loaded
        "numpy",
        "llguidance",  # only once an answer has to have a format
        "httpx",
        "typer",
        "rich",
        "modelstore",
        "localrun.settings",
        "localrun.service",
    },
    "import localrun.runner.__main__, localrun.runner.fake, localrun.runner.llama": {
        *DAEMON_ONLY,
        "llguidance",
        "httpx",
        "typer",
        "rich",
        "modelstore",
        "localrun.settings",
        "localrun.service",
    },
}


def loaded_after(statement: str) -> set[str]:
    """Every module that a fresh interpreter has loaded after `statement`."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ABSENT)
def test_importing_brings_nothing_that_belongs_to_another_process(statement: str) -> None:
    assert loaded_after(statement) & ABSENT[statement] == set()


def test_the_check_sees_what_is_loaded() -> None:
    assert loaded_after("import localrun.app") >= {"starlette", "modelstore.store", "localrun.http"}
