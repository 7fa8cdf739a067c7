"""What the four routes of text have in common, each asked both ways, with exact bytes."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from live import Daemon, wait_until
from text_routes import ROUTES, Route

Scripted = Callable[..., str]

each_route = pytest.mark.parametrize("route", ROUTES, ids=str)
each_way = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def per_byte(text: str) -> list[bytes]:
    return [text.encode()[i : i + 1] for i in range(len(text.encode()))]


# ---- characters and stop strings

ANSWERS: dict[str, tuple[list[Any], list[str], str]] = {
    "plain": (["one ", "two"], [], "one two"),
    "emoji bytewise": (per_byte("a🙂b"), [], "a🙂b"),
    "emoji halves": ([b"\xf0\x9f", b"\x99\x82"], [], "🙂"),
    "family": (per_byte("👨‍👩‍👧"), [], "👨‍👩‍👧"),
    "cjk": (per_byte("漢字"), [], "漢字"),
    "half at the end": ([b"cut ", b"\xf0\x9f"], [], "cut "),
    "over pieces": (["The quick br", "own f", "ox jumps"], ["own fox"], "The quick br"),
    "near miss": (["The quick br", "own f", "ix jumps"], ["own fox"], "The quick brown fix jumps"),
    "shared prefix": (["a ", "#", "#", "#END"], ["##", "###END"], "a "),
    "at once": (["STOP", "more"], ["STOP"], ""),
    "inside a token": (["one tw", "o STOP it"], ["STOP"], "one two "),
    "inside a character": ([b"x", b"\xc3", b"\xa9", b"y"], ["é"], "x"),
    "held to the end": (["a", "ST"], ["STOP"], "aST"),
}


@each_way
@each_route
@pytest.mark.parametrize(("pieces", "stop", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_text_is_whole_characters_without_stop_strings_and_its_tokens_are_its_bytes(
    shared_daemon: Daemon,
    scripted: Scripted,
    route: Route,
    stream: bool,
    pieces: list[Any],
    stop: list[str],
    expected: str,
) -> None:
    model = scripted(pieces=pieces)
    plain = route.ask(shared_daemon, model, stream=stream, stop=stop)
    assert (plain.text, plain.reason, plain.logprobs) == (expected, "stop", [])
    said = route.ask(shared_daemon, model, stream=stream, stop=stop, top=0)
    assert (said.text, said.reason, said.bytes) == (expected, "stop", expected.encode())
    sent_text = sent_bytes = b""
    for text, data in said.pieces:
        sent_text += text.encode()
        sent_bytes += data
        assert sent_text.startswith(sent_bytes), "a token came before its text"


@each_way
@each_route
def test_an_invalid_byte_is_one_replacement_and_its_token_stays_raw(
    shared_daemon: Daemon, scripted: Scripted, route: Route, stream: bool
) -> None:
    model = scripted(pieces=[b"a", b"\xff", b"b"])
    said = route.ask(shared_daemon, model, stream=stream, top=0)
    assert (said.text, said.bytes) == ("a\ufffdb", b"a\xffb")


@each_way
@each_route
def test_a_length_limit_inside_a_character_leaves_no_half(
    shared_daemon: Daemon, scripted: Scripted, route: Route, stream: bool
) -> None:
    model = scripted(pieces=[b"a", b"\xf0\x9f", b"\x99\x82"])
    said = route.ask(shared_daemon, model, stream=stream, num_predict=2, top=0)
    assert (said.text, said.reason, said.bytes) == ("a", "length", b"a")


# ---- log-probabilities


@each_way
@each_route
@pytest.mark.parametrize("top", [0, 1, 2])
def test_each_token_has_its_logprob_and_as_many_likeliest_as_asked_for(
    shared_daemon: Daemon, scripted: Scripted, route: Route, stream: bool, top: int
) -> None:
    model = scripted(pieces=["a", "b", "c"], logprobs=[-0.5, -1.5, -2.5])
    said = route.ask(shared_daemon, model, stream=stream, top=top)
    assert said.logprobs == [
        (b"a", -0.5, [(b"a", -0.5), (b"b", -1.5)][:top]),
        (b"b", -1.5, [(b"b", -1.5), (b"c", -2.5)][:top]),
        (b"c", -2.5, [(b"c", -2.5), (b"a", -3.5)][:top]),
    ]
    if stream:
        assert [piece for piece in said.pieces if piece[0]] == [
            ("a", b"a"), ("b", b"b"), ("c", b"c"),
        ]  # fmt: skip


@each_route
def test_without_the_wish_there_is_no_trace_of_them(
    shared_daemon: Daemon, scripted: Scripted, route: Route
) -> None:
    model = scripted(pieces=["a", "b"])
    for stream in (True, False):
        status, data = shared_daemon.request(
            "POST", route.path, route.body(model, "hi", stream=stream)
        )
        assert (status, b"logprobs" in data) == (200, False)


@each_route
@pytest.mark.parametrize("top", [-1, 21])
def test_a_number_of_likeliest_tokens_out_of_range_is_refused(
    shared_daemon: Daemon, scripted: Scripted, route: Route, top: int
) -> None:
    body = route.body(scripted(pieces=["a"]), "hi", top=top)
    error = shared_daemon.json("POST", route.path, body, status=400)["error"]
    if route.is_native:
        assert error == "top_logprobs must be between 0 and 20"
    else:
        assert error["param"] == "top_logprobs" if route.is_chat else "logprobs"
        assert "between 0 and 20" in error["message"]


def test_likeliest_tokens_without_the_tokens_themselves_have_no_effect_or_are_refused(
    shared_daemon: Daemon, scripted: Scripted
) -> None:
    for route in ROUTES:
        body = {**route.body(scripted(pieces=["a"]), "hi"), "top_logprobs": 3}
        if route.is_chat and not route.is_native:  # as OpenAI does
            error = shared_daemon.json("POST", route.path, body, status=400)["error"]
            assert error["param"] == "top_logprobs"
            continue
        said = route.send(shared_daemon, body)
        assert (said.text, said.logprobs, said.ignored) == ("a", [], ["top_logprobs"])


@each_way
@pytest.mark.parametrize("route", [r for r in ROUTES if not r.is_native], ids=str)
def test_each_choice_has_its_own_tokens(
    shared_daemon: Daemon, scripted: Scripted, route: Route, stream: bool
) -> None:
    # Answers of several pieces, in which the older kind counts characters for each choice.
    body = route.body(scripted(pieces=["one ", "two ", "three"]), "hi", stream=stream, top=1)
    status, data = shared_daemon.request("POST", route.path, {**body, "n": 3})
    assert status == 200
    tokens: dict[int, list[str]] = {0: [], 1: [], 2: []}
    offsets: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for choice in (c for document in documents(data) for c in document["choices"]):
        found = choice.get("logprobs") or {}
        tokens[choice["index"]] += found.get("tokens", [])
        tokens[choice["index"]] += [entry["token"] for entry in found.get("content", [])]
        offsets[choice["index"]] += found.get("text_offset", [])
    assert tokens == {number: ["one ", "two ", "three"] for number in range(3)}
    if not route.is_chat:
        assert offsets == {number: [0, 4, 8] for number in range(3)}


def documents(data: bytes) -> list[Any]:
    blocks = [block.removeprefix(b"data: ").strip() for block in data.split(b"\n\n")]
    return [json.loads(block) for block in blocks if block and block != b"[DONE]"]


# ---- lengths

LENGTHS: list[tuple[Any, int]] = [(0, 0), (1, 1), (3, 3), (-1, 90), (-2, 90), (None, 90), ("", 90)]


@each_way
@each_route
@pytest.mark.parametrize(("value", "n_expected"), LENGTHS, ids=[repr(v) for v, _ in LENGTHS])
def test_a_length_means_what_the_table_says(
    shared_daemon: Daemon,
    scripted: Scripted,
    route: Route,
    stream: bool,
    value: Any,
    n_expected: int,
) -> None:
    model = scripted(pieces=["x"], endless=True)
    wishes = {} if value == "" else {"num_predict": value}  # the last row leaves it out
    body = route.body(model, "0123456789", stream=stream, **wishes)
    if not route.is_native and stream:
        body["stream_options"] = {"include_usage": True}
    said = route.send(shared_daemon, body)
    assert (said.error, said.n_tokens, said.reason) == (None, n_expected, "length")
    assert said.text == "x" * n_expected


@each_route
@pytest.mark.parametrize("value", [-3, "many", [1], True, 2**31])
def test_any_other_length_is_refused_with_its_name(
    shared_daemon: Daemon, scripted: Scripted, route: Route, value: Any
) -> None:
    body = route.body(scripted(pieces=["x"]), "hi", num_predict=value)
    error = shared_daemon.json("POST", route.path, body, status=400)["error"]
    if route.is_native:
        assert "num_predict" in error
    else:
        assert error["param"] == "max_tokens"


# ---- names without effect


def test_options_that_are_misspelt_or_elsewhere_are_named_and_the_request_works(
    shared_daemon: Daemon, scripted: Scripted
) -> None:
    model = scripted(pieces=["a"])
    elsewhere = {"seed": 7, "temperature": 0.1, "num_ctx": 50, "max_tokens": 1, "stop": ["a"]}
    unknown = {"max_tokens": 1, "temprature": 1, "tfs_z": 1, "num_ctxx": 9}
    for route in ROUTES[:2]:
        body = {**route.body(model, "hi", **unknown), **elsewhere, "user": "u", "top_k": None}
        said = route.send(shared_daemon, body)
        assert (said.text, set(said.ignored)) == ("a", {*unknown, *elsewhere})
    for route in ROUTES[2:]:
        body = route.body(model, "hi")
        extra = {"options": {"seed": 7}, "num_ctx": 9, "keep_alive": 1, "think": True, "user": "u"}
        said = route.send(shared_daemon, {**body, **extra})
        assert (said.text, set(said.ignored)) == ("a", {*extra} - {"user"})


@each_route
def test_whatever_has_its_effect_is_not_named(
    shared_daemon: Daemon, scripted: Scripted, route: Route
) -> None:
    wishes = {
        "seed": 7,
        "temperature": 0.5,
        "num_predict": 2,
        "stop": ["b"],
        "logit_bias": {"1": 2},
    }
    said = route.ask(shared_daemon, scripted(pieces=["a", "b"]), top=1, **wishes)
    assert (said.text, said.ignored) == ("a", [])


# ---- how it ends


@each_way
@each_route
@pytest.mark.parametrize(
    ("wishes", "text", "reason"),
    [
        ({}, "one two", "stop"),
        ({"stop": ["two"]}, "one ", "stop"),
        ({"num_predict": 1}, "one ", "length"),
    ],
    ids=["end", "stop string", "length"],
)
def test_one_reason_comes_at_the_end_and_none_before(
    shared_daemon: Daemon,
    scripted: Scripted,
    route: Route,
    stream: bool,
    wishes: dict[str, Any],
    text: str,
    reason: str,
) -> None:
    body = route.body(scripted(pieces=["one ", "two"]), "hi", stream=stream, **wishes)
    said = route.send(shared_daemon, body)
    assert (said.text, said.reason) == (text, reason)
    if not stream:
        return
    parts = raw_parts(shared_daemon, route, body)
    if route.is_native:
        assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
        assert [part.get("done_reason") for part in parts] == [None] * (len(parts) - 1) + [reason]
    else:
        reasons = [part["choices"][0]["finish_reason"] for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [reason]


def raw_parts(daemon: Daemon, route: Route, body: dict[str, Any]) -> list[Any]:
    """The documents of a stream, whose last word must be right in its dialect."""
    status, data = daemon.request("POST", route.path, body)
    assert status == 200
    if route.is_native:
        assert data.endswith(b"}\n")
        return [json.loads(line) for line in data.splitlines()]
    assert data.endswith(b"}\n\ndata: [DONE]\n\n")
    assert data.count(b"[DONE]") == 1
    return documents(data)


@pytest.mark.parametrize("route", ROUTES[2:], ids=str)
@pytest.mark.parametrize("include", [True, False, None])
def test_usage_comes_once_after_the_reason_and_only_when_asked_for(
    shared_daemon: Daemon, scripted: Scripted, route: Route, include: bool | None
) -> None:
    body = route.body(scripted(pieces=["one ", "two"]), "hi", stream=True)
    for options in (
        ({"include_usage": include}, None) if include is None else ({"include_usage": include},)
    ):
        parts = raw_parts(shared_daemon, route, {**body, "stream_options": options})
        usages = [part for part in parts if part.get("usage")]
        if include:
            assert usages == [parts[-1]]
            assert usages[0]["choices"] == []
            assert usages[0]["usage"]["completion_tokens"] == 2
            assert parts[-2]["choices"][0]["finish_reason"] == "stop"
        else:
            assert usages == []
            assert all(part["choices"] for part in parts)


# ---- errors on the way


@each_route
def test_a_runner_that_dies_ends_the_stream_with_one_error_and_no_success(
    shared_daemon: Daemon, scripted: Scripted, route: Route
) -> None:
    # After five forwards of one token each: text has gone out.
    model = scripted(pieces=["la "], endless=True, step_s=0.01, crash_at_forward=6, n_batch=64)
    body = route.body(model, "hi", stream=True)
    said = route.send(shared_daemon, body)
    assert said.text.startswith("la ")
    assert said.reason is None
    message = said.error if route.is_native else said.error["message"]
    assert "model runner has unexpectedly stopped" in message
    if not route.is_native:
        assert said.error["type"] == "api_error"
        assert said.error["code"] == "runner_lost"
    _, data = shared_daemon.request("POST", route.path, body)
    assert b"[DONE]" not in data
    assert b'"done":true' not in data
    last = data.splitlines()[-1] if route.is_native else data.strip().split(b"\n\n")[-1]
    assert b'"error"' in last
    assert data.count(b'"error"') == 1


@each_way
@each_route
def test_a_forward_that_fails_ends_its_answer_alone(
    shared_daemon: Daemon, scripted: Scripted, route: Route, stream: bool
) -> None:
    name = f"{route}{stream}".encode()  # a model of its own: only its sixth forward fails
    model = scripted(pieces=["la "], endless=True, fail_at_forward=6, crash_on=name)
    body = route.body(model, "hi", stream=stream)
    status, data = shared_daemon.request("POST", route.path, body)
    assert status == (200 if stream else 500)
    assert (data.count(b'"error"'), b"[DONE]" in data, b'"done":true' in data) == (1, False, False)
    (error,) = raw_errors(route, data)
    assert "llama_decode gave -3" in error
    assert route.ask(shared_daemon, model).reason == "length", "the runner lives on"


def raw_errors(route: Route, data: bytes) -> list[str]:
    parts = list(map(json.loads, data.splitlines())) if route.is_native else documents(data)
    errors = [part["error"] for part in parts if "error" in part]
    return errors if route.is_native else [error["message"] for error in errors]


@each_route
def test_an_unload_lets_a_stream_end_by_itself(
    shared_daemon: Daemon, scripted: Scripted, route: Route
) -> None:
    model = scripted(pieces=["la "] * 30, step_s=0.01)
    with shared_daemon.open("POST", route.path, route.body(model, "hi", stream=True)) as response:
        first = response.readline()
        unload = {"model": model, "prompt": "", "keep_alive": 0}
        shared_daemon.json("POST", "/api/generate", unload)
        rest = first + response.read()
    assert rest.count(b"la ") == 30
    assert b'"error"' not in rest
    wait_until(lambda: model not in {m["name"] for m in shared_daemon.ps()}, "the model to go")
