"""Requests for a chat in both dialects, as far as a test cares, and their prompts."""

import json
from typing import Any

import pytest

from localrun.core import Call, ChatPrompt
from localrun.wire.native import decode_chat
from localrun.wire.openai import decode_chat_completions

HI = [{"role": "user", "content": "hi"}]


def native(**fields: Any) -> Call:
    return decode_chat(json.dumps({"model": "m", "messages": HI, **fields}).encode()).call


def openai(**fields: Any) -> Call:
    body = {"model": "m", "messages": HI, **fields}
    return decode_chat_completions(json.dumps(body).encode()).call


BOTH = pytest.mark.parametrize("decode", [native, openai])


def prompt(call: Call) -> ChatPrompt:
    (found,) = call.prompts
    assert isinstance(found, ChatPrompt)
    return found
