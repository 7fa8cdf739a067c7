"""One daemon with a real model under the names that clients' own tests use, and the page.

What a client does with calls and thinking is seen with scripted models, since the real one is too
small to call a tool unless it has to.
"""

from collections.abc import Iterator
from pathlib import Path

import ollama
import openai
import pytest
from compatibility import WORKS, Compatibility
from live import Daemon, running, write_fake_model
from tool_models import CALLER, GO_TOOL_TEMPLATE, THINKER

MODEL = "smollm2:135m"
# Names in the clients' own tests. They set no limit, and nobody reads these answers.
_FOREIGN_NAMES = ("gpt-6-astra", "gpt-3.5-turbo-instruct", "llama3.2")
_FOREIGN_EMBEDDER = "text-embedding-3-small"
# Anthropic's, which are asked about tools as well, and those that it warns of.
_CLAUDE_NAMES = (
    *("claude-opus-5-5", "claude-mythos-preview", "claude-opus-4-5", "claude-opus-4-5-20251101"),
    *("claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
)

_FOUND = pytest.StashKey[Compatibility]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "client(name, feature): a row of docs/compatibility.md")
    config.stash[_FOUND] = Compatibility()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.passed:
        for marker in item.iter_markers("client"):
            name, feature = marker.args
            item.config.stash[_FOUND].add(name, feature, WORKS)
    return report


@pytest.fixture(scope="session")
def compatibility(pytestconfig: pytest.Config) -> Compatibility:
    """Where results of programs are noted; tests in Python have the mark `client`."""
    return pytestconfig.stash[_FOUND]


@pytest.fixture(scope="session")
def client_daemon(
    smollm2_path: Path, minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Daemon]:
    """A daemon for the whole session; tests leave its models as they find them."""
    folder = tmp_path_factory.mktemp("clients")
    with running(folder, CONTEXT_LENGTH=2048) as daemon:
        daemon.create(MODEL, smollm2_path)
        for name in _FOREIGN_NAMES:
            body = {"model": name, "from": MODEL, "parameters": {"num_predict": 12}}
            daemon.json("POST", "/api/create", body | {"stream": False})
        for name in _CLAUDE_NAMES:
            # Their tests set a limit of 1024 tokens; without chance the answers are short.
            made = {"template": GO_TOOL_TEMPLATE, "parameters": {"temperature": 0}}
            body = {"model": name, "from": MODEL, "stream": False, **made}
            daemon.json("POST", "/api/create", body)
        modelfile = folder / "Modelfile"
        modelfile.write_text(f"FROM {minilm_folder}\n")
        code, _, error = daemon.cli("create", "minilm", "-f", str(modelfile))
        assert code == 0, error
        daemon.json("POST", "/api/copy", {"source": "minilm", "destination": _FOREIGN_EMBEDDER})
        for name, script in (("caller", CALLER), ("thinker", THINKER)):
            daemon.create(name, write_fake_model(folder / f"{name}.gguf", script))
        yield daemon


@pytest.fixture
def client(client_daemon: Daemon) -> Iterator[ollama.Client]:
    """Ollama's own client of that daemon."""
    client = ollama.Client(host=client_daemon.url)
    yield client
    client._client.close()


@pytest.fixture
def openai_client(client_daemon: Daemon) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of that daemon."""
    with openai.OpenAI(base_url=f"{client_daemon.url}/v1", api_key="unused") as client:
        yield client
