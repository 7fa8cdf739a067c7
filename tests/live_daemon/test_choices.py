"""Several choices in one request: their order, their waves, and one end for all of them."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, chat_body, wait_until

Start = Callable[..., Daemon]
Fake = Callable[..., Path]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
each_way = pytest.mark.parametrize("stream", [True, False])


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, **fields}


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def events(data: bytes) -> list[Any]:
    """The parsed events of a stream; `[DONE]` stays text."""
    texts = [block.removeprefix("data: ") for block in data.decode().split("\n\n") if block]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def texts_of(daemon: Daemon, body: dict[str, Any]) -> list[str]:
    """The texts by index; each choice must have one finish and the stream one end."""
    status, data = daemon.request("POST", COMPLETIONS, body)
    assert status == 200, data
    if not body.get("stream"):
        choices = json.loads(data)["choices"]
        assert [choice["index"] for choice in choices] == list(range(len(choices)))
        return [choice["text"] for choice in choices]
    *chunks, last = events(data)
    assert last == "[DONE]"
    texts: dict[int, str] = {}
    ended: list[int] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        assert choice["index"] not in ended
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        if choice["finish_reason"]:
            ended.append(choice["index"])
    assert sorted(ended) == sorted(texts) == list(range(len(texts)))
    return [texts[index] for index in range(len(texts))]


@each_way
def test_more_choices_than_slots_come_in_waves_whole_and_in_order(
    start_daemon: Start, fake_model: Fake, stream: bool
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(echo=True, step_s=0.001))
    lists = [[f"{name}{'x' * number}" for number in range(7)] for name in "abc"]
    first, second, third = (completion(texts, n=2, stream=stream) for texts in lists)
    with ThreadPoolExecutor() as pool:
        leaving = daemon.open("POST", COMPLETIONS, {**third, "stream": True})
        asked = [pool.submit(texts_of, daemon, body) for body in (first, second)]
        assert leaving.read(1)
        leaving.close()
        answers = [future.result() for future in asked]
    assert answers == [[text for text in texts for _ in range(2)] for texts in lists[:2]]
    wait_until(lambda: daemon.n_busy() == 0, "all slots to be free")


def test_a_later_request_is_not_behind_all_choices_of_an_earlier_one(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=1)
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.005))
    # More than the hang guard would wait for, if they all went first.
    body = completion(["hi"] * 1000, max_tokens=16, stream=True)
    with daemon.open("POST", COMPLETIONS, body) as response:
        assert response.read(1)
        assert daemon.chat("m", "hi", num_predict=1)["done"]
    wait_until(lambda: daemon.n_busy() == 0, "the slot to be free")


@each_way
def test_choices_of_a_chat_have_an_end_each_and_one_usage(
    start_daemon: Start, fake_model: Fake, stream: bool
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(pieces=["one ", "two"]))
    body = chat("hello", n=3, stream=stream, stream_options={"include_usage": True})
    _, data = daemon.request("POST", CHAT, body)
    if stream:
        *chunks, usage, last = events(data)
        assert last == "[DONE]"
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        assert sorted(part["index"] for part in parts if part["finish_reason"]) == [0, 1, 2]
        assert sorted(part["index"] for part in parts if "role" in part["delta"]) == [0, 1, 2]
        texts = [
            "".join(part["delta"].get("content", "") for part in parts if part["index"] == number)
            for number in range(3)
        ]
    else:
        usage = json.loads(data)
        texts = [choice["message"]["content"] for choice in usage["choices"]]
    assert texts == ["one two"] * 3
    assert usage["usage"]["prompt_tokens"] == 5
    assert usage["usage"]["completion_tokens"] == 6


@each_way
def test_a_client_that_leaves_ends_all_its_choices(
    start_daemon: Start, fake_model: Fake, stream: bool
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(pieces=["la "], endless=True, step_s=0.005))
    connection = daemon.connect()
    connection.request("POST", CHAT, json.dumps(chat("hi", n=5, stream=stream)))
    wait_until(lambda: daemon.n_busy() == 2, "both slots to be taken")
    connection.close()
    wait_until(lambda: daemon.n_busy() == 0, "both slots to be free")


@each_way
@pytest.mark.parametrize("n_slots", [1, 2])
def test_a_prompt_that_does_not_fit_refuses_the_whole_list(
    start_daemon: Start, fake_model: Fake, n_slots: int, stream: bool
) -> None:
    daemon = start_daemon(NUM_PARALLEL=n_slots, CONTEXT_LENGTH=50, TRUNCATE="error")
    daemon.create("m", fake_model(echo=True))
    body = completion(["a", "y" * 60], stream=stream)
    status, data = daemon.request("POST", COMPLETIONS, body)
    # With one slot its turn comes when the other choice has been sent.
    is_late = stream and n_slots == 1
    assert status == (200 if is_late else 400)
    error = events(data)[-1] if is_late else json.loads(data)
    assert error["error"]["code"] == "context_length_exceeded"
    assert b"[DONE]" not in data


# ---- the runner dies


def test_choices_that_only_waited_are_answered_by_a_fresh_runner(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=1)
    daemon.create("m", fake_model(echo=True, step_s=0.02))
    first = daemon.stream("/api/chat", chat_body("m", "x" * 1000))
    next(first)
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(texts_of, daemon, completion(["a", "b", "c"], n=2))
        wait_until(lambda: daemon.ps()[0]["queued"] == 1, "the list to wait as one request")
        daemon.runners()[0].kill()
        assert waits.result() == ["a", "a", "b", "b", "c", "c"]
    assert "error" in list(first)[-1]


@each_way
def test_choices_that_had_begun_end_with_one_error(
    start_daemon: Start, fake_model: Fake, stream: bool
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(echo=True, step_s=0.002, crash_on=b"poison"))
    # Its turn comes when the others have said something.
    prompts = ["a" * 100, "b", "c", "poison"]
    status, data = daemon.request("POST", COMPLETIONS, completion(prompts, stream=stream))
    assert status == (200 if stream else 500)
    *before, last = events(data) if stream else [json.loads(data)]
    assert last["error"]["code"] == "runner_lost"
    assert not any("error" in event for event in before)
    assert b"[DONE]" not in data
    assert daemon.chat("m", "afterwards")["message"]["content"] == "afterwards"


def test_choices_one_of_which_kills_its_runner_twice_fail_together(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=2)
    daemon.create("m", fake_model(echo=True, crash_on=b"poison"))
    body = completion(["poison", "innocent"])
    error = daemon.json("POST", COMPLETIONS, body, status=500)["error"]
    assert error["code"] == "runner_lost"
    assert daemon.log().count("is gone with") == 2
    assert texts_of(daemon, completion(["innocent"], n=2)) == ["innocent"] * 2
