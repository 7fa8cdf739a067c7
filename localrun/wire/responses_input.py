"""OpenAI's dialect of responses: the items of an input → `Message`. No I/O.

What an assistant said is spread over items: reasoning, text, and each of its calls. Those that
stand together are one turn. Reasoning belongs to the turn that follows it, and is left out when
none does. Nothing is kept here, so items cannot be referred to.
Source: OpenAI's API reference, "Create a response"; Ollama `openai/responses.go`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from localrun.core import Message, ToolCall
from localrun.errors import BadRequest
from localrun.wire.bodies import Part, content_text, located, part_field
from localrun.wire.tools import arguments_of

T = TypeVar("T")

Items = str | list[dict[str, Any]]

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
# What OpenAI's servers did in between; Ollama leaves it out, too.
_PASSED_OVER = ("web_search_call",)
# How the token format of OpenAI's encrypted reasoning begins: nothing for a model here to read.
_ENCRYPTED = "gAAAA"
_MAX_SHOWN = 40

_Content = str | list[Part]


class _Message(msgspec.Struct):
    role: str | None = None
    content: _Content | None = None


class _Call(msgspec.Struct):
    name: str | None = None
    arguments: Any = None
    call_id: str | None = None
    namespace: str | None = None


class _Output(msgspec.Struct):
    """A function that returns nothing has null for its output."""

    output: _Content | UnsetType | None = UNSET
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None


class _Reasoning(msgspec.Struct):
    content: list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


def full_name(namespace: str | None, name: str) -> str:
    """What a model calls a function of a namespace. Source: Ollama."""
    return f"{namespace}.{name}" if namespace else name


def messages_of(instructions: str | None, items: Items, model: str) -> tuple[Message, ...]:
    """The conversation; `instructions` stand in front of it.

    Raises BadRequest with the path of what is wrong, Unsupported for images and sound.
    """
    messages = [Message("system", instructions)] if instructions else []
    if isinstance(items, str):
        return (*messages, Message("user", items))
    if not items:
        raise BadRequest("input", "is empty; give it a text or at least one item")
    reader = _Reader(model, messages)
    for i, item in enumerate(items):
        reader.take(item, f"input[{i}]")
    return reader.finish()


class _Reader:
    """Reads items one by one, and puts together those of one assistant's turn."""

    def __init__(self, model: str, messages: list[Message]) -> None:
        self._model = model
        self._messages = messages
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []

    def take(self, item: dict[str, Any], path: str) -> None:
        """Reads the next item. Raises BadRequest, Unsupported."""
        kind = item.get("type")
        if kind in (None, ""):
            kind = "message" if "role" in item else None
        match kind:
            case "message":
                self._message(read_as(_Message, item, path), path)
            case "function_call":
                self._call(read_as(_Call, item, path), path)
            case "function_call_output":
                self._output(read_as(_Output, item, path), path)
            case "reasoning":
                self._thoughts.append(self._thought(read_as(_Reasoning, item, path), path))
            case "item_reference":
                raise BadRequest(path, "this server keeps no items to refer to; send the item")
            case str() if kind in _PASSED_OVER:
                pass
            case str():
                raise BadRequest(f"{path}.type", f'unknown input item "{kind[:_MAX_SHOWN]}"')
            case None:
                raise BadRequest(f"{path}.type", "is required")
            case _:
                raise BadRequest(f"{path}.type", "must be a string")

    def finish(self) -> tuple[Message, ...]:
        """All messages."""
        self._end_turn()
        return tuple(self._messages)

    def _message(self, wire: _Message, path: str) -> None:
        role = (wire.role or "").strip().lower()
        if role not in _ROLES:
            known = ", ".join(f'"{one}"' for one in _ROLES)
            raise BadRequest(f"{path}.role", f'"{role[:_MAX_SHOWN]}" is not one of {known}')
        if wire.content is None:
            raise BadRequest(f"{path}.content", "is required")
        text = self._text(wire.content, f"{path}.content")
        if role == "assistant":
            self._texts.append(text)
            return
        self._end_turn()
        self._messages.append(Message(_ROLES[role], text))

    def _call(self, wire: _Call, path: str) -> None:
        call_id = _required(wire.call_id, f"{path}.call_id")
        name = full_name(wire.namespace, _required(wire.name, f"{path}.name"))
        arguments = arguments_of(wire.arguments, f"{path}.arguments")
        self._calls.append(ToolCall(name, arguments, call_id))

    def _output(self, wire: _Output, path: str) -> None:
        call_id = _required(wire.call_id, f"{path}.call_id")
        if wire.output is UNSET:
            raise BadRequest(f"{path}.output", "is required")
        self._end_turn()
        text = self._text(wire.output, f"{path}.output")
        name = full_name(wire.namespace, wire.name) if wire.name else ""
        self._messages.append(Message("tool", text, tool_name=name, tool_call_id=call_id))

    def _thought(self, wire: _Reasoning, path: str) -> str:
        """What was thought, else what it was summed up as."""
        for field, parts in (("content", wire.content), ("summary", wire.summary)):
            if parts:
                texts = (
                    _thinking_text(part, f"{path}.{field}[{i}]") for i, part in enumerate(parts)
                )
                return "\n\n".join(texts)
        text = wire.encrypted_content or ""
        return "" if text.startswith(_ENCRYPTED) else text

    def _text(self, content: _Content | None, path: str) -> str:
        return content_text(content, path, self._model, kind="input_text")

    def _end_turn(self) -> None:
        """Ends the assistant's turn, if there is one."""
        if self._texts or self._calls:
            self._messages.append(
                Message(
                    "assistant", _joined(self._texts), _joined(self._thoughts), tuple(self._calls)
                )
            )
        self._texts, self._thoughts, self._calls = [], [], []


def _thinking_text(part: Part, path: str) -> str:
    if part.type not in ("summary_text", "reasoning_text", "text"):
        raise BadRequest(f"{path}.type", f'unknown part of reasoning "{part.type[:_MAX_SHOWN]}"')
    return part_field(part.text, f"{path}.text")


def _required(text: str | None, path: str) -> str:
    if not text:
        raise BadRequest(path, "is required")
    return text


def _joined(texts: Sequence[str]) -> str:
    """Neighbours of one role, as Ollama joins them."""
    return "\n\n".join(text for text in texts if text)


def read_as(kind: type[T], item: dict[str, Any], path: str) -> T:
    """The item as a struct. Raises BadRequest below `path`."""
    try:
        return msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise located(str(error), path) from None
