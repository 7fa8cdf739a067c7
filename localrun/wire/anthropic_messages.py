"""Anthropic's dialect: the turns of a conversation → `Message`. No I/O.

Content is a text or a list of blocks. Blocks that a model here has no use for, such as documents,
what servers of Anthropic have searched, and thinking that only they can read, are passed over.
Source: Anthropic's API reference, "Messages"; Ollama `anthropic/anthropic.go`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from localrun.core import Message, ToolCall
from localrun.errors import BadRequest, Unsupported
from localrun.wire.bodies import located
from localrun.wire.tools import arguments_of

T = TypeVar("T")

_ROLES = ("user", "assistant", "system")
_MAX_SHOWN = 40

Content = str | list[dict[str, Any]]


class WireTurn(msgspec.Struct):
    """A turn as Anthropic's clients send it."""

    role: str
    content: Content


class _Text(msgspec.Struct):
    text: str


class _Thinking(msgspec.Struct):
    thinking: str


class _ToolUse(msgspec.Struct):
    id: str
    name: str
    input: Any = None


class _ToolResult(msgspec.Struct):
    tool_use_id: str
    content: Content | None = None


def messages_of(
    system: Content | None, turns: Sequence[WireTurn], model: str
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """(the conversation, types of blocks that were passed over).

    Raises BadRequest with the path of what is wrong, Unsupported for images.
    """
    reader = _Reader(model)
    messages: list[Message] = []
    if text := reader.text(system, "system"):
        messages.append(Message("system", text))
    for i, turn in enumerate(turns):
        messages += reader.turn(turn, f"messages[{i}]")
    return tuple(messages), tuple(reader.passed_over)


class _Reader:
    """Reads turns, and remembers which types of blocks it has passed over."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.passed_over: dict[str, None] = {}

    def turn(self, turn: WireTurn, path: str) -> list[Message]:
        """The results of tools in it, then what is said. Source for the order: Ollama."""
        if turn.role not in _ROLES:
            known = ", ".join(f'"{role}"' for role in _ROLES)
            raise BadRequest(f"{path}.role", f'"{turn.role[:_MAX_SHOWN]}" is not one of {known}')
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        results: list[Message] = []
        for block, at in self._blocks(turn.content, f"{path}.content"):
            match block.get("type"):
                case "text":
                    texts.append(_read(_Text, block, at).text)
                case "thinking":
                    thoughts.append(_read(_Thinking, block, at).thinking)
                case "tool_use" if turn.role != "assistant":
                    raise BadRequest(at, f"only an assistant calls, not a {turn.role}")
                case "tool_use":
                    calls.append(_call(block, at))
                case "tool_result":
                    results.append(self._result(block, at))
                case kind:
                    self._pass_over(kind, at)
        if results and not (texts or thoughts or calls):
            return results
        said = Message(turn.role, "".join(texts), "".join(thoughts), tuple(calls))
        return [*results, said]

    def text(self, content: Content | None, path: str) -> str:
        """The text of content that can be nothing else."""
        texts: list[str] = []
        for block, at in self._blocks(content or "", path):
            if block.get("type") == "text":
                texts.append(_read(_Text, block, at).text)
            else:
                self._pass_over(block.get("type"), at)
        return "".join(texts)

    def _result(self, block: dict[str, Any], path: str) -> Message:
        result = _read(_ToolResult, block, path)
        content = self.text(result.content, f"{path}.content")
        return Message("tool", content, tool_call_id=result.tool_use_id)

    def _blocks(self, content: Content, path: str) -> list[tuple[dict[str, Any], str]]:
        if isinstance(content, str):
            return [({"type": "text", "text": content}, path)]
        return [(block, f"{path}[{i}]") for i, block in enumerate(content)]

    def _pass_over(self, kind: Any, path: str) -> None:
        if not isinstance(kind, str):
            raise BadRequest(f"{path}.type", "is required")
        if kind == "image":
            raise Unsupported(self._model, "vision", path)
        self.passed_over[kind] = None


def _call(block: dict[str, Any], path: str) -> ToolCall:
    call = _read(_ToolUse, block, path)
    for field, value in (("id", call.id), ("name", call.name)):
        if not value:
            raise BadRequest(f"{path}.{field}", "is required")
    return ToolCall(call.name, arguments_of(call.input, f"{path}.input"), call.id)


def _read(kind: type[T], block: dict[str, Any], path: str) -> T:
    try:
        return msgspec.convert(block, kind)
    except msgspec.ValidationError as error:
        raise located(str(error), path) from None
