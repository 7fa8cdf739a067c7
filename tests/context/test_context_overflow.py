"""A prompt that the window does not hold: cut and marked on every route, or refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live import Client, Daemon, running, write_fake_model

# The scripted model has a token for each byte, no template, and says its prompt.
N_CTX = 512
FILLER = "never mind, " * 250
SECRET = "the password is swordfish"
LONG = f"{SECRET}\n{FILLER}\nwhat is the password?"
OPTIONS = {"num_ctx": N_CTX, "num_predict": 8}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for the whole file; `small` has a window of its own."""
    folder = tmp_path_factory.mktemp("overflow")
    with running(folder) as daemon:
        daemon.create("echo", write_fake_model(folder / "echo.gguf", {"echo": True}))
        endless = {"pieces": ["la "], "endless": True}
        daemon.create("endless", write_fake_model(folder / "endless.gguf", endless))
        small = {"model": "small", "from": "echo", "parameters": {"num_ctx": N_CTX}}
        daemon.json("POST", "/api/create", {"stream": False, **small})
        yield daemon


def turns(n: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    old = [{"role": roles[i % 2], "content": f"turn {i} " + "x" * 60} for i in range(n)]
    return [{"role": "system", "content": "be brief"}, *old, {"role": "user", "content": "last"}]


def test_a_chat_drops_its_oldest_turns_and_says_how_much(echo: Daemon) -> None:
    body = {"model": "echo", "messages": turns(20), "stream": False, "options": {"num_ctx": N_CTX}}
    reply = echo.json("POST", "/api/chat", body)
    text = reply["message"]["content"]
    assert text.startswith("be brief\n\nturn 1")
    assert "turn 0" not in text
    whole = sum(len(turn["content"]) + 2 for turn in turns(20)) - 2
    assert reply["truncated"] is True
    assert reply["prompt_dropped_count"] == whole - reply["prompt_eval_count"]
    # As much of the window as leaves room for an answer and a whole turn.
    assert N_CTX - N_CTX // 8 - 70 <= reply["prompt_eval_count"] <= N_CTX - N_CTX // 8


def test_what_fits_is_not_marked(echo: Daemon) -> None:
    for number in (1, 4):
        body = {"model": "echo", "messages": turns(number), "stream": False, "options": OPTIONS}
        reply = echo.json("POST", "/api/chat", body)
        assert "truncated" not in reply
        assert "prompt_dropped_count" not in reply


def native(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    final = list(client.stream(path, {"model": "echo", "options": OPTIONS, **body}))[-1]
    assert final["done"] is True
    return final


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": LONG}),
        ("/api/generate", {"prompt": LONG, "raw": True}),
        ("/api/generate", {"prompt": LONG, "system": "be brief"}),
        ("/api/chat", {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
def test_native_routes_mark_a_cut_prompt_or_refuse_it(
    echo: Daemon, path: str, body: dict[str, Any]
) -> None:
    final = native(echo, path, body)
    assert final["truncated"] is True
    n_whole = len(LONG) + (len("be brief\n\n") if "system" in body else 0)
    assert final["prompt_dropped_count"] == n_whole - final["prompt_eval_count"]
    assert final["prompt_eval_count"] == N_CTX - 8  # the answer is bounded, so no more is free
    refused = {"model": "echo", "options": OPTIONS, "truncate": False, **body}
    error = echo.json("POST", path, refused, status=400)["error"]
    assert str(n_whole) in error
    assert str(N_CTX) in error
    assert "num_ctx" in error


def test_a_cut_prompt_keeps_the_system_text_and_the_end(echo: Daemon) -> None:
    body = {"system": "be brief", "prompt": LONG, "options": {"num_ctx": N_CTX}, "stream": False}
    reply = echo.json("POST", "/api/generate", {"model": "echo", **body})
    assert reply["response"].startswith("be brief\n\n")
    text = reply["response"]
    n_prompt = reply["prompt_eval_count"]
    assert text == ("be brief\n\n" + LONG[-(n_prompt - 10) :])[: len(text)]
    # Half of what is behind the system text is left for an answer of unknown length.
    assert n_prompt == pytest.approx(10 + (N_CTX - 10) / 2, abs=1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_openai_routes_mark_a_cut_prompt(echo: Daemon, path: str) -> None:
    is_chat = path == "/v1/chat/completions"
    asked = {"messages": [{"role": "user", "content": LONG}]} if is_chat else {"prompt": LONG}
    whole = echo.json("POST", path, {"model": "echo", "max_tokens": 4, **asked})
    # The window is the default of 4096 here: nothing is missing.
    assert "truncated" not in whole
    assert "dropped_tokens" not in whole["usage"]["prompt_tokens_details"]
    whole = echo.json("POST", path, {"model": "small", "max_tokens": 4, **asked})
    assert whole["truncated"] is True
    usage = whole["usage"]
    assert usage["prompt_tokens_details"]["dropped_tokens"] == len(LONG) - usage["prompt_tokens"]
    body = {"model": "small", "max_tokens": 4, "stream": True, **asked}
    _, stream = echo.request("POST", path, body)
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
    assert [chunk.get("truncated") for chunk in chunks if chunk["choices"][0]["finish_reason"]] == [
        True
    ]


def test_the_command_line_warns_beside_the_answer(echo: Daemon, tmp_path: Path) -> None:
    question = tmp_path / "question.txt"
    question.write_text(LONG)
    with question.open() as stdin:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "run", "small"],
            env={**os.environ, "LOCALRUN_HOST": f"127.0.0.1:{echo.port}"},
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0
    assert done.stderr.startswith("warning: the model has not seen all of this")
    assert SECRET not in done.stdout


def test_the_setting_refuses_and_a_request_may_still_cut(
    start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]
) -> None:
    daemon = start_daemon(TRUNCATE="error", CONTEXT_LENGTH=N_CTX)
    daemon.create("echo", fake_model(echo=True))
    asked = {"model": "echo", "messages": [{"role": "user", "content": LONG}]}
    refusal = daemon.json("POST", "/v1/chat/completions", asked, status=400)["error"]
    assert refusal["code"] == "context_length_exceeded"
    assert str(len(LONG)) in refusal["message"]
    body = {"model": "echo", "prompt": LONG, "stream": False}
    daemon.json("POST", "/api/generate", body, status=400)
    body |= {"truncate": True, "options": OPTIONS}
    assert daemon.json("POST", "/api/generate", body)["truncated"] is True


def test_a_text_too_large_to_be_tokenized_is_cut_too(echo: Daemon) -> None:
    huge = SECRET + "ab" * 2_000_000 + "the end"
    body = {"model": "echo", "prompt": huge, "stream": False, "raw": True, "options": OPTIONS}
    reply = echo.json("POST", "/api/generate", body)
    assert reply["truncated"] is True
    assert reply["prompt_eval_count"] == N_CTX - 8
    # What was never looked at counts as four characters a token.
    assert len(huge) / 5 < reply["prompt_dropped_count"] < len(huge)
    body["truncate"] = False
    assert "at least" in echo.json("POST", "/api/generate", body, status=400)["error"]


# ---- num_keep and other bounds


@pytest.mark.parametrize("keep", [255, 256, 257, 100_000, -1, -2, 0, 2**31 - 1])
def test_no_num_keep_crashes_a_runner_on_its_way_beyond_the_window(echo: Daemon, keep: int) -> None:
    options = {"num_ctx": 256, "num_keep": keep, "num_predict": 600}
    echo.chat("echo", "hi")
    echo.chat("endless", "hi", num_predict=1)
    pids = {runner.pid for runner in echo.runners()}
    for prompt in ("x" * 40, "x" * 250, "x" * 1000):
        body = {"model": "endless", "prompt": prompt, "raw": True, "options": options}
        reply = echo.json("POST", "/api/generate", body | {"stream": False, "shift": True})
        assert (reply["eval_count"], reply["done_reason"]) == (600, "length")
        assert reply["prompt_eval_count"] < 256
    assert pids <= {runner.pid for runner in echo.runners()}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"num_ctx": 0}, 200),
        ({"num_ctx": 1}, 400),
        ({"num_ctx": 7}, 200),
        ({"num_ctx": -5}, 400),
        ({"num_ctx": 10**9}, 200),
        ({"num_ctx": "big"}, 400),
        ({"num_batch": 0}, 400),
        ({"num_ctx": 64, "num_batch": 4096}, 200),
        ({"num_keep": "all"}, 400),
        ({"num_keep": 10**12}, 400),
    ],
)
def test_windows_out_of_range_are_answered_or_refused_by_name(
    echo: Daemon, options: dict[str, Any], status: int
) -> None:
    body = {"model": "echo", "prompt": "hello", "raw": True, "stream": False, "options": options}
    reply = echo.json("POST", "/api/generate", body, status=status)
    if status == 400:
        assert next(iter(options)) in reply["error"]
    assert echo.chat("echo", "still there", num_predict=5)["message"]["content"] == "still"
