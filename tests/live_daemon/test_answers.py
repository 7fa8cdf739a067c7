"""What an answer consists of: characters, ends, counts, lengths, the start of the prompt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, chat_body, wait_until

from localrun.runner.fake_script import FakeVocab

Start = Callable[..., Daemon]
Fake = Callable[..., Path]


def sse(daemon: Daemon, body: dict[str, Any]) -> list[Any]:
    """The parsed data lines of a /v1/chat/completions stream; `[DONE]` stays text."""
    with daemon.open("POST", "/v1/chat/completions", {**body, "stream": True}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = response.read().decode()
    events = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


# ---- characters

SPLIT = {
    "emoji bytewise": ([b"\xf0", b"\x9f", b"\x99", b"\x82"], "🙂"),
    "emoji halves": ([b"\xf0\x9f", b"\x99\x82"], "🙂"),
    "family": (["👨‍👩‍👧".encode()[i : i + 1] for i in range(18)], "👨‍👩‍👧"),
    "cjk": (["漢字".encode()[i : i + 1] for i in range(6)], "漢字"),
    "invalid": ([b"a", b"\xff", b"b"], "a\ufffdb"),
    "half at the end": ([b"cut ", b"\xf0\x9f"], "cut "),
}


@pytest.mark.parametrize(("pieces", "expected"), SPLIT.values(), ids=SPLIT)
def test_characters_arrive_whole_in_every_dialect(
    start_daemon: Start, fake_model: Fake, pieces: list[bytes], expected: str
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=pieces))
    parts = list(daemon.stream("/api/chat", chat_body("m", "hi")))
    assert "".join(part["message"]["content"] for part in parts) == expected
    assert daemon.chat("m", "hi")["message"]["content"] == expected
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    chunks = [c for c in sse(daemon, body) if c != "[DONE]"]
    deltas = [choice["delta"].get("content", "") for c in chunks for choice in c["choices"]]
    assert "".join(deltas) == expected


def test_a_length_limit_inside_a_character_leaves_no_half(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=[b"a", b"\xf0\x9f", b"\x99\x82"]))
    answer = daemon.chat("m", "hi", num_predict=2)
    assert (answer["message"]["content"], answer["done_reason"]) == ("a", "length")


# ---- stop strings

STOPS: dict[str, tuple[list[str], Any, str, str]] = {
    "over pieces": (["The quick br", "own f", "ox jumps"], ["own fox"], "The quick br", "stop"),
    "near miss": (["The quick br", "own f", "ix jumps"], ["own fox"], "", "stop"),
    "shared prefix": (["a ", "#", "#", "#END"], ["##", "###END"], "a ", "stop"),
    "at once": (["STOP", "more"], ["STOP"], "", "stop"),
    "a lone string": (["a", "b", "c"], "b", "a", "stop"),
    "inside a character": (["x", "é", "y"], ["é"], "x", "stop"),
}


@pytest.mark.parametrize(("pieces", "stop", "expected", "reason"), STOPS.values(), ids=STOPS)
def test_nothing_of_a_stop_string_is_sent(
    start_daemon: Start,
    fake_model: Fake,
    pieces: list[str],
    stop: Any,
    expected: str,
    reason: str,
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=pieces))
    expected = expected or ("".join(pieces) if "ix" in "".join(pieces) else "")
    parts = list(daemon.stream("/api/chat", chat_body("m", "hi", stop=stop)))
    assert "".join(part["message"]["content"] for part in parts) == expected
    assert parts[-1]["done_reason"] == reason
    assert daemon.chat("m", "hi", stop=stop)["message"]["content"] == expected
    wait_until(lambda: daemon.n_busy() == 0, "the slot to be free")


def test_a_stop_string_ends_an_endless_answer_and_frees_its_slot(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["la ", "stop"], endless=True))
    assert daemon.chat("m", "hi", stop=["stop"])["message"]["content"] == "la "
    wait_until(lambda: daemon.n_busy() == 0, "the slot to be free")


# ---- the end of a stream


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize(("max_tokens", "reason"), [(None, "stop"), (2, "length")])
def test_openai_chunks_follow_the_letter(
    start_daemon: Start, fake_model: Fake, include_usage: bool, max_tokens: int | None, reason: str
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["one ", "two ", "three"]))
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if max_tokens:
        body["max_completion_tokens"] = max_tokens
    if include_usage:
        body["stream_options"] = {"include_usage": True}
    events = sse(daemon, body)
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    usages = [chunk for chunk in chunks if not chunk["choices"]]
    assert len(usages) == include_usage
    if include_usage:
        assert chunks[-1] is usages[0]
        assert usages[0]["usage"]["completion_tokens"] == (max_tokens or 3)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1] == {"index": 0, "delta": {}, "finish_reason": reason}
    assert ["role" in choice["delta"] for choice in choices] == [True] + [False] * (
        len(choices) - 1
    )
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_headers_leave_before_the_first_token_and_tell_proxies_not_to_buffer(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon()
    # The prompt takes longer than the hang guard: only headers that do not wait for it come.
    daemon.create("m", fake_model(pieces=["x"], row_s=60))
    for path in ("/api/chat", "/v1/chat/completions"):
        with daemon.open("POST", path, chat_body("m", "hi")) as response:
            assert response.status == 200
            assert response.headers["X-Accel-Buffering"] == "no"
            assert response.headers["Cache-Control"] == "no-cache"


def test_every_token_is_sent_when_it_is_there(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    # Each step is longer than what a token needs to get here, so tokens cannot have been joined.
    daemon.create("m", fake_model(pieces=["la "] * 20, step_s=0.02))
    parts = list(daemon.stream("/api/chat", chat_body("m", "hi")))
    texts = [part["message"]["content"] for part in parts if not part["done"]]
    assert texts == ["la "] * 20


# ---- num_predict

PREDICT: list[tuple[Any, int, str]] = [
    (0, 0, "length"),
    (1, 1, "length"),
    (-1, 90, "length"),
    (-2, 90, "length"),
    (None, 90, "length"),
]


@pytest.mark.parametrize(("value", "n_expected", "reason"), PREDICT)
def test_num_predict_means_what_the_table_says(
    start_daemon: Start, fake_model: Fake, value: Any, n_expected: int, reason: str
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=100)
    daemon.create("m", fake_model(pieces=["x"], endless=True))
    prompt = "0123456789"  # ten tokens of a window of a hundred
    chat = daemon.chat("m", prompt, num_predict=value)
    body = {"model": "m", "prompt": prompt, "stream": False, "options": {"num_predict": value}}
    generate = daemon.json("POST", "/api/generate", body)
    for answer in (chat, generate):
        assert answer.get("eval_count", 0) == n_expected
        assert answer["done_reason"] == reason
    if value is None or value >= 0:
        openai = {
            "model": "m",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": value,
        }
        answer = daemon.json("POST", "/v1/chat/completions", openai)
        assert answer["usage"]["completion_tokens"] == n_expected
        assert answer["choices"][0]["finish_reason"] == reason


def test_other_negative_lengths_are_refused_with_the_field(daemon: Daemon) -> None:
    error = daemon.json("POST", "/api/chat", chat_body("m", "hi", num_predict=-3), status=400)
    assert "num_predict" in error["error"]


# ---- the start of the prompt

BOS_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
PLAIN_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [BOS_TEMPLATE, PLAIN_TEMPLATE])
def test_a_prompt_has_one_bos_if_the_model_or_its_template_wants_one(
    start_daemon: Start, fake_model: Fake, adds_bos: bool, template: str
) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(pieces=["x"], chat_template=template, adds_bos=adds_bos))
    wants_bos = adds_bos or template is BOS_TEMPLATE
    body = {"model": "m", "prompt": "hi", "stream": False}
    answer = daemon.json("POST", "/api/generate", body)
    tokens = answer["context"][: answer["prompt_eval_count"]]
    assert tokens == [FakeVocab.bos] * wants_bos + list(b"hi")
    for typed, n_bos in (("hi", adds_bos), ("<bos>hi", 1)):
        raw = {"model": "m", "prompt": typed, "raw": True, "stream": False}
        assert daemon.json("POST", "/api/generate", raw)["prompt_eval_count"] == 2 + n_bos


def test_real_models_get_the_bos_that_their_files_ask_for(
    start_daemon: Start, smollm2_path: Path, gemma3_path: Path
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=256, NUM_PARALLEL=1)
    daemon.create("smollm2", smollm2_path)  # adds none; its template starts with <|im_start|>
    daemon.create("gemma3", gemma3_path)  # adds <bos>, id 2; has no template
    options = {"num_predict": 1}
    for model, raw, start in (
        ("smollm2", False, [1, 9690]),
        ("gemma3", False, [2, 3151]),
        ("gemma3", True, None),
    ):
        body = {"model": model, "prompt": "one", "raw": raw, "stream": False, "options": options}
        answer = daemon.json("POST", "/api/generate", body)
        if start is None:
            assert answer["prompt_eval_count"] == 2
        else:
            assert answer["context"][:2][0] == start[0]
            assert answer["context"].count(start[0]) == (1 if model == "gemma3" else 3)


# ---- what does not fit


def test_a_prompt_above_the_window_is_refused_with_the_numbers(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=50, TRUNCATE="error")
    daemon.create("m", fake_model(pieces=["x"]))
    error = daemon.json("POST", "/api/chat", chat_body("m", "y" * 60), status=400)["error"]
    assert "60" in error
    assert "50" in error
    openai = {"model": "m", "messages": [{"role": "user", "content": "y" * 60}]}
    error = daemon.json("POST", "/v1/chat/completions", openai, status=400)["error"]
    assert error["code"] == "context_length_exceeded"


def test_the_oldest_turns_make_room_and_system_stays(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=50)
    daemon.create("m", fake_model(echo=True, chat_template=PLAIN_TEMPLATE))
    expected = "S:bbbbbbbbbbbbbbblast"
    messages = [
        {"role": "system", "content": "S:"},
        {"role": "user", "content": "a" * 30},
        {"role": "assistant", "content": "b" * 15},
        {"role": "user", "content": "last"},
    ]
    body = {"model": "m", "messages": messages, "stream": False}
    assert daemon.json("POST", "/api/chat", body)["message"]["content"] == expected


def test_a_window_is_what_each_request_asks_for_without_another_load(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=100)
    daemon.create("m", fake_model(pieces=["x"], endless=True))
    assert daemon.chat("m", "12345")["eval_count"] == 95
    (runner,) = daemon.runners()
    assert daemon.chat("m", "12345", num_ctx=20)["eval_count"] == 15
    assert daemon.chat("m", "12345", num_ctx=200)["eval_count"] == 195
    assert [r.pid for r in daemon.runners()] == [runner.pid]


def test_context_of_an_answer_goes_on_in_the_next(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon()
    daemon.create("m", fake_model(echo=True))
    body: dict[str, Any] = {"model": "m", "prompt": "ab", "stream": False}
    first = daemon.json("POST", "/api/generate", body)
    second = daemon.json("POST", "/api/generate", {**body, "context": first["context"]})
    assert first["response"] == "ab"
    assert second["response"] == "ababab"
