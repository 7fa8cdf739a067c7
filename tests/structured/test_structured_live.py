"""Answers of a real model to a real daemon: they are what was asked for, or there are none."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hostile_schemas import REFUSED as HOSTILE
from live import Daemon, chat_body, wait_until
from schema_features import REFUSED, SUPPORTED, of

MODEL = "smollm2:135m"
QUESTION = "Describe a person as JSON."
N_RUNS = 10 if os.environ.get("LOCALRUN_TEST_FULL") == "1" else 2

PERSON = {
    "type": "object",
    "properties": {
        "z_reason": {"type": "string", "maxLength": 30},
        "a_answer": {"type": "integer"},
        "m_note": {"enum": ["x", "y"]},
    },
    "required": ["z_reason", "a_answer", "m_note"],
}


@pytest.fixture
def daemon(smollm2_daemon: Daemon) -> Iterator[Daemon]:
    """The session's, which must have the same runner at the end of each test."""
    smollm2_daemon.chat(MODEL, "hi", num_predict=1)
    before = [process.pid for process in smollm2_daemon.runners()]
    yield smollm2_daemon
    assert [process.pid for process in smollm2_daemon.runners()] == before


def ask(
    daemon: Daemon, form: Any, *, status: int = 200, question: str = QUESTION, **options: Any
) -> Any:
    options = {"num_predict": 200, **options}
    body = {**chat_body(MODEL, question, stream=False, **options), "format": form}
    return daemon.json("POST", "/api/chat", body, status=status)


def biased(daemon: Daemon, texts: list[str], bias: float) -> dict[str, float]:
    """The bias for each of the texts that is one token."""
    asked = ({"model": MODEL, "content": text} for text in texts)
    found = [daemon.json("POST", "/api/tokenize", body)["tokens"] for body in asked]
    biases = {str(tokens[0]): bias for tokens in found if len(tokens) == 1}
    assert biases
    return biases


def content(reply: dict[str, Any]) -> str:
    text: str = reply["message"]["content"]
    return text


@pytest.mark.soak
@pytest.mark.parametrize("name", SUPPORTED)
def test_every_answer_matches_its_schema(daemon: Daemon, name: str) -> None:
    schema = SUPPORTED[name]
    for seed in range(N_RUNS):
        reply = ask(daemon, schema, temperature=1, seed=seed)
        if reply["done_reason"] == "length":
            continue
        jsonschema.Draft202012Validator(schema).validate(json.loads(content(reply)))


def test_what_cannot_be_expressed_is_refused_and_nothing_else_notices(daemon: Daemon) -> None:
    for schema, path, part in REFUSED:
        where = f"format.{path}" if path else "format"
        reply = ask(daemon, schema, status=400)
        assert reply["error"].startswith(f"{where}: "), reply
        assert part in reply["error"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_of_bad_will_is_refused_and_the_runner_is_the_same(
    daemon: Daemon, name: str
) -> None:
    assert "error" in ask(daemon, HOSTILE[name], status=400)


def test_a_schema_nested_beyond_measure_is_refused(daemon: Daemon) -> None:
    body = b'{"model":"%b","prompt":"x","format":%b{}%b}'
    body %= MODEL.encode(), b'{"items":' * 5000, b"}" * 5000
    assert "deep" in daemon.json("POST", "/api/generate", body, status=400)["error"]


def test_openai_hears_of_the_place_in_its_own_words(daemon: Daemon) -> None:
    schema = of({"type": "string", "pattern": "(?<=x)*"})
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": MODEL, "messages": messages, "response_format": form}
    error = daemon.json("POST", "/v1/chat/completions", body, status=400)["error"]
    assert error["param"] == "response_format.json_schema.schema.properties.a.pattern"
    assert "look-around" in error["message"]


SET = {"type": "array", "items": {"type": "integer"}, "maxItems": 3, "uniqueItems": True}
PAIR = {
    "type": "object",
    "properties": {"a": SET, "n": {"type": "integer", "format": "int32"}, "u": {"enum": ["x"]}},
    "required": ["a", "n", "u"],
}


def forced(strict: bool, **schema: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": PAIR | schema, "strict": strict}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "max_tokens": 200,
        "seed": 3,
    }


def test_a_forced_call_keeps_what_can_be_kept_and_the_log_tells_of_the_rest(daemon: Daemon) -> None:
    reply = daemon.json("POST", "/v1/chat/completions", forced(False))
    call, *_ = reply["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    jsonschema.Draft202012Validator(
        PAIR | {"properties": {**PAIR["properties"], "a": {}}}
    ).validate(arguments)
    assert all(isinstance(one, int) for one in arguments["a"])
    told = "calls of the tool f are not held to properties.a.uniqueItems"
    wait_until(lambda: told in daemon.log(), "the place in the log")


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_tells_what_a_forced_call_is_not_held_to(daemon: Daemon, stream: bool) -> None:
    flat = {"type": "function", "name": "f", "parameters": PAIR}
    tool = {"name": "f", "input_schema": PAIR}
    for path, fields in (
        ("/v1/chat/completions", forced(False)),
        ("/v1/responses", {"input": QUESTION, "tools": [flat], "tool_choice": "required"}),
        (
            "/v1/messages",
            {
                "messages": [{"role": "user", "content": QUESTION}],
                "tools": [tool],
                "tool_choice": {"type": "any"},
                "max_tokens": 9,
            },
        ),
    ):
        with daemon.open("POST", path, {**fields, "model": MODEL, "stream": stream}) as response:
            assert response.status == 200, response.read()
            told = response.headers["X-Localrun-Loosened-Schemas"]
            assert told == "f: properties.a.uniqueItems"
            response.read()


def test_what_is_held_to_in_whole_has_no_such_header(daemon: Daemon) -> None:
    free = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    bound = forced(False, properties={"a": {"type": "integer"}}, required=["a"]) | {"max_tokens": 9}
    for body in (free, bound):
        with daemon.open("POST", "/v1/chat/completions", body) as response:
            assert response.status == 200, response.read()
            assert "X-Localrun-Loosened-Schemas" not in response.headers
            response.read()


def test_a_strict_tool_is_refused_in_the_words_of_the_dialect(daemon: Daemon) -> None:
    error = daemon.json("POST", "/v1/chat/completions", forced(True), status=400)["error"]
    assert error["param"] == "tools[0].function.parameters.properties.a.uniqueItems"
    flat = {"type": "function", "name": "f", "parameters": PAIR, "strict": True}
    body = {"model": MODEL, "input": "hi", "tools": [flat], "tool_choice": "required"}
    error = daemon.json("POST", "/v1/responses", body, status=400)["error"]
    assert error["param"] == "tools[0].parameters.properties.a.uniqueItems"


def test_a_long_number_ends_and_so_does_the_answer(daemon: Daemon) -> None:
    biases = biased(daemon, [*"0123456789"], 50)
    reply = ask(daemon, of({"type": "number"}), num_predict=90, logit_bias=biases)
    assert reply["done_reason"] == "stop"
    json.loads(content(reply))


def test_openai_gets_every_choice_in_the_form(daemon: Daemon) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    for form in (
        {"type": "json_schema", "json_schema": {"name": "n", "schema": PERSON}},
        {"type": "json_object", "schema": PERSON},
    ):
        body = {"model": MODEL, "messages": messages, "response_format": form, "n": 3, "seed": 1}
        reply = daemon.json("POST", "/v1/chat/completions", body)
        for choice in reply["choices"]:
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


def test_keys_come_in_the_order_of_the_request(daemon: Daemon) -> None:
    for seed in range(N_RUNS):
        answer = json.loads(content(ask(daemon, PERSON, temperature=1, seed=seed)))
        assert list(answer) == ["z_reason", "a_answer", "m_note"]


def test_an_answer_ends_with_its_last_bracket(daemon: Daemon) -> None:
    reply = ask(daemon, of({"const": "x"}), temperature=0)
    assert content(reply) in ('{"a":"x"}', '{"a": "x"}')
    assert reply["done_reason"] == "stop"
    assert reply["eval_count"] <= 9


@pytest.mark.parametrize("form", ["json", PERSON], ids=["json", "schema"])
def test_a_model_that_loves_white_space_gets_little_of_it(daemon: Daemon, form: Any) -> None:
    """JSON's white space is all but sure wherever it may come, also behind the end."""
    bias = biased(daemon, [" ", "\n", "\t", "  ", "\n\n", "    "], 9)
    text = content(ask(daemon, form, temperature=0, logit_bias=bias))
    outside = "".join(text.split('"')[::2])
    # Without a schema it finds strings to fill with blanks, which are text.
    assert form == "json" or outside.count(" ") > 1
    assert not any(blanks in outside for blanks in ("\n", "\t", "  "))


def test_the_same_seed_gives_the_same_answer_and_another_one_another(daemon: Daemon) -> None:
    texts = [content(ask(daemon, PERSON, temperature=1, seed=seed)) for seed in (4, 4, 5)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 1.5},
        {"presence_penalty": 1.0, "frequency_penalty": 1.0},
        {"deterministic": True},
        {"min_p": 0.2, "typical_p": 0.5},
        {"top_k": 1},
    ],
)
def test_other_options_work_beside_it(daemon: Daemon, options: dict[str, Any]) -> None:
    reply = ask(daemon, PERSON, seed=2, **options)
    jsonschema.validate(json.loads(content(reply)), PERSON)


def test_log_probabilities_are_those_of_the_answer(daemon: Daemon) -> None:
    body = {**chat_body(MODEL, QUESTION, stream=False, temperature=1, seed=3), "format": PERSON}
    reply = daemon.json("POST", "/api/chat", {**body, "logprobs": True, "top_logprobs": 2})
    data = b"".join(bytes(entry["bytes"]) for entry in reply["logprobs"])
    assert data.decode() == content(reply)
    jsonschema.validate(json.loads(content(reply)), PERSON)


def test_a_stream_is_the_same_answer_in_pieces(daemon: Daemon) -> None:
    whole = content(ask(daemon, PERSON, temperature=0))
    body = {**chat_body(MODEL, QUESTION, temperature=0, num_predict=200), "format": PERSON}
    assert (
        "".join(piece["message"]["content"] for piece in daemon.stream("/api/chat", body)) == whole
    )


def test_many_at_once_keep_to_their_own_schemas(daemon: Daemon) -> None:
    schemas = [of({"const": f"only {n}"}) for n in range(12)]
    answers: dict[int, str] = {}

    def run(n: int) -> None:
        answers[n] = content(ask(daemon, schemas[n], temperature=1))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads(answers[n])["a"] for n in range(12)] == [f"only {n}" for n in range(12)]


def test_a_ban_of_what_the_form_needs_ends_that_request_alone(daemon: Daemon) -> None:
    bans = biased(daemon, ['"', '"x', '"x"'], -100)
    reply = ask(daemon, {"const": "x"}, status=400, logit_bias=bans)
    assert "banned" in reply["error"]
    assert daemon.chat(MODEL, "hi", num_predict=1)["done"]


def test_generate_and_completions_of_a_prompt_as_it_is(daemon: Daemon) -> None:
    body = {"model": MODEL, "prompt": "A colour:", "raw": True, "stream": False}
    reply = daemon.json("POST", "/api/generate", {**body, "format": {"enum": ["red", "blue"]}})
    assert json.loads(reply["response"]) in ("red", "blue")


def test_streams_go_on_while_a_large_schema_compiles(daemon: Daemon) -> None:
    ask(daemon, of({"const": 1}))  # the vocabulary is read once, at the first schema
    names = [f"p{i}" for i in range(900)]
    parts = {"type": "object", "properties": dict.fromkeys(names, True), "required": names}
    large = {"type": "object", "properties": {f"o{i}": parts for i in range(8)}}
    stream = daemon.stream("/api/chat", chat_body(MODEL, "Count.", num_predict=300, temperature=0))
    next(stream)
    n_meanwhile = 0
    done = threading.Event()

    def compile_it() -> None:
        ask(daemon, large, num_predict=1)
        done.set()

    thread = threading.Thread(target=compile_it)
    thread.start()
    for _piece in stream:
        n_meanwhile += not done.is_set()
    thread.join()
    assert n_meanwhile > 3


def test_a_vocabulary_of_another_kind(
    gemma3_path: Path, start_daemon: Callable[..., Daemon]
) -> None:
    daemon = start_daemon(CONTEXT_LENGTH=1024)
    daemon.create("g", gemma3_path)
    wait_until(lambda: daemon.json("GET", "/api/tags")["models"], "the model")
    schema = of({"type": "string", "maxLength": 8}) | {"required": ["a"]}
    body = {"model": "g", "prompt": "Write some JSON: ", "stream": False, "raw": True}
    for seed in range(2):
        options = {"seed": seed, "temperature": 1, "num_predict": 60}
        reply = daemon.json("POST", "/api/generate", {**body, "format": schema, "options": options})
        jsonschema.validate(json.loads(reply["response"]), schema)
