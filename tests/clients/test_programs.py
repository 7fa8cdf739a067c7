"""Clients that are programs of their own here: each runs once and says what worked."""

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from client_envs import has_node, node_folder_with, python_with, source_of
from compatibility import NOT_YET, WORKS, Compatibility
from live import Daemon

_PROGRAMS = Path(__file__).parent / "programs"

# A hang guard for a whole program on a slow machine.
_LIMIT_S = 300

OPENAI = "openai==3.57.0"
ANTHROPIC = "anthropic==2.14.0"

pytestmark = pytest.mark.timeout(900)


def run(command: list[str | Path], daemon: Daemon, folder: Path, **variables: str) -> str:
    """What the program has printed; it knows nothing of this process but where the daemon is."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OLLAMA_HOST": daemon.url,
        "MODEL": "smollm2:135m",
        "EMBEDDER": "minilm",
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


@pytest.mark.skipif(not has_node(), reason="needs node and npm")
def test_openai_for_javascript(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    program = node_folder_with("openai@6.30.1") / "openai_js.mjs"
    program.write_text((_PROGRAMS / "openai_js.mjs").read_text())
    printed = run(["node", program], client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "openai-js 6.30.1", printed)


def test_openai_agents(client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path) -> None:
    python = python_with("openai-agents==0.24.0", OPENAI)
    program = [python, _PROGRAMS / "openai_agents.py"]
    printed = run(program, client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "openai-agents 0.24.0", printed)


def test_llama_index(client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path) -> None:
    python = python_with("llama-index-llms-ollama==0.11.0")
    program = [python, _PROGRAMS / "llama_index_chat.py"]
    printed = run(program, client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "llama-index-llms-ollama 0.11.0", printed)


# Their tests with every parameter also send what is refused here, for good reasons: a token bias
# for no token, a search of the web, a gap to fill (which this model cannot) with the prompt echoed.
_REFUSED = re.compile(
    r"^ +(?:logit_bias|web_search_options|echo|suffix)="
    r"(?:.*,|\{\n(?:.*\n)*? {12}\},)\n",
    re.MULTILINE,
)

# The same for responses: what would need a store or a service of OpenAI's.
_REFUSED_FOR_RESPONSES = re.compile(
    r"^ +(?:background|context_management|conversation|moderation|previous_response_id|prompt)="
    r"(?:.*[^\[{]|[\[{]\n(?:.*\n)*? {12}[\]}],)\n",
    re.MULTILINE,
)
# Some ask for a response without a model and without an input.
_BARE = re.compile(r"create\((?:\n +stream=True,\n +)?\)")
_MODEL_AND_INPUT = 'model="gpt-6-astra", input="string", max_output_tokens=16'


def own_tests_of_openai(folder: Path) -> Path:
    """The folder with the client's own tests, less the parameters that are refused."""
    source = source_of(OPENAI)
    shutil.copy(source / "pyproject.toml", folder)  # it says how its tests are run
    tests = shutil.copytree(source / "tests", folder / "tests")
    for path in (_CHATS, _COMPLETIONS):
        text, n_found = _REFUSED.subn("", (tests / path).read_text())
        assert n_found >= 8
        (tests / path).write_text(text)
    text, n_found = _REFUSED_FOR_RESPONSES.subn("", (tests / _RESPONSES).read_text())
    assert n_found >= 4 * 6
    text, n_found = _BARE.subn(_completed, text)
    assert n_found == 4 * 3
    (tests / _RESPONSES).write_text(text)
    # In its strict mode the client does not know the base64 again that it asks for by itself.
    embeddings = tests / "api_resources" / "test_embeddings.py"
    embeddings.write_text(_ENDS_WITH_MODEL.sub(_with_floats, embeddings.read_text()))
    return tests


_ENDS_WITH_MODEL = re.compile(r'( +model="text-embedding-3-small",\n)( +\))')


def _with_floats(end: re.Match[str]) -> str:
    return f'{end[1]}encoding_format="float"\n{end[2]}'


def _completed(call: re.Match[str]) -> str:
    stream = ", stream=True" if "stream" in call[0] else ""
    return f"create({_MODEL_AND_INPUT}{stream})"


_CHATS = Path("api_resources", "chat", "test_completions.py")
_COMPLETIONS = Path("api_resources", "test_completions.py")
_RESPONSES = Path("api_resources", "test_responses.py")
_OTHERS = [Path("api_resources", f"test_{name}.py") for name in ("embeddings", "models")]


_TEST_TOOLS = (
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "respx==0.23.1",
    "inline-snapshot==0.36.1",
    "dirty-equals==0.11",
    "nest-asyncio==1.6.0",
    "time-machine==3.6.0",
)


def run_own_tests(python: Path, tests: Path, paths: list[Path], chosen: str, url: str) -> int:
    """Runs a client's own tests against a server; returns how many there were, all of them good."""
    folder = tests.parent
    report = folder / "report.xml"
    # Their own options ask for more plugins.
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    subprocess.run(
        [*command, "-k", chosen, f"--junitxml={report}", *(tests / path for path in paths)],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEST_API_BASE_URL": url,
        },
        timeout=_LIMIT_S,
        capture_output=True,
        check=False,  # what failed is read from the report
    )
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = [case.get("name", "") for case in cases if case.find("failure") is not None]
    broken = [case.get("name", "") for case in cases if case.find("error") is not None]
    assert (broken, failed) == ([], [])
    return len(cases)


def test_the_own_tests_of_openais_own_client(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    tests = own_tests_of_openai(tmp_path)
    paths = [_CHATS, _COMPLETIONS, _RESPONSES, *_OTHERS]
    # Another HTTP library would only send the same bytes, completions and responses are not
    # stored, and models are deleted by Ollama's route.
    chosen = "(create or Models) and not aiohttp and not delete"
    python = python_with(OPENAI, *_TEST_TOOLS)
    n_cases = run_own_tests(python, tests, paths, chosen, f"{client_daemon.url}/v1")
    assert n_cases > 100
    client = OPENAI.replace("==", " ")
    compatibility.notes.append(
        f"{client}'s own tests of chats, completions, responses, embeddings and models pass, all "
        f"{n_cases} that keep nothing on the server; those that send every parameter do so without "
        "what is refused here: `logit_bias` for a word, `web_search_options`, and for a model "
        "without fill-in-the-middle `suffix` with `echo`; of responses `background`, "
        "`context_management`, `conversation`, `moderation`, `previous_response_id` and `prompt`. "
        "Those that ask for a response without a model and an input send both; all ask for vectors "
        "as numbers."
    )


# ---- Anthropic's

_ANTHROPIC_PYTHON = (ANTHROPIC, *_TEST_TOOLS, "http-snapshot==0.1.9")


def test_anthropics_own_client(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    program = [python_with(*_ANTHROPIC_PYTHON), _PROGRAMS / "anthropic_messages.py"]
    printed = run(program, client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, ANTHROPIC.replace("==", " "), printed)


def test_anthropics_own_client_at_a_busy_server_with_a_key(
    start_daemon: Callable[..., Daemon],
    fake_model: Callable[..., Path],
    compatibility: Compatibility,
    tmp_path: Path,
) -> None:
    store = {"MODELS": tmp_path / "models"}
    maker = start_daemon(**store)
    maker.create("m", fake_model(pieces=["la "], endless=True, step_s=0.01))
    maker.kill()
    daemon = start_daemon(NUM_PARALLEL=1, MAX_QUEUE=1, API_KEY="sk-right", **store)
    program = [python_with(*_ANTHROPIC_PYTHON), _PROGRAMS / "anthropic_busy.py"]
    printed = run(program, daemon, tmp_path, MODEL="m", KEY="sk-right")
    note(compatibility, ANTHROPIC.replace("==", " "), printed)


@pytest.mark.skipif(not has_node(), reason="needs node and npm")
def test_anthropics_own_client_for_javascript(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    program = node_folder_with("@anthropic-ai/sdk@1.14.0") / "anthropic_js.mjs"
    program.write_text((_PROGRAMS / "anthropic_js.mjs").read_text())
    printed = run(["node", program], client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "anthropic-js 1.14.0", printed)


# What their tests with every parameter of the beta routes send, and what is refused here: to
# remember a conversation, to ask other servers for tools, to shorten a conversation.
_REFUSED_BETA = re.compile(
    r"^ +(?:thread|mcp_servers|compaction)=(?:.*,|[\[{]\n(?:.*\n)*? {12}[\]}],)\n", re.MULTILINE
)
# An example is no schema; what is one is held to.
_EXAMPLE = '"schema": {"foo": "bar"}'
_SCHEMA = '"schema": {"properties": {"foo": {"type": "boolean"}}, "required": ["foo"]}'
_STRICT_EXAMPLE = re.compile(r'"(location|unit)": "bar"')


def test_the_own_tests_of_anthropics_own_client(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    source = source_of(ANTHROPIC)
    shutil.copy(source / "pyproject.toml", tmp_path)
    tests = shutil.copytree(source / "tests", tmp_path / "tests")
    paths = [Path("api_resources", *more, "test_messages.py") for more in ((), ("beta",))]
    for path in paths:
        text = (tests / path).read_text()
        assert text.count(_EXAMPLE) >= 6
        text, n_found = _REFUSED_BETA.subn("", text.replace(_EXAMPLE, _SCHEMA))
        assert n_found >= 10 or path == paths[0]
        text = _STRICT_EXAMPLE.sub(r'"\1": {"type": "string"}', text)
        (tests / path).write_text(text)
    python = python_with(*_ANTHROPIC_PYTHON)
    n_cases = run_own_tests(python, tests, paths, "not aiohttp", client_daemon.url)
    assert n_cases > 80
    client = ANTHROPIC.replace("==", " ")
    compatibility.notes.append(
        f"{client}'s own tests of messages and of their tokens, also in the beta form, pass, all "
        f'{n_cases}; where they send `{{"foo": "bar"}}` as a JSON Schema, or `"bar"` as one of a '
        "strict tool, which is refused here, they send one, and those that send every "
        "parameter do so without `thread`, `mcp_servers` and `compaction`."
    )


def test_litellm_in_three_dialects(
    client_daemon: Daemon, compatibility: Compatibility, tmp_path: Path
) -> None:
    program = [python_with("litellm==1.110.2"), _PROGRAMS / "litellm_providers.py"]
    printed = run(program, client_daemon, tmp_path, **_CALLER_AND_THINKER)
    note(compatibility, "litellm 1.110.2", printed)
