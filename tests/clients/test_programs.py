"""Clients that are programs of their own here: each runs once and says what worked."""

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from client_envs import has_node, node_folder_with, python_with, source_of
from compatibility import NOT_YET, WORKS, Compatibility
from live import Daemon

_PROGRAMS = Path(__file__).parent / "programs"

# A hang guard for a whole program on a slow machine.
_LIMIT_S = 300

OPENAI = "openai==3.57.0"

pytestmark = pytest.mark.timeout(900)


def run(command: list[str | Path], daemon: Daemon, folder: Path, **variables: str) -> str:
    """What the program has printed; it knows nothing of this process but where the daemon is."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OLLAMA_HOST": daemon.url,
        "MODEL": "smollm2:135m",
        **variables,
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, timeout=_LIMIT_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


_CALLER_AND_THINKER = {"CALLER": "caller", "THINKER": "thinker"}


def note(compatibility: Compatibility, client: str, printed: str) -> None:
    """Notes the lines `{"feature": …, "outcome": …}` of a program."""
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"feature"')]
    assert lines, printed
    assert {line["outcome"] for line in lines} <= {WORKS, NOT_YET}, printed
    for line in lines:
        compatibility.add(client, line["feature"], line["outcome"])


def test_langchain_ollama(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    python = python_with("langchain-ollama==1.1.0")
    program = [python, _PROGRAMS / "langchain_chat.py"]
    printed = run(program, client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "langchain-ollama 1.1.0", printed)


def test_pydantic_ai(client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path) -> None:
    python = python_with("pydantic-ai-slim[openai]==2.68.0")
    program = [python, _PROGRAMS / "pydantic_agent.py"]
    printed = run(program, client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "pydantic-ai 2.68.0", printed)


def test_llm_with_its_plugin_for_ollama(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    python = python_with("llm==0.36", "llm-ollama==0.19.1")
    printed = run([python, _PROGRAMS / "llm_commands.py"], client_daemon, tmp_path)
    note(compatibility, "llm-ollama 0.19.1", printed)


@pytest.mark.skipif(not has_node(), reason="needs node and npm")
def test_ollama_for_javascript(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    # Beside its packages, since that is where Node looks for them.
    program = node_folder_with("ollama@0.6.4") / "ollama_js.mjs"
    program.write_text((_PROGRAMS / "ollama_js.mjs").read_text())
    printed = run(["node", program], client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "ollama-js 0.6.4", printed)


# Their tests with every parameter also send what is refused here, for good reasons: a token bias
# for no token, a search of the web, a gap to fill (which this model cannot) with the prompt echoed.
_REFUSED = re.compile(
    r"^ +(?:logit_bias|web_search_options|echo|suffix)="
    r"(?:.*,|\{\n(?:.*\n)*? {12}\},)\n",
    re.MULTILINE,
)


def own_tests_of_openai(folder: Path) -> Path:
    """The folder with the client's own tests, less the parameters that are refused."""
    source = source_of(OPENAI)
    shutil.copy(source / "pyproject.toml", folder)  # it says how its tests are run
    tests = shutil.copytree(source / "tests", folder / "tests")
    for path in (_CHATS, _COMPLETIONS):
        text, n_found = _REFUSED.subn("", (tests / path).read_text())
        assert n_found >= 8
        (tests / path).write_text(text)
    return tests


_CHATS = Path("api_resources", "chat", "test_completions.py")
_COMPLETIONS = Path("api_resources", "test_completions.py")


def test_the_own_tests_of_openais_own_client(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    python = python_with(
        OPENAI,
        "pytest==9.2.0",
        "pytest-asyncio==1.5.0",
        "respx==0.23.1",
        "inline-snapshot==0.36.1",
        "dirty-equals==0.11",
        "nest-asyncio==1.6.0",
        "time-machine==3.6.0",
    )
    tests = own_tests_of_openai(tmp_path)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Its own options ask for more plugins. Another HTTP library would only send the same bytes,
    # stored completions belong to an account, and models are deleted by Ollama's route.
    options = ["-o", "addopts=", "-k", "(create or Models) and not aiohttp and not delete"]
    report = tmp_path / "report.xml"
    subprocess.run(
        [
            *command,
            *options,
            f"--junitxml={report}",
            tests / _CHATS,
            tests / _COMPLETIONS,
            tests / "api_resources" / "test_models.py",
        ],
        cwd=tests.parent,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEST_API_BASE_URL": f"{client_daemon.url}/v1",
        },
        timeout=_LIMIT_S,
        capture_output=True,
        check=False,  # what failed is read from the report
    )
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = [case.get("name", "") for case in cases if case.find("failure") is not None]
    broken = [case.get("name", "") for case in cases if case.find("error") is not None]
    assert len(cases) > 40
    assert (broken, failed) == ([], [])
    client = OPENAI.replace("==", " ")
    compatibility.notes.append(
        f"{client}'s own tests of chats, completions and models pass, all {len(cases)}; those that "
        "send every parameter do so without what is refused here: `logit_bias` for a word, "
        "`web_search_options`, and for a model without fill-in-the-middle `suffix` with `echo`."
    )
