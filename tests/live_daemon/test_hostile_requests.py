"""Anything as a body, to every route: never a 500, no slot left busy, nothing given away."""

import getpass
import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import Daemon, running, wait_until, write_fake_model

IS_FULL = os.environ.get("LOCALRUN_TEST_FULL") == "1"

# What the routes know, so that random bodies get behind the first check.
_NAMES = st.sampled_from(["m", "m:latest", "bad template", "a//b", "", "../x", "M", "nope"])
_TEXTS = st.sampled_from(["", "hi", "\ud83d".encode("utf-8", "replace").decode(), "<|im_end|>"])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | _TEXTS
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
_OPTIONS = st.dictionaries(
    st.sampled_from(
        ["temperature", "num_ctx", "num_predict", "seed", "stop", "top_k", "num_keep", "nope"]
    ),
    _JSON | st.integers(-2, 64),
    max_size=3,
)
_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "string", "", ["object", "null"]]) | _JSON,
        "properties": st.dictionaries(_TEXTS, _JSON, max_size=2) | _JSON,
        "required": st.lists(_TEXTS, max_size=2) | _JSON,
        "enum": st.lists(_SCALARS, max_size=2),
        "$ref": st.sampled_from(["#", "#/nope", "http://localhost/x"]),
        "pattern": st.text(max_size=6),
    },
)
_TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function") | _JSON,
            "function": st.fixed_dictionaries(
                {"name": st.sampled_from(["f", "g", "", "a b"]) | _JSON},
                optional={"description": _TEXTS | _JSON, "parameters": _SCHEMAS | _JSON},
            ),
        }
    ),
    max_size=2,
)
_FLAT_TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["function", "namespace"]) | _JSON,
            "name": st.sampled_from(["f", "g", ""]) | _JSON,
        },
        optional={"parameters": _SCHEMAS | _JSON, "tools": _JSON},
    ),
    max_size=2,
)
_CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {"name": st.sampled_from(["f", ""])},
                optional={
                    "arguments": _JSON
                    | st.dictionaries(_TEXTS, _JSON, max_size=2)
                    | st.sampled_from(["{}", '{"n": 1' + "0" * 40 + "}", "[", "null"])
                },
            )
        },
        optional={"id": _TEXTS | _JSON},
    ),
    max_size=2,
)
_RESPONSE_FORMATS = st.fixed_dictionaries(
    {"type": st.sampled_from(["json_object", "json_schema", "text", "x"]) | _JSON},
    optional={
        "json_schema": st.fixed_dictionaries({"schema": _SCHEMAS | _JSON, "name": _TEXTS}) | _JSON
    },
)
_TOOL_CHOICES = st.sampled_from(["none", "auto", "required", "x"]) | st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "allowed_tools"])},
    optional={
        "function": st.fixed_dictionaries({"name": st.sampled_from(["f", "g", ""])}) | _JSON,
        "allowed_tools": _JSON
        | st.fixed_dictionaries({"mode": st.just("required"), "tools": _TOOLS}),
    },
)
_EFFORTS = st.sampled_from(["none", "low", "max", "minimal", "", "x"])
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"]) | _JSON},
        optional={
            "content": _TEXTS | _JSON,
            "tool_calls": _CALLS | _JSON,
            "function_call": _JSON,
            "thinking": _TEXTS | _JSON,
            "reasoning": _TEXTS | _JSON,
            "tool_name": _TEXTS | _JSON,
            "tool_call_id": _TEXTS | _JSON,
            "images": _JSON,
        },
    ),
    max_size=3,
)
# Items of a response's input.
_ITEMS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["message", "function_call", "function_call_output", "reasoning", "x"]
            )
        },
        optional={
            "role": st.sampled_from(["user", "assistant", "developer", "x"]) | _JSON,
            "content": _TEXTS | _JSON,
            "name": st.sampled_from(["f", ""]) | _JSON,
            "namespace": _TEXTS | _JSON,
            "call_id": _TEXTS | _JSON,
            "arguments": st.sampled_from(["{}", '{"n": 1' + "0" * 40 + "}", "["]) | _JSON,
            "output": _TEXTS | _JSON,
            "summary": _JSON,
            "encrypted_content": _TEXTS | _JSON,
        },
    ),
    max_size=3,
)

_KNOWN: Mapping[str, st.SearchStrategy[Any]] = {
    "model": _NAMES,
    "name": _NAMES,
    "source": _NAMES,
    "destination": st.sampled_from(["", "a//b", "../x"]),
    "prompt": _TEXTS | st.lists(_TEXTS, max_size=2),
    "messages": _MESSAGES,
    "options": _OPTIONS,
    "stream": st.booleans(),
    "keep_alive": st.sampled_from([0, -1, "5m", "x", 1e300]),
    "max_tokens": st.integers(-3, 9),
    "raw": st.booleans(),
    "template": st.sampled_from(["{{ .Prompt }}", "{{ nope", "{{ range }}"]),
    "suffix": _TEXTS,
    "n": st.integers(-1, 3),
    "stop": _TEXTS | st.lists(_TEXTS, max_size=2),
    "logprobs": st.booleans() | st.integers(-1, 30),
    "top_logprobs": st.integers(-1, 30),
    "tools": _TOOLS | _FLAT_TOOLS,
    "tool_choice": _TOOL_CHOICES,
    "parallel_tool_calls": st.booleans(),
    "functions": _TOOLS,
    "think": st.booleans() | _EFFORTS,
    "reasoning_effort": _EFFORTS,
    "reasoning": st.fixed_dictionaries({"effort": _EFFORTS}),
    "input": _TEXTS | _ITEMS,
    "instructions": _TEXTS,
    "text": st.fixed_dictionaries({"format": _RESPONSE_FORMATS | _JSON}),
    "include": st.lists(st.sampled_from(["message.output_text.logprobs", "x"]) | _JSON, max_size=2),
    "truncation": st.sampled_from(["auto", "disabled", ""]),
    "format": st.sampled_from(["json", "", "jsn"]) | _SCHEMAS,
    "response_format": _RESPONSE_FORMATS,
    "from": _NAMES,
    "files": st.dictionaries(_TEXTS, st.text(max_size=9), max_size=2),
    "dry_run": st.just(True),
    "models": st.lists(_NAMES, max_size=2),
}
_BODIES = (
    st.fixed_dictionaries({}, optional={key: known | _JSON for key, known in _KNOWN.items()})
    | _JSON
)

_TURN = {"role": "user", "content": "hi"}
# A body that each route takes; most random ones are sent away at the first check.
_GOOD: Mapping[str, Mapping[str, Any]] = {
    "/api/generate": {"model": "m", "prompt": "hi"},
    "/api/chat": {"model": "m", "messages": [_TURN]},
    "/api/show": {"model": "m"},
    "/api/copy": {"source": "m", "destination": "copied"},
    "/api/verify": {"models": ["m"]},
    "/v1/chat/completions": {"model": "m", "messages": [_TURN]},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
}
_CHANGES = st.one_of(
    *(st.fixed_dictionaries({key: known | _JSON}) for key, known in _KNOWN.items()),
    # What belongs together; one of them alone is mostly refused.
    st.fixed_dictionaries(
        {"tools": _TOOLS | _FLAT_TOOLS, "tool_choice": _TOOL_CHOICES},
        optional={"messages": _MESSAGES, "format": _SCHEMAS, "think": st.booleans()},
    ),
    st.dictionaries(st.sampled_from(sorted(_KNOWN)), _SCALARS, max_size=2),
)


@st.composite
def _requests(draw: st.DrawFn) -> tuple[str, Any]:
    """A path, and a body that is good, almost good, or anything."""
    path = draw(st.sampled_from(sorted(_GOOD)))
    if draw(st.integers(0, 3)) == 0:
        return path, draw(_BODIES)
    return path, _GOOD[path] | draw(_CHANGES)


# These may leave the machine for a name that is well formed and unknown; without a network that is
# a gateway's error, so they get only what cannot be meant.
_WITH_REGISTRY = ("/api/pull", "/api/push", "/api/create")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose store, log and home have names that no reply may hold."""
    folder = tmp_path_factory.mktemp("someones-secret-home")
    # Nobody answers there: a pull fails at once, and without the network.
    with running(folder, CONTEXT_LENGTH=256, LOG_LEVEL="debug") as daemon:
        daemon.create("m", write_fake_model(folder / "m.gguf", {"pieces": ["ok ", "yes"]}))
        bad = write_fake_model(
            folder / "bad.gguf", {"pieces": ["x"], "chat_template": "{{ messages[99].nope.nope }}"}
        )
        daemon.create("bad-template", bad)
        yield daemon


@settings(
    max_examples=3000 if IS_FULL else 200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(request=_requests())
def test_no_json_is_a_server_error(target: Daemon, request: tuple[str, Any]) -> None:
    path, body = request
    status, reply = target.request("POST", path, json.dumps(body).encode())
    assert status < 500, (path, body, reply)
    if status == 200 and b'"error"' in reply:
        assert b"internal error" not in reply


@settings(max_examples=400 if IS_FULL else 40, deadline=None)
@given(body=_BODIES.filter(lambda body: not isinstance(body, dict)), data=st.binary(max_size=40))
def test_no_bytes_are_a_server_error(target: Daemon, body: Any, data: bytes) -> None:
    for path in (*_GOOD, *_WITH_REGISTRY, "/api/delete", "/api/prune"):
        method = "DELETE" if path == "/api/delete" else "POST"
        for sent in (json.dumps(body).encode() if body else b"null", data + b"\xff"):
            status, reply = target.request(method, path, sent)
            assert 400 <= status < 500, (path, sent, reply)


def test_no_slot_is_left_busy_and_nothing_unexpected_was_logged(target: Daemon) -> None:
    wait_until(lambda: target.n_busy() == 0, "all slots to be free")
    assert target.chat("m", "hi")["message"]["content"] == "ok yes"
    assert "Traceback" not in target.log()


# ---- what replies may not hold (SEC-05)


def _secrets(daemon: Daemon) -> list[str]:
    folder = daemon.log_path.parent
    found = [str(folder), folder.name, os.path.expanduser("~/"), "site-packages", "Traceback"]
    # In a container these may be words that stand in any sentence.
    names = (getpass.getuser(), socket.gethostname())
    return [*found, *(name for name in names if len(name) > 4)]


def _errors(daemon: Daemon) -> Iterator[tuple[str, bytes]]:
    """Replies to requests that go wrong, one for each way."""
    digest = "sha256:" + "0" * 64
    model = {"model": "m", "stream": False}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/api/create", {"model": "x", "files": {"a.gguf": ""}}),
        ("POST", "/api/create", {"model": "x", "files": {"a.gguf": digest}, "stream": False}),
        ("POST", "/api/create", {"model": "x", "path": str(daemon.log_path.parent)}),
        ("POST", "/api/create", {"model": "x", "path": str(daemon.log_path), "stream": False}),
        ("POST", "/api/create", {"model": "x", "path": "/nowhere/at/all.gguf", "stream": False}),
        ("POST", "/api/create", {"model": "x", "from": "m", "template": "{{ nope"}),
        ("POST", "/api/blobs/sha256:../../x", b"x"),
        ("POST", f"/api/blobs/{digest}", b"x"),
        ("POST", "/api/generate", {**model, "prompt": "x", "template": "{{ nope"}),
        ("POST", "/api/generate", {**model, "prompt": "x" * 5000}),
        ("POST", "/api/chat", {**model, "model": "bad-template", "messages": [_TURN]}),
        ("POST", "/api/chat", {**model, "model": "broken", "messages": [_TURN]}),
        ("POST", "/v1/chat/completions", {"model": "gone", "messages": [_TURN]}),
        ("POST", "/api/show", {"model": "damaged"}),
        ("POST", "/api/show", {"model": "../../etc/passwd"}),
        ("POST", "/api/copy", {"source": "damaged", "destination": "x"}),
        ("POST", "/api/push", {"model": "127.0.0.1:9/x/y", "stream": False}),
        ("POST", "/api/pull", {"model": "127.0.0.1:9/x/y", "stream": False}),
        ("POST", "/api/verify", {"models": ["damaged", "gone"]}),
        ("DELETE", "/api/delete", {"model": "nobody"}),
        ("GET", "/v1/models/nobody/at/all", None),
        ("GET", "/nope/../../etc/passwd", None),
        ("GET", "/api/tags", None),
        ("GET", "/api/df", None),
        ("GET", "/metrics", None),
    ]
    for method, path, body in asked:
        yield f"{method} {path} {body!r}", daemon.request(method, path, body)[1]


@pytest.fixture
def damaged(target: Daemon) -> Iterator[Path]:
    """The store's folder, with models that are broken in ways of their own."""
    folder = target.log_path.parent
    broken = write_fake_model(folder / "broken.gguf", {"refuse": f"cannot open {folder}/b.gguf"})
    target.create("broken", broken)
    gone = write_fake_model(folder / "gone.gguf", {"pieces": ["x"]})
    target.create("gone", gone)
    gone.unlink()
    target.json("POST", "/api/copy", {"source": "m", "destination": "damaged"})
    manifest = next((folder / "models" / "manifests").rglob("damaged/latest"))
    manifest.write_text("{")
    yield folder / "models"
    manifest.unlink(missing_ok=True)


def test_no_reply_tells_who_or_where_we_are(target: Daemon, damaged: Path) -> None:
    secrets = _secrets(target)
    for what, reply in _errors(target):
        for secret in secrets:
            assert secret.encode() not in reply, (what, reply)


def test_a_store_that_cannot_be_read_or_written_tells_no_more(
    target: Daemon, damaged: Path
) -> None:
    blobs = damaged / "blobs"
    mode = stat.S_IMODE(blobs.stat().st_mode)
    # A file in the folder's place: permissions do not stop a test that runs as root.
    aside = blobs.rename(damaged / "aside")
    blobs.write_text("")
    try:
        for what, reply in _errors(target):
            for secret in _secrets(target):
                assert secret.encode() not in reply, (what, reply)
    finally:
        blobs.unlink()
        aside.rename(blobs)
        blobs.chmod(mode)


def test_no_prompt_enters_the_log(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(LOG_LEVEL="debug")
    daemon.create("m", fake_model(pieces=["my secret answer"]))
    word = "my-secret-prompt"
    daemon.chat("m", word)
    message = {"role": "user", "content": word}
    for body in (
        {"model": "m", "messages": [message], "options": {"temperature": word}},
        {"model": "m", "messages": [message], "tools": [word]},
        {"model": "m", "messages": [{"role": 3, "content": word}]},
        {"model": "m", "messages": [message], word: 1},
    ):
        daemon.request("POST", "/api/chat", body)
        daemon.request("POST", "/v1/chat/completions", body)
    daemon.request("POST", "/api/chat", b'{"messages": "' + word.encode())
    assert daemon.terminate() == 0
    assert not re.search(r"my.secret", daemon.log())
