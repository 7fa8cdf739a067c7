"""What travels between the daemon and a runner arrives as it was sent."""

import msgspec
import pytest

from localrun.core import (
    ChatPrompt,
    Likelihood,
    Message,
    SamplingParams,
    TextDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from localrun.ipc.messages import (
    Outbox,
    Progressed,
    Submit,
    decode_for_daemon,
    decode_for_runner,
    encode,
)

INTEGERS = [
    *(0, -1, 2**63 - 1, -(2**63), 2**64 - 1),
    *(2**64, -(2**63) - 1, 123456789012345678901234567890, -(10**4000)),
    *(2**71 - 1, 2**71, -(2**71), -(2**71) - 1),
]


@pytest.mark.parametrize("number", INTEGERS)
def test_integers_of_any_length_arrive_exactly(number: int) -> None:
    arguments = {"n": number, "list": [{"n": number, "f": 1.5, "none": None}]}
    call = ToolCall("f", arguments, "call_1")
    logprob = TokenLogprob(b"\xff", -1.0, (Likelihood(b"\xfe", -2.0),))
    outbox = Outbox(
        (
            Progressed(1, TextDelta("x", logprobs=(logprob,))),
            Progressed(1, ToolCallDelta(call, 3)),
        ),
        2,
    )
    assert decode_for_daemon(encode(outbox)) == outbox
    sampling = SamplingParams(logit_bias={7: -1.0}, stop=("a",))
    messages = (Message("assistant", tool_calls=(call,)),)
    tools = (Tool("f", "", {"maximum": number}),)
    submit = Submit(1, ChatPrompt(messages, tools=tools), sampling, 100)
    assert decode_for_runner(encode(submit)) == submit


def test_other_extensions_are_foreign() -> None:
    foreign = msgspec.msgpack.encode({"items": msgspec.msgpack.Ext(7, b"x")})
    with pytest.raises(msgspec.DecodeError):
        decode_for_daemon(foreign)
