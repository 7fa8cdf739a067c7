"""Log-probabilities of tokens in the words of each dialect. No I/O.

A token may be part of a character. Where its bytes stand beside it, its text has U+FFFD for such a
part; OpenAI's older completions have no place for bytes, so there the text spells them.
Source: Ollama `api/types.go` `Logprob`; OpenAI's API reference, "Chat Completions", "Completions".
"""

import codecs
from collections.abc import Sequence
from typing import Any

from localrun.core import Likelihood, TokenLogprob


def native_logprobs(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Ollama's list; likeliest tokens are there if asked for."""
    return [
        _spelled(entry) | ({"top_logprobs": list(map(_spelled, entry.top))} if entry.top else {})
        for entry in entries
    ]


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's object for a chat; its clients want every key."""
    content = [
        _spelled(entry) | {"top_logprobs": list(map(_spelled, entry.top))} for entry in entries
    ]
    return {"content": content, "refusal": None}


def _spelled(token: Likelihood | TokenLogprob) -> dict[str, Any]:
    return {
        "token": token.data.decode("utf-8", "replace"),
        "logprob": token.logprob,
        "bytes": list(token.data),
    }


class CompletionLogprobs:
    """OpenAI's older object, for one choice; it counts the characters of the text so far."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._n_chars = 0

    def object_of(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object for the next tokens of the choice."""
        return {
            "tokens": [_text_of(entry.data) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            # As OpenAI: with the token that was taken, also where it is none of the likeliest.
            "top_logprobs": [_top(entry) for entry in entries]
            if any(entry.top for entry in entries)
            else None,
            "text_offset": [self._offset(entry.data) for entry in entries],
        }

    def _offset(self, data: bytes) -> int:
        """Where the token begins, in characters; for one inside a character, where that does."""
        offset = self._n_chars
        self._n_chars += len(self._decode(data))
        return offset


def _top(entry: TokenLogprob) -> dict[str, float]:
    by_text: dict[str, float] = {}
    for token in (*entry.top, Likelihood(entry.data, entry.logprob)):
        # Two ids may have the same bytes; the likelier one comes first.
        by_text.setdefault(_text_of(token.data), token.logprob)
    return by_text


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
