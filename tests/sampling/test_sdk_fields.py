"""Every field that the current openai SDK can send, alone: it works, is harmless, or is refused by
its name; and what the SDKs make of answers and errors."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import ollama
import openai
import pytest
from live import Daemon
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatFields
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionFields

Scripted = Callable[..., str]
Kind = Literal["chat", "completion"]
# `ok` answers; whether the field has an effect is tested where the field is at home.
Outcome = Literal["ok", "refused"]

FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}

SHARED: dict[str, list[tuple[Any, Outcome]]] = {
    "frequency_penalty": [(0.5, "ok"), (-2, "ok")],
    "logit_bias": [({"5": -100}, "ok"), ({}, "ok"), ({"5": "much"}, "refused")],
    "max_tokens": [(3, "ok"), (0, "ok"), ("3", "refused"), (-3, "refused")],
    "n": [(3, "ok"), (0, "refused"), (129, "refused")],
    "presence_penalty": [(0.5, "ok")],
    "seed": [(7, "ok"), (-1, "ok"), ("seven", "refused")],
    "stop": [("x", "ok"), (["x", "y"], "ok"), ([], "ok"), ("", "ok"), ([1], "refused")],
    "stream_options": [({"include_usage": True}, "ok"), ({"include_obfuscation": False}, "ok")],
    "temperature": [(0, "ok"), (2, "ok"), (-1, "refused"), ("hot", "refused")],
    "top_p": [(0.5, "ok"), (0, "ok"), (2, "refused")],
    "user": [("somebody", "ok")],
}
CHAT: dict[str, list[tuple[Any, Outcome]]] = SHARED | {
    "audio": [({"voice": "alloy", "format": "wav"}, "ok")],  # of no use without its modality
    "function_call": [("none", "ok"), ("auto", "ok"), ({"name": "f"}, "refused")],
    "functions": [([], "ok"), ([FUNCTION], "refused")],
    "logprobs": [(True, "ok"), (False, "ok"), ("yes", "refused")],
    "max_completion_tokens": [(3, "ok"), ("3", "refused")],
    "metadata": [({"a": "b"}, "ok")],
    "modalities": [(["text"], "ok"), (["text", "audio"], "refused")],
    "moderation": [({"model": "omni-moderation-latest"}, "ok")],
    "parallel_tool_calls": [(True, "ok"), (False, "ok")],
    "prediction": [({"type": "content", "content": "hi"}, "ok")],
    "prompt_cache_key": [("k", "ok")],
    "prompt_cache_options": [({"mode": "auto"}, "ok")],
    "prompt_cache_retention": [("24h", "ok")],
    "reasoning_effort": [("none", "ok"), ("low", "refused")],
    "response_format": [({"type": "text"}, "ok"), (SCHEMA, "ok")],
    "safety_identifier": [("s", "ok")],
    "service_tier": [("auto", "ok")],
    "store": [(True, "ok")],
    "tool_choice": [("none", "ok"), ("auto", "ok"), ("required", "refused"), (TOOL, "refused")],
    "tools": [([], "ok"), ([TOOL], "refused")],
    "top_logprobs": [(0, "ok"), (3, "refused"), (21, "refused")],
    "verbosity": [("low", "ok")],
    "web_search_options": [({}, "refused")],
}
COMPLETION: dict[str, list[tuple[Any, Outcome]]] = SHARED | {
    "best_of": [(1, "ok"), (3, "refused")],
    "echo": [(False, "ok"), (True, "refused")],
    "logprobs": [(0, "ok"), (5, "ok"), (20, "ok"), (21, "refused")],
    "suffix": [("", "ok"), ("end", "refused")],
}
ROWS: list[tuple[Kind, str, Any, Outcome]] = [
    *(("chat", name, *row) for name, rows in CHAT.items() for row in [*rows, (None, "ok")]),
    *(
        ("completion", name, *row)
        for name, rows in COMPLETION.items()
        for row in [*rows, (None, "ok")]
    ),
]


@pytest.fixture(scope="module")
def sdk(shared_daemon: Daemon) -> Iterator[openai.OpenAI]:
    """The client, which would try a 5xx again."""
    url = f"{shared_daemon.url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def ask(sdk: openai.OpenAI, kind: Kind, model: str, **fields: Any) -> Any:
    if kind == "chat":
        messages = [{"role": "user", "content": "hi"}]
        return sdk.chat.completions.create(model=model, messages=messages, **fields)
    return sdk.completions.create(model=model, prompt="hi", **fields)


def test_the_tables_have_every_field_of_the_sdk() -> None:
    assert set(CHAT) == set(ChatFields.__annotations__) - {"model", "messages"}
    assert set(COMPLETION) == set(CompletionFields.__annotations__) - {"model", "prompt"}


@pytest.mark.parametrize(
    ("kind", "name", "value", "outcome"), ROWS, ids=[f"{k}-{n}-{v}"[:50] for k, n, v, _ in ROWS]
)
def test_each_field_alone_works_is_harmless_or_is_refused_by_its_name(
    sdk: openai.OpenAI, scripted: Scripted, kind: Kind, name: str, value: Any, outcome: Outcome
) -> None:
    model = scripted(pieces=["one ", "two"])
    if outcome == "refused":
        with pytest.raises(openai.BadRequestError) as caught:
            ask(sdk, kind, model, **{name: value})
        assert (caught.value.param or "").partition("[")[0].partition(".")[0] == name
        return
    answer = ask(sdk, kind, model, **{name: value})
    n_expected = value if name == "n" and value else 1
    assert len(answer.choices) == n_expected
    assert {choice.finish_reason for choice in answer.choices} <= {"stop", "length"}
    type(answer).model_validate(answer.model_dump(warnings="error"))


def test_of_two_limits_the_newer_name_counts(sdk: openai.OpenAI, scripted: Scripted) -> None:
    model = scripted(pieces=["x"], endless=True)
    for fields, n in (
        ({"max_completion_tokens": 10}, 10),
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 10, "max_tokens": 20}, 10),
        ({"max_completion_tokens": 20, "max_tokens": 10}, 20),
    ):
        answer = ask(sdk, "chat", model, **fields)
        assert answer.usage.completion_tokens == n
        assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_the_sdk_reads_logprobs_streamed_and_whole_for_each_choice(
    sdk: openai.OpenAI, scripted: Scripted, kind: Kind
) -> None:
    model = scripted(pieces=["a", b"\xf0\x9f", b"\x99\x82"], logprobs=[-0.25, -0.5, -0.75])
    fields = {"logprobs": True, "top_logprobs": 2} if kind == "chat" else {"logprobs": 2}
    whole = ask(sdk, kind, model, n=2, **fields)
    chunks = list(ask(sdk, kind, model, n=2, stream=True, **fields))
    for index in range(2):
        logprobs = whole.choices[index].logprobs
        streamed = [
            choice.logprobs
            for chunk in chunks
            for choice in chunk.choices
            if choice.index == index and choice.logprobs
        ]
        if kind == "chat":
            tokens = logprobs.content
            assert [token.logprob for token in tokens] == [-0.25, -0.5, -0.75]
            assert b"".join(bytes(token.bytes) for token in tokens) == "a🙂".encode()
            assert [len(token.top_logprobs) for token in tokens] == [2, 2, 2]
            assert [token for part in streamed for token in part.content] == tokens
        else:
            assert logprobs.tokens == ["a", "bytes:\\xf0\\x9f", "bytes:\\x99\\x82"]
            assert logprobs.token_logprobs == [-0.25, -0.5, -0.75]
            assert logprobs.text_offset == [0, 1, 1]
            assert [len(top) for top in logprobs.top_logprobs] == [2, 2, 2]
            assert [o for part in streamed for o in part.text_offset] == logprobs.text_offset


def test_the_ollama_client_reads_logprobs_streamed_and_whole(
    shared_daemon: Daemon, scripted: Scripted
) -> None:
    model = scripted(pieces=["one ", "two"], logprobs=[-0.25, -0.5])
    client = ollama.Client(host=shared_daemon.url)
    try:
        whole = client.generate(model, "hi", logprobs=True, top_logprobs=2)
        parts = list(client.generate(model, "hi", logprobs=True, top_logprobs=2, stream=True))
    finally:
        client._client.close()
    assert whole.logprobs is not None
    assert [(token.token, token.logprob) for token in whole.logprobs] == [
        ("one ", -0.25),
        ("two", -0.5),
    ]
    assert [len(token.top_logprobs or ()) for token in whole.logprobs] == [2, 2]
    assert [token for part in parts for token in part.logprobs or ()] == whole.logprobs


# ---- content in parts


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    "content",
    [
        "ab",
        [{"type": "text", "text": "ab"}],
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        [{"type": "text", "text": "ab"}, {"type": "text", "text": None}],
        [{"type": "refusal", "refusal": "a"}, {"type": "text", "text": "b"}],
    ],
    ids=["text", "one part", "two parts", "a null part", "a refusal"],
)
def test_parts_are_the_text_that_they_spell_in_every_role_and_both_dialects(
    shared_daemon: Daemon, scripted: Scripted, role: str, content: Any
) -> None:
    template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    model = scripted(echo=True, chat_template=template)
    turns = [{"role": role, "content": content}, {"role": "user", "content": "end"}]
    body = {"model": model, "messages": turns, "stream": False}
    shown = "system" if role == "developer" else role
    openai_answer = shared_daemon.json("POST", "/v1/chat/completions", body)
    text = openai_answer["choices"][0]["message"]["content"]
    assert text == f"[{shown}:ab][user:end]"
    if role != "developer":
        assert shared_daemon.json("POST", "/api/chat", body)["message"]["content"] == text


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ([{"type": "odd"}], "messages[0].content[0].type"),
        ([None], "messages[0].content[0]"),
        ([{"type": "image_url", "image_url": {"url": "data:,"}}], "messages[0].content[0]"),
        (5, "messages[0].content"),
    ],
)
def test_parts_that_are_no_text_are_named(
    shared_daemon: Daemon, scripted: Scripted, content: Any, path: str
) -> None:
    turns = [{"role": "user", "content": content}]
    body = {"model": scripted(pieces=["a"]), "messages": turns}
    error = shared_daemon.json("POST", "/v1/chat/completions", body, status=400)["error"]
    assert error["param"] == path


def test_content_without_parts_is_empty(shared_daemon: Daemon, scripted: Scripted) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    model = scripted(echo=True, chat_template=template)
    turns = [{"role": "user", "content": []}]
    for path in ("/v1/chat/completions", "/api/chat"):
        body = {"model": model, "messages": turns, "stream": False}
        assert b"[]" in shared_daemon.request("POST", path, body)[1]


# ---- errors on the way


def test_a_broken_stream_raises_in_both_sdks_with_its_message(
    shared_daemon: Daemon, sdk: openai.OpenAI, scripted: Scripted
) -> None:
    model = scripted(pieces=["la "], endless=True, step_s=0.01, crash_at_forward=6)
    for kind in ("chat", "completion"):
        with pytest.raises(openai.APIError, match="unexpectedly stopped"):
            list(ask(sdk, kind, model, stream=True))
    client = ollama.Client(host=shared_daemon.url)
    try:
        for stream in (
            client.generate(model, "hi", stream=True),
            client.chat(model, [{"role": "user", "content": "hi"}], stream=True),
        ):
            with pytest.raises(ollama.ResponseError, match="unexpectedly stopped"):
                list(stream)
    finally:
        client._client.close()


@pytest.mark.parametrize("fields", [{}, {"stop": ["two"]}, {"max_tokens": 1}], ids=str)
@pytest.mark.parametrize("usage", [True, False])
def test_the_sdks_accumulator_builds_what_the_whole_answer_is(
    sdk: openai.OpenAI, scripted: Scripted, fields: dict[str, Any], usage: bool
) -> None:
    model = scripted(pieces=["one ", "two"])
    messages: Any = [{"role": "user", "content": "hi"}]
    whole = sdk.chat.completions.create(model=model, messages=messages, **fields)
    options: Any = {"include_usage": True} if usage else openai.omit
    with sdk.chat.completions.stream(
        model=model, messages=messages, stream_options=options, **fields
    ) as stream:
        for _ in stream:
            pass
        built = stream.current_completion_snapshot  # the final one refuses what was cut short
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason
    if usage:
        assert built.usage == whole.usage
