"""OpenAI's older completions: prompts and their lists, and the bytes of many choices."""

import json
from typing import Any

import pytest

from localrun.core import ChatPrompt, Choice, Done, FillPrompt, Message, TextDelta, Usage
from localrun.errors import BadRequest
from localrun.wire.completions import MAX_CHOICES, decode_completions
from localrun.wire.openai import CompletionRequest, decode_chat_completions
from localrun.wire.openai_writer import Kind, OpenAIWriter


def decode(**fields: Any) -> CompletionRequest:
    return decode_completions(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def user(text: str) -> ChatPrompt:
    return ChatPrompt((Message("user", text),))


def test_a_text_is_a_users_message_and_has_one_choice():
    request = decode()
    assert request.call.prompts == (user("hi"),)
    assert (request.call.n_choices, request.call.capability) == (1, "generate")
    assert request.call.options == {"temperature": 1.0, "top_p": 1.0}
    assert (request.stream, request.include_usage) == (False, False)


def test_every_text_of_a_list_is_a_prompt():
    call = decode(prompt=["a", "", "c"], n=2).call
    assert call.prompts == (user("a"), user(""), user("c"))
    assert (call.n_each, call.n_choices) == (2, 6)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, 2]}, "prompt[0]"),
        ({"prompt": ["a", [1, 2]]}, "prompt[1]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": ["a"] * (MAX_CHOICES + 1)}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"echo": True}, "echo"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"max_tokens": "1"}, "max_tokens"),
    ],
)
def test_a_bad_field_is_named_by_its_path(fields, path):
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.path == path


def test_as_many_choices_as_the_limit_pass():
    assert decode(prompt=["a"] * 8, n=128).call.n_choices == MAX_CHOICES


def test_fields_that_ask_for_nothing_pass():
    decode(echo=False, best_of=0, logprobs=0, suffix="", logit_bias=None, n=None, user="u")
    decode(best_of=2, n=2)


def test_text_to_be_filled_in_has_two_ends():
    assert decode(prompt="def", suffix="end").call.prompts == (FillPrompt("def", "end"),)


def test_a_chat_has_n_choices():
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 3}
    assert decode_chat_completions(json.dumps(body).encode()).call.n_choices == 3


# ---- replies


def writer(kind: Kind, n_each: int = 1, *, include_usage: bool = False) -> OpenAIWriter:
    return OpenAIWriter("m", kind, n_each=n_each, include_usage=include_usage)


def done(index: int, n_prompt: int = 5, n_cached: int = 0) -> Done:
    return Done("stop", Usage(n_prompt, n_cached, completion_count=2), index=index)


def events(data: bytes) -> list[Any]:
    blocks = data.decode().removesuffix("\n\n").split("\n\n")
    texts = [block.removeprefix("data: ") for block in blocks]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def choices(data: bytes) -> list[Any]:
    return [choice for event in events(data) for choice in event["choices"]]


def test_a_completion_stream():
    out = writer("completion")
    (first,) = events(out.delta(TextDelta("a")))
    assert first["object"] == "text_completion"
    assert first["id"].startswith("cmpl-")
    assert first["choices"] == [{"index": 0, "text": "a", "finish_reason": None}]
    end, last = events(out.final(done(0), is_last=True))
    assert end["choices"] == [{"index": 0, "text": "", "finish_reason": "stop"}]
    assert last == "[DONE]"


def test_each_choice_of_a_chat_has_its_index_its_role_and_one_finish():
    out = writer("chat", 2, include_usage=True)
    pieces = [TextDelta("b", 1), TextDelta("a", 0), TextDelta("c", 1)]
    first, second, third = (choices(out.delta(piece))[0] for piece in pieces)
    assert (first["index"], first["delta"]) == (1, {"role": "assistant", "content": "b"})
    assert (second["index"], second["delta"]) == (0, {"role": "assistant", "content": "a"})
    assert (third["index"], third["delta"]) == (1, {"content": "c"})
    assert choices(out.final(done(1), is_last=False)) == [
        {"index": 1, "delta": {}, "finish_reason": "stop"}
    ]
    finish, usage, last = events(out.final(done(0), is_last=True))
    assert finish["choices"][0]["index"] == 0
    assert (usage["choices"], last) == ([], "[DONE]")


def test_the_usage_has_each_prompt_once_and_every_completion():
    dones = [done(0, 5, 1), done(1, 5, 4), done(2, 7, 2), done(3, 7, 6)]
    expected = {
        "prompt_tokens": 12,
        "completion_tokens": 8,
        "total_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    out = writer("completion", 2, include_usage=True)
    for end in reversed(dones[1:]):
        out.final(end, is_last=False)
    assert events(out.final(dones[0], is_last=True))[-2]["usage"] == expected
    whole = json.loads(writer("completion", 2).whole([Choice("x", end) for end in dones]))
    assert whole["usage"] == expected
    assert whole["choices"][3] == {"index": 3, "text": "x", "finish_reason": "stop"}
