"""Commands against a scripted daemon: what they send, print, and exit with."""

import hashlib
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_stub import Reply, Shell, Stub, generated

from cli.commands.serve import occupant
from cli.errors import AlreadyRunning, CliError, PortTaken, exit_code
from cli.parameters import typed
from localrun import __version__
from localrun.errors import BadRequest
from localrun.settings import Settings

NOT_FOUND = Reply(404, {"error": "model 'm' not found"})


def cli_process(*argv: str, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "cli", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
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


def test_list(stub: Stub, shell: Shell) -> None:
    models = [{"name": "m:latest", "digest": "ab" * 32, "size": 2000, "modified_at": None}]
    stub.on("GET", "/api/tags", Reply(body={"models": models, "later": True}))
    result = shell("list")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[1] == "m:latest    abababababab    2 KB    Never"


def test_refusals_are_shown_in_the_daemons_words(stub: Stub, shell: Shell) -> None:
    for status, code in ((401, 1), (404, 4), (503, 1)):
        stub.on("GET", "/api/tags", Reply(status, {"error": f"words for {status}"}))
        result = shell("list")
        assert (result.code, result.out, result.err) == (code, "", f"Error: words for {status}\n")


def test_stop(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(body={"done": True, "done_reason": "unload"}))
    result = shell("stop", "m")
    assert (result.code, result.out, result.err) == (0, "", "")
    (request,) = stub.asked("/api/generate")
    assert request.json == {"model": "m", "keep_alive": 0, "stream": False}


def test_stop_of_a_missing_model(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", NOT_FOUND)
    result = shell("stop", "m")
    assert (result.code, result.err) == (4, "Error: model 'm' not found\n")


def test_rm_stops_first_and_ends_at_the_first_failure(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(body={"done": True}), NOT_FOUND)
    stub.on("DELETE", "/api/delete", Reply(), NOT_FOUND)
    result = shell("rm", "a", "m", "never")
    assert (result.code, result.out, result.err) == (
        4,
        "deleted 'a'\n",
        "Error: model 'm' not found\n",
    )
    sent = [(r.method, r.json["model"]) for r in stub.requests if r.method != "GET"]
    assert sent == [("POST", "a"), ("DELETE", "a"), ("POST", "m"), ("DELETE", "m")]


SHOWN = {
    "modelfile": "FROM x\n",
    "system": "be\n\nbrief\nand\nkind",
    "template": "{{ .Prompt }}",
    "parameters": 'stop     "a"\ntop_k    5',
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
        '    stop     "a"\n'
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


def test_run_prints_the_answer_and_nothing_else(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("Hé", "llo\x1b[31m\r\n", " 🙂")))
    result = shell("run", "m", "why", "is it", "--keepalive", "5m")
    assert (result.code, result.out, result.err) == (0, "Héllo\x1b[31m\r\n 🙂\n", "")
    (request,) = stub.asked("/api/generate")
    assert request.json == {
        "model": "m",
        "prompt": "why is it",
        "stream": True,
        "keep_alive": 300,
    }


def test_run_keeps_control_characters_from_a_terminal(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("a\x1b[31mb\x07c\n")))
    result = shell("run", "m", "x", is_terminal=True)
    assert result.out == "a[31mbc\n"


def test_run_reads_a_pipe_before_the_words(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("ok\n")))
    assert shell("run", "m", "sum", "up", stdin="a text\n").out == "ok\n"
    assert shell("run", "m", stdin="only pipe").out == "ok\n"
    prompts = [request.json["prompt"] for request in stub.asked("/api/generate")]
    assert prompts == ["a text\n sum up", "only pipe"]


def test_run_without_prompt_and_terminal_only_loads(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(body={"done": True, "done_reason": "load"}))
    assert shell("run", "m", stdin="").out == ""
    assert stub.asked("/api/generate")[0].json == {"model": "m", "prompt": "", "stream": False}


def test_run_verbose_and_format(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("{}", eval_count=3)))
    result = shell("run", "m", "x", "--verbose", "--format", "json")
    assert (result.out, result.err) == ("{}\n", "eval count:           3 token(s)\n")
    assert stub.asked("/api/generate")[0].json["format"] == "json"


def test_run_of_a_missing_model_says_what_to_do(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", NOT_FOUND)
    result = shell("run", "m", "x")
    assert result.code == 4
    assert result.err.startswith("Error: model 'm' not found\n`localrun list` shows")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            Reply(lines=[*generated("half")[:1], {"error": "runner died"}]),
            "Error: runner died\n",
        ),
        (
            Reply(lines=generated("half")[:1]),
            "Error: the answer ended before it was complete\n",
        ),
        (
            Reply(lines=generated("half")[:1], is_cut=True),
            "Error: the daemon closed the connection before it had answered; its log says why\n",
        ),
    ],
)
def test_run_that_breaks_off(stub: Stub, shell: Shell, reply: Reply, message: str) -> None:
    stub.on("POST", "/api/generate", reply)
    result = shell("run", "m", "x")
    assert (result.code, result.out, result.err) == (1, "half", message)


def test_an_answer_about_errors_is_no_error(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated('{"error": "x"}')))
    assert shell("run", "m", "x").out == '{"error": "x"}\n'


def test_interrupt_closes_the_connection(stub: Stub, shell: Shell) -> None:
    gate = threading.Event()
    stub.on("POST", "/api/generate", Reply(lines=generated("one", "two"), gate=gate))
    child = cli_process("run", "m", "x", environ=shell.environ)
    assert child.stdout is not None
    assert child.stdout.read(3) == b"one"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    gate.set()
    assert (child.returncode, out, err) == (130, b"", b"")
    assert stub.gone.wait(30)


def test_broken_pipe_is_quiet(stub: Stub, shell: Shell) -> None:
    gate = threading.Event()
    stub.on("POST", "/api/generate", Reply(lines=generated("one", "two"), gate=gate))
    child = cli_process("run", "m", "x", environ=shell.environ)
    assert child.stdout is not None
    assert child.stdout.read(3) == b"one"
    child.stdout.close()
    gate.set()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    assert child.wait(30) == 141
    child.stderr.close()


def test_closed_streams_are_no_special_case(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/generate", Reply(lines=generated("ok")))
    line = f"{sys.executable} -m cli run m x <&- 2>&-"
    result = subprocess.run(
        ["sh", "-c", line], env=shell.environ, capture_output=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, b"ok\n")


def test_create_from_a_modelfile(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "writing manifest"}]))
    modelfile = tmp_path / "Other"
    modelfile.write_text(
        'FROM base:1\nSYSTEM be brief\nPARAMETER stop "a b"\nPARAMETER stop c\n'
        "PARAMETER temperature 0.5\nPARAMETER num_ctx 512\nMESSAGE user hi\nLICENSE free\n"
    )
    result = shell("create", "n", "-f", str(modelfile))
    assert (result.code, result.out, result.err) == (0, "", "writing manifest\n")
    assert stub.asked("/api/create")[0].json == {
        "model": "n",
        "stream": True,
        "from": "base:1",
        "system": "be brief",
        "license": ["free"],
        "parameters": {"stop": ["a b", "c"], "temperature": 0.5, "num_ctx": 512},
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_create_names_a_local_file_by_its_path(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    weights = tmp_path / "w.gguf"
    weights.write_bytes(b"GGUF")
    (tmp_path / "Modelfile").write_text("FROM ./w.gguf\n")
    assert shell("create", "n", "-f", str(tmp_path / "Modelfile")).code == 0
    assert shell("create", "n", "--from-file", str(weights), "--in-place").code == 0
    bodies = [request.json for request in stub.asked("/api/create")]
    assert [(body["path"], body["in_place"]) for body in bodies] == [
        (str(weights), False),
        (str(weights), True),
    ]


def test_create_uploads_what_a_distant_daemon_lacks(
    stub: Stub, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.create.is_loopback", lambda _: False)
    weights = tmp_path / "w.gguf"
    weights.write_bytes(b"GGUF and more")
    digest = "sha256:" + hashlib.sha256(b"GGUF and more").hexdigest()
    stub.on("HEAD", f"/api/blobs/{digest}", Reply(404), Reply())
    stub.on("POST", f"/api/blobs/{digest}", Reply(201))
    stub.on("POST", "/api/create", Reply(lines=[{"status": "success"}]))
    assert shell("create", "n", "--from-file", str(weights)).code == 0
    assert shell("create", "n", "--from-file", str(weights)).code == 0
    uploads = [r.body for r in stub.asked(f"/api/blobs/{digest}") if r.method == "POST"]
    assert uploads == [b"GGUF and more"]
    assert stub.asked("/api/create")[0].json["files"] == {"w.gguf": digest}
    refused = shell("create", "n", "--from-file", str(weights), "--in-place")
    assert (refused.code, "daemon on this machine" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("FROM ./none.gguf\n", "there is no file `./none.gguf`"),
        ("FROM .\n", "is a folder"),
        ("FROM m\nPARAMETER heat 3\n", "unknown PARAMETER `heat`"),
        ("FROM m\nPARAMETER top_k warm\n", 'option "top_k" must be of type integer'),
        ("FROM m\nADAPTER m2\n", "ADAPTER takes a GGUF file"),
        ("SYSTEM x\n", "no FROM line"),
    ],
)
def test_create_refuses(shell: Shell, stub: Stub, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "Modelfile").write_text(text)
    result = shell("create", "n", "-f", str(tmp_path / "Modelfile"))
    assert result.code in (1, 2)
    assert part in result.err
    assert not stub.asked("/api/create")


def test_create_without_a_modelfile(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = shell("create", "n", "-f", "none")
    assert (missing.code, missing.err) == (2, "Error: there is no Modelfile `none`\n")
    assert "--from-file" in shell("create", "n").err


def test_create_shows_one_line_on_a_terminal(stub: Stub, shell: Shell, tmp_path: Path) -> None:
    lines = [{"status": "copying", "completed": 1, "total": 4}, {"status": "success"}]
    stub.on("POST", "/api/create", Reply(lines=lines))
    (tmp_path / "Modelfile").write_text("FROM m\n")
    result = shell("create", "n", "-f", str(tmp_path / "Modelfile"), is_terminal=True)
    assert result.err == "\r\x1b[Kcopying 25%\r\x1b[Ksuccess\r\x1b[K"


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


@pytest.mark.parametrize(
    ("reply", "error", "code", "part"),
    [
        (
            Reply(body={"version": "0.30.0", "localrun": "0.1.0", "pid": 42}),
            AlreadyRunning,
            5,
            "localrun 0.1.0 is already running on http://127.0.0.1:{port} (pid 42)",
        ),
        (Reply(body={"version": "0.12.3"}), PortTaken, 6, "taken by Ollama 0.12.3"),
        (Reply(404, {"detail": "x"}), PortTaken, 6, "taken by another program"),
        (Reply(body=[1]), PortTaken, 6, "taken by another program"),
        (Reply(401, {"error": "no key"}), PortTaken, 6, "asks for an API key"),
    ],
)
def test_who_holds_the_port(
    stub: Stub, reply: Reply, error: type[CliError], code: int, part: str
) -> None:
    stub.on("GET", "/api/version", reply)
    found = occupant(Settings(port=stub.port))
    assert isinstance(found, error)
    assert exit_code(found) == code
    assert part.format(port=stub.port) in str(found)


def test_serve_explains_why_it_did_not_start(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pytest.importorskip("localrun.app")
    monkeypatch.setattr(app, "Daemon", lambda _: pytest.fail("must not get this far"))
    models = {"LOCALRUN_MODELS": str(tmp_path)}
    taken = shell("serve", **models)
    assert (taken.code, "localrun 0.1.0 is already running" in taken.err) == (5, True)
    open_host = shell("serve", **models, LOCALRUN_HOST="0.0.0.0:0")
    assert (open_host.code, "LOCALRUN_INSECURE" in open_host.err) == (2, True)
    no_host = shell("serve", **models, LOCALRUN_HOST="no such host:1")
    assert (no_host.code, no_host.err.startswith("Error: cannot listen")) == (1, True)


def test_a_port_whose_owner_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = occupant(Settings(port=silent.getsockname()[1]))
    assert isinstance(found, PortTaken)


def test_typed_values() -> None:
    assert typed("num_ctx", ["512"]) == 512
    assert typed("use_mmap", ["TRUE"]) is True
    assert typed("stop", ["a", "b"]) == ("a", "b")
    for name, words in (("use_mmap", ["maybe"]), ("top_p", ["3"]), ("num_ctx", ["1", "5"])):
        with pytest.raises(BadRequest):
            typed(name, words)


@pytest.mark.parametrize("argv", [["--version"], ["ps"], ["list"], ["stop", "m"]])
def test_quick_commands_import_little(stub: Stub, shell: Shell, argv: list[str]) -> None:
    stub.on("GET", "/api/ps", Reply(body={"models": []}))
    stub.on("GET", "/api/tags", Reply(body={"models": []}))
    stub.on("POST", "/api/generate", Reply(body={"done": True}))
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
    heavy = {"httpx", "rich", "numpy", "llama_cpp", "starlette", "uvicorn", "jinja2", "asyncio"}
    assert code == 0
    assert not heavy & set(modules)
