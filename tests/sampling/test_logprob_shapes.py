"""Log-probabilities in the exact form of each dialect."""

import json

from localrun.core import Choice, Done, Likelihood, TextDelta, TokenLogprob, Usage
from localrun.wire.logprobs import CompletionLogprobs
from localrun.wire.native_writer import NativeWriter
from localrun.wire.openai_writer import Kind, OpenAIWriter

HI = TokenLogprob(b"Hi", -0.5, (Likelihood(b"Yo", -0.25), Likelihood(b"<end>", -3.0)))
HALF = TokenLogprob(b"\xf0\x9f", -1.0)
DONE = Done("stop", Usage())


def native(kind: str) -> NativeWriter:
    return NativeWriter("m", "chat" if kind == "chat" else "generate", clock_ns=lambda: 0)


def openai(kind: Kind) -> OpenAIWriter:
    return OpenAIWriter("m", kind, has_logprobs=True, clock_s=lambda: 1, completion_id="c")


def test_native_has_likeliest_tokens_only_if_asked_for() -> None:
    expected = (
        b',"done":false,"logprobs":[{"token":"Hi","logprob":-0.5,"bytes":[72,105],"top_logprobs":'
        b'[{"token":"Yo","logprob":-0.25,"bytes":[89,111]},'
        b'{"token":"<end>","logprob":-3.0,"bytes":[60,101,110,100,62]}]}]}\n'
    )
    for kind in ("chat", "generate"):
        assert native(kind).delta(TextDelta("Hi", logprobs=(HI,))).endswith(expected)
        whole = json.loads(native(kind).whole([Choice("", DONE, (HALF,))]))
        assert whole["logprobs"] == [{"token": "\ufffd", "logprob": -1.0, "bytes": [240, 159]}]
        assert "logprobs" not in json.loads(native(kind).whole([Choice("", DONE)]))


def test_a_chat_has_every_key_also_when_it_says_nothing() -> None:
    entry = {"token": "\ufffd", "logprob": -1.0, "bytes": [240, 159], "top_logprobs": []}
    whole = json.loads(openai("chat").whole([Choice("", DONE, (HALF,))]))
    assert whole["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    empty = json.loads(openai("chat").whole([Choice("", DONE)]))
    assert empty["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    assert (
        openai("chat")
        .delta(TextDelta("x", logprobs=(HALF,)))
        .endswith(
            b'"delta":{"role":"assistant","content":"x"},"logprobs":{"content":[{"token":"\xef\xbf\xbd",'
            b'"logprob":-1.0,"bytes":[240,159],"top_logprobs":[]}],"refusal":null},'
            b'"finish_reason":null}]}\n\n'
        )
    )


def test_an_older_completion_has_the_token_among_the_likeliest_and_offsets_that_go_on() -> None:
    writer = openai("completion")
    first = json.loads(writer.delta(TextDelta("Hi", logprobs=(HI,))).removeprefix(b"data: "))
    assert first["choices"][0]["logprobs"] == {
        "tokens": ["Hi"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"Yo": -0.25, "<end>": -3.0, "Hi": -0.5}],
        "text_offset": [0],
    }
    second = json.loads(writer.delta(TextDelta("", logprobs=(HALF,))).removeprefix(b"data: "))
    assert second["choices"][0]["logprobs"] == {
        "tokens": ["bytes:\\xf0\\x9f"],
        "token_logprobs": [-1.0],
        "top_logprobs": None,
        "text_offset": [2],
    }


def test_of_two_tokens_with_the_same_text_the_likelier_one_is_shown() -> None:
    entry = TokenLogprob(b"a", -2.0, (Likelihood(b"a", -1.0), Likelihood(b"a", -2.0)))
    assert CompletionLogprobs().object_of([entry])["top_logprobs"] == [{"a": -1.0}]
