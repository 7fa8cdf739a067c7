"""The same conversation in forms that stricter templates take. Pure.

Some templates raise where two turns of one role follow each other, where the assistant begins, at
a system text or at the result of a tool. Others leave out what they did not expect, such as a
second system text. Agents make such histories all the time.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from localrun.core import Message

_ROLES = ("system", "user", "assistant")


def forms(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The conversation as it is, and then what says the same with less variety.

    1. One system text, in front; neighbours of one role are one turn.
    2. Only users and assistants besides: a tool's result is a user's turn, a call is text, and the
       assistant never begins.
    3. The system text stands in front of the first user's.

    No text is lost on the way. Each form is made when it is asked for.
    """
    yield messages
    merged = _merged(_system_first(messages))
    yield merged
    plain = _merged(_begun_by_user([_plain(message) for message in merged]))
    yield plain
    if plain[0].role == "system":
        system, *rest = plain
        first = rest[0] if rest else Message("user")
        yield [replace(first, content=_joined(system.content, first.content)), *rest[1:]]


def holds_all(rendered: str, messages: Sequence[Message]) -> bool:
    """Whether the texts are there that no template has a reason to leave out or to change.

    Those are the texts of users and systems, and tools' results that no call asked for. What
    assistants have thought is left out of later turns on purpose.
    """
    at = 0
    has_call = any(message.tool_calls for message in messages)
    for message in messages:
        text = message.content.strip()
        if message.role == "assistant" or (message.role == "tool" and has_call):
            continue
        # Most often in their order; then nothing is searched twice.
        found = rendered.find(text, at)
        if found < 0:
            found = rendered.find(text)
        if found < 0:
            return False
        at = found + len(text)
    return True


def without_prefill(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """(the conversation up to the last turn of the user, how the answer begins).

    An assistant's turn at the end is the beginning of the answer.
    """
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls:
        return messages, ""
    return messages[:-1] or [Message("user")], last.content


def _system_first(messages: Iterable[Message]) -> list[Message]:
    turns = [replace(m, role="system") if m.role == "developer" else m for m in messages]
    system = [turn for turn in turns if turn.role == "system"]
    return [*system, *(turn for turn in turns if turn.role != "system")]


def _merged(messages: Iterable[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and message.role == merged[-1].role and message.role in _ROLES:
            merged[-1] = _sum(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _sum(one: Message, other: Message) -> Message:
    return replace(
        one,
        content=_joined(one.content, other.content),
        thinking=_joined(one.thinking, other.thinking),
        tool_calls=one.tool_calls + other.tool_calls,
    )


def _joined(one: str, other: str) -> str:
    return "\n\n".join(filter(None, (one, other)))


def _plain(message: Message) -> Message:
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        for call in message.tool_calls
    ]
    role = message.role if message.role in _ROLES else "user"
    return Message(role, "\n".join(filter(None, (message.content, *calls))))


def _begun_by_user(messages: list[Message]) -> list[Message]:
    n_system = 1 if messages[0].role == "system" else 0
    if messages[n_system : n_system + 1] and messages[n_system].role == "assistant":
        return [*messages[:n_system], Message("user"), *messages[n_system:]]
    return messages
