"""The same conversation in forms that stricter templates take. Pure.

Some templates raise where two turns of one role follow each other, where the assistant begins, at
a system text or at the result of a tool. Others leave out what they did not expect, such as a
second system text. Agents make such histories all the time.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from msgspec.structs import replace

from localrun.core import Message, ToolCall

_ROLES = ("system", "user", "assistant")

# Some templates take no other ids of calls. Source: Mistral's.
_SHORT_ID_CHARS = 9

_SPELLED_ALIKE = re.compile(r"[A-Za-z0-9_.-]{1,99}")


def forms(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The conversation as it is, and then what says the same with less variety.

    1. Where there are calls: with ids of nine letters and digits; then one call in a turn, and
       what is said beside it in a turn of its own.
    2. One system text, in front; neighbours of one role are one turn.
    3. Only users and assistants besides: a tool's result is a user's turn, a call is text, and the
       assistant never begins.
    4. The system text stands in front of the first user's.

    No text is lost on the way. Each form is made when it is asked for.
    """
    yield messages
    merged = _merged(_system_first(messages))
    if any(message.tool_calls for message in messages):
        yield _with_short_ids(messages)
        yield _apart(_with_short_ids(messages))
        yield _with_short_ids(merged)
    yield merged
    plain = _merged(_begun_by_user([_plain(message) for message in merged]))
    yield plain
    if plain[0].role == "system":
        system, *rest = plain
        first = rest[0] if rest else Message("user")
        yield [replace(first, content=_joined(system.content, first.content)), *rest[1:]]


def holds_all(rendered: str, messages: Sequence[Message]) -> bool:
    """Whether the texts are there that no template has a reason to leave out or to change.

    Those are the texts of users and systems, tools' results that no call asked for, calls, and
    what was said beside them. What assistants have thought is left out of later turns on purpose.
    """
    at = 0
    has_call = any(message.tool_calls for message in messages)
    for message in messages:
        is_alone = message.role == "assistant" and not message.tool_calls
        if not (is_alone or (message.role == "tool" and has_call)):
            text = message.content.strip()
            # Most often in their order; then nothing is searched twice.
            found = rendered.find(text, at)
            if found < 0:
                found = rendered.find(text)
            if found < 0:
                return False
            at = found + len(text)
        for word in _words(message.tool_calls):
            found = rendered.find(word, at)
            if found < 0:
                return False
            at = found
    return True


def _words(calls: Iterable[ToolCall]) -> Iterator[str]:
    """Names, and those arguments that every format spells alike."""
    for call in calls:
        yield call.name
        values = call.arguments.values()
        yield from (v for v in values if isinstance(v, str) and _SPELLED_ALIKE.fullmatch(v))


def with_names(messages: Sequence[Message]) -> Sequence[Message]:
    """The conversation with an id for every call, and with id and name for every tool's result.

    A result belongs to the call whose id it has, else to the first one without a result that has
    its name, else to the first one without a result. Source: programs that drop the one or the
    other, such as ollama-python. Results that stand together come in the order of their calls,
    since that is how templates without ids pair them; those without a call come last.
    """
    if not any(message.tool_calls or message.role == "tool" for message in messages):
        return messages
    named: list[Message] = []
    waiting: dict[int, ToolCall] = {}
    results: list[tuple[float, Message]] = []
    n_calls = 0
    for message in messages:
        if message.role == "tool":
            results.append(_named(message, waiting))
            continue
        named += _in_order(results)
        results.clear()
        if message.tool_calls:
            calls = []
            for call in message.tool_calls:
                calls.append(call if call.id else replace(call, id=f"call_{n_calls:08d}"))
                n_calls += 1
            message = replace(message, tool_calls=tuple(calls))
            waiting = dict(enumerate(calls))
        named.append(message)
    return [*named, *_in_order(results)]


def _in_order(results: Iterable[tuple[float, Message]]) -> list[Message]:
    return [message for _, message in sorted(results, key=itemgetter(0))]


def _named(message: Message, waiting: dict[int, ToolCall]) -> tuple[float, Message]:
    """(the number of its call, the result with what the call has); the call waits no longer."""
    found = [n for n, call in waiting.items() if call.id == message.tool_call_id]
    if not message.tool_call_id:
        found = [n for n, call in waiting.items() if call.name == message.tool_name]
        if not message.tool_name:
            found = list(waiting)
    if not found:
        return math.inf, message
    call = waiting.pop(found[0])
    return found[0], replace(message, tool_call_id=call.id, tool_name=call.name)


def without_prefill(messages: Sequence[Message]) -> tuple[Sequence[Message], Message | None]:
    """(the conversation up to the last turn of the user, how the answer begins).

    An assistant's turn at the end is the beginning of the answer.
    """
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls:
        return messages, None
    return messages[:-1] or [Message("user")], last


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


def _with_short_ids(messages: Iterable[Message]) -> list[Message]:
    return [
        replace(
            message,
            tool_calls=tuple(replace(c, id=_short_id(c.id)) for c in message.tool_calls),
            tool_call_id=_short_id(message.tool_call_id),
        )
        for message in messages
    ]


def _short_id(text: str) -> str:
    if not text or (len(text) == _SHORT_ID_CHARS and text.isalnum()):
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_SHORT_ID_CHARS]


def _apart(messages: Sequence[Message]) -> list[Message]:
    """One call in a turn, its result behind it; what was said beside calls in a turn before."""
    apart: list[Message] = []
    n_done = 0
    for number, message in enumerate(messages):
        if number < n_done:
            continue
        if not message.tool_calls:
            apart.append(message)
            continue
        n_done = number + 1
        while n_done < len(messages) and messages[n_done].role == "tool":
            n_done += 1
        apart += _one_by_one(message, messages[number + 1 : n_done])
    return apart


def _one_by_one(message: Message, results: Sequence[Message]) -> Iterator[Message]:
    if message.content:
        yield Message("assistant", message.content)
    thinking = message.thinking
    for call in message.tool_calls:
        yield Message("assistant", "", thinking, (call,))
        yield from (result for result in results if result.tool_call_id == call.id)
        thinking = ""
    ids = {call.id for call in message.tool_calls}
    yield from (result for result in results if result.tool_call_id not in ids)


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
