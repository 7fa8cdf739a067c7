"""The short commands against a scripted daemon: what they send, print, and exit with."""

import gc
import json
import subprocess
import sys

import pytest
from cli_stub import Reply, Shell, Stub

from cli.parameters import typed
from localrun import __version__
from localrun.errors import BadRequest

NOT_FOUND = Reply(404, {"error": "model 'm' not found"})
MISSING = (
    "Error: model 'm' not found\n`localrun list` shows the models that are here; "
    "`localrun pull NAME` fetches one, `localrun create NAME --from-file FILE.gguf` adds a file\n"
)


def test_ps(stub: Stub, shell: Shell) -> None:
    stub.on(
        "GET",
        "/api/ps",
        Reply(body={"models": [{"name": "smol:1", "size": 5}, {"name": "other:1"}]}),
    )
    result = shell("ps", "SMOL")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines()] == ["NAME", "smol:1"]


def test_ps_of_a_name_that_is_not_in_memory_says_so(stub: Stub, shell: Shell) -> None:
    stub.on("GET", "/api/ps", Reply(body={"models": [{"name": "smol:1", "size": 5}]}))
    result = shell("ps", "nosuch")
    assert (result.code, result.out.splitlines()[1:]) == (0, [])
    assert result.err == "no model in memory has a name that begins with `nosuch`\n"
    stub.on("GET", "/api/ps", Reply(body={"models": []}))
    assert shell("ps").err == ""


def test_ps_verbose_shows_what_each_device_holds(stub: Stub, shell: Shell) -> None:
    parts = [
        {"name": "CPU", "size": 5000, "weights": 3000, "kv": 1500, "compute": 500},
        {"name": "RPC0", "size": 7000, "weights": 7000},
    ]
    models = [{"name": "m", "size": 12000, "size_vram": 7000, "devices": parts}, {"name": "soon"}]
    stub.on("GET", "/api/ps", Reply(body={"models": models}))
    assert shell("ps", "--verbose").out.partition("\n\n")[2] == (
        "NAME    DEVICE    SIZE    WEIGHTS    KV        COMPUTE\n"
        "m       CPU       5 KB    3 KB       1.5 KB    500 B\n"
        "m       RPC0      7 KB    7 KB       0 B       0 B\n"
    )
    assert "DEVICE" not in shell("ps").out


def test_list(stub: Stub, shell: Shell) -> None:
    models = [{"name": "m:latest", "digest": "ab" * 32, "size": 2000, "modified_at": None}]
    stub.on("GET", "/api/tags", Reply(body={"models": models, "later": True}))
    result = shell("list")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1] == "m:latest    abababababab    2 KB    Never"


def test_refusals_are_shown_in_the_daemons_words(stub: Stub, shell: Shell) -> None:
    for status, code in ((403, 1), (404, 4), (503, 1)):
        stub.on("GET", "/api/tags", Reply(status, {"error": f"words for {status}"}))
        result = shell("list")
        assert (result.code, result.out, result.err) == (code, "", f"Error: words for {status}\n")


def test_stop(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(body={"done": True, "done_reason": "unload"}))
    result = shell("stop", "m")
    assert (result.code, result.out, result.err) == (0, "", "")
    (request,) = stub.asked("/api/generate")
    assert request.json == {"model": "m", "keep_alive": 0, "stream": False}


def test_a_missing_model_is_named_as_it_was_typed(stub: Stub, shell: Shell) -> None:
    completed = Reply(404, {"error": "model 'm:latest' not found"})
    for method, path in (("POST", "generate"), ("POST", "show"), ("DELETE", "delete")):
        stub.on(method, f"/api/{path}", completed)
    for command in ("stop", "show", "rm"):
        result = shell(command, "m", stdin="")
        assert (result.code, result.out, result.err) == (4, "", MISSING), command


def test_rm_stops_first_and_ends_at_the_first_failure(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(body={"done": True}), NOT_FOUND)
    stub.on("DELETE", "/api/delete", Reply(), NOT_FOUND)
    result = shell("rm", "a", "m", "never")
    assert (result.code, result.out, result.err) == (
        4,
        "deleted 'a'\n",
        MISSING,
    )
    sent = [(r.method, r.json["model"]) for r in stub.requests if r.method != "GET"]
    assert sent == [("POST", "a"), ("DELETE", "a"), ("POST", "m"), ("DELETE", "m")]


def test_cp(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/copy", Reply(), NOT_FOUND)
    result = shell("cp", "m", "User/other:1")
    assert (result.code, result.out, result.err) == (0, "copied 'm' to 'User/other:1'\n", "")
    assert stub.asked("/api/copy")[0].json == {"source": "m", "destination": "User/other:1"}
    missing = shell("cp", "m", "n")
    assert (missing.code, missing.out, missing.err) == (4, "", MISSING)


SHOWN = {
    "modelfile": "FROM x\n",
    "system": "be\n\nbrief\nand\nkind",
    "template": "{{ .Prompt }}",
    "parameters": 'stop     "a  \u2028b"\ntop_k    5',
    "license": "",
    "details": {"parameter_size": "135M", "quantization_level": "Q4_1"},
    "model_info": {
        "general.architecture": "llama",
        "llama.context_length": 8192,
        "llama.vocab": None,
    },
    "capabilities": ["completion"],
    "tensors": [{"name": "t", "type": "Q4_1", "shape": [2, 3]}],
}


def test_show(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", Reply(body=SHOWN))
    result = shell("show", "m")
    assert result.out == (
        "  Model\n"
        "    architecture      llama\n"
        "    parameters        135M\n"
        "    context length    8192\n"
        "    quantization      Q4_1\n"
        "\n"
        "  Capabilities\n"
        "    completion\n"
        "\n"
        "  Parameters\n"
        '    stop     "a  \u2028b"\n'
        "    top_k    5\n"
        "\n"
        "  System\n"
        "    be\n"
        "    brief\n"
        "    ...\n"
        "\n"
    )
    verbose = shell("show", "m", "-v")
    assert "    llama.context_length    8192\n" in verbose.out
    assert "    t    Q4_1    [2 3]\n" in verbose.out
    assert [request.json["verbose"] for request in stub.asked("/api/show")] == [False, True]


def test_show_of_one_part(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/show", Reply(body=SHOWN))
    assert shell("show", "m", "--template").out == "{{ .Prompt }}\n"
    assert shell("show", "m", "--modelfile").out == "FROM x\n"
    assert shell("show", "m", "--license").out == ""


def test_version_without_and_with_a_daemon(stub: Stub, shell: Shell) -> None:
    assert shell("--version").out == f"localrun {__version__}\n"
    stub.on("GET", "/api/version", Reply(body={"version": "0.30.0", "localrun": "9.9"}))
    assert shell("-v").out.endswith("is localrun 9.9\n")
    stub.on("GET", "/api/version", Reply(body={"version": "0.12.3"}))
    assert shell("--version").out.endswith("is not localrun but Ollama 0.12.3\n")
    away = shell("--version", LOCALRUN_HOST="127.0.0.1:1")
    assert (away.code, away.out) == (0, f"localrun {__version__}\n")


def test_another_server_on_the_port_is_named(stub: Stub, shell: Shell) -> None:
    stub.on("GET", "/api/version", Reply(body={"version": "0.12.3"}))
    stub.on("GET", "/api/ps", Reply(body={"models": []}))
    result = shell("ps")
    assert result.code == 0
    assert result.err.endswith("is not localrun but Ollama 0.12.3\n")


@pytest.mark.parametrize(
    "reply", [Reply(404), Reply(501), Reply(404, {"detail": "x"}), Reply(body=[1]), Reply(body={})]
)
@pytest.mark.parametrize("argv", [["ps"], ["list"], ["run", "m", "x"], ["stop", "--daemon"]])
def test_a_server_of_another_kind_is_named(
    stub: Stub, shell: Shell, argv: list[str], reply: Reply
) -> None:
    stub.on("GET", "/api/version", reply)
    result = shell(*argv)
    assert (result.code, result.out) == (3, "")
    assert f"{stub.port}: the server there is not a localrun or Ollama; stop it" in result.err


def test_a_daemon_that_goes_away_is_no_other_server(stub: Stub, shell: Shell) -> None:
    for path in ("version", "ps"):
        stub.on("GET", f"/api/{path}", Reply(503, {"error": "the server is shutting down"}))
    result = shell("ps")
    assert (result.code, result.err) == (1, "Error: the server is shutting down\n")


@pytest.mark.parametrize("argv", [["ps"], ["stop", "m"], ["list"], ["run", "m", "x"]])
def test_no_daemon(shell: Shell, argv: list[str]) -> None:
    result = shell(*argv, LOCALRUN_HOST="127.0.0.1:1")
    assert (result.code, result.out) == (3, "")
    assert result.err == (
        "Error: no localrun daemon at http://127.0.0.1:1; start one with `localrun serve`\n"
    )


def test_proxies_are_not_used(stub: Stub, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    stub.on("GET", "/api/ps", Reply(body={"models": []}))
    assert shell("ps").code == 0


def test_a_setting_that_does_not_parse(shell: Shell) -> None:
    result = shell("ps", LOCALRUN_KEEP_ALIVE="soon")
    assert (result.code, result.err.startswith("Error: LOCALRUN_KEEP_ALIVE: ")) == (2, True)


def test_typed_values() -> None:
    assert typed("num_ctx", ["512"]) == 512
    assert typed("use_mmap", ["TRUE"]) is True
    assert typed("stop", ["a", "b"]) == ("a", "b")
    assert typed("use_mmap", ["no"]) is False
    for name, words in (("use_mmap", ["maybe"]), ("top_p", ["3"]), ("num_ctx", ["1", "5"])):
        with pytest.raises(BadRequest):
            typed(name, words)


# Each of these takes a quick command some milliseconds, or many.
HEAVY = {
    *("asyncio", "httpx", "rich", "numpy", "llama_cpp", "starlette", "uvicorn", "jinja2"),
    *("pydantic", "filelock", "platformdirs", "psutil", "importlib.metadata", "zoneinfo"),
    *("logging", "hashlib", "localrun.errors", "localrun.spec", "localrun.options"),
}


@pytest.mark.parametrize(
    ("argv", "others"),
    [
        (["--version"], {"typer", "modelstore"}),
        (["ps"], {"modelstore"}),
        (["list"], {"modelstore"}),
        (["df"], {"modelstore"}),
        (["show", "m"], set()),
        (["stop", "m"], set()),
    ],
)
def test_quick_commands_import_little(
    stub: Stub, shell: Shell, argv: list[str], others: set[str]
) -> None:
    for path in ("ps", "tags", "df"):
        stub.on("GET", f"/api/{path}", Reply(body={"models": []}))
    for path in ("generate", "show"):
        stub.on("POST", f"/api/{path}", Reply(body={"done": True}))
    script = (
        "import json, sys; from cli.main import run; code = run(sys.argv[1:]); "
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *argv],
        env=shell.environ,
        capture_output=True,
        check=True,
        timeout=60,
    )
    code, modules = json.loads(result.stdout.splitlines()[-1])
    assert code == 0
    assert not (HEAVY | others) & set(modules)


def test_a_command_runs_with_a_garbage_collector(stub: Stub, shell: Shell) -> None:
    stub.on("GET", "/api/ps", Reply(body={"models": []}))
    gc.disable()  # as the entry point does
    try:
        assert shell("ps").code == 0
        assert gc.isenabled()
    finally:
        gc.enable()


def test_a_model_without_its_weights_is_marked(stub: Stub, shell: Shell) -> None:
    stub.on("GET", "/api/tags", Reply(body={"models": [{"name": "m:1", "incomplete": True}]}))
    assert "weights missing or changed" in shell("list").out
    stub.on("POST", "/api/show", Reply(body={**SHOWN, "problem": "the weights are missing"}))
    result = shell("show", "m", "--modelfile")
    assert (result.out, result.err) == ("FROM x\n", "Warning: the weights are missing\n")
