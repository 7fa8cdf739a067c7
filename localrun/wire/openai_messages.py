"""OpenAI's dialect: the messages of a chat → `Message`. No I/O.

Content may be text, parts, or absent where a message has something else to say: an assistant's
calls, or a tool's empty result. All of these forms give the same message. Reasoning has two names
among clients. An assistant's call in the older form, and its result, are read like newer ones.
Source: OpenAI's API reference, "Chat Completions".
"""

import msgspec

from localrun.core import Message, ToolCall
from localrun.errors import BadRequest
from localrun.wire.bodies import Part, content_text
from localrun.wire.tools import WireCall, arguments_of, calls_of

# Each role, and what templates call it: `developer` is newer than `system`, `function` older than
# `tool`.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MAY_BE_EMPTY = ("assistant", "tool")
_MAX_SHOWN = 40


class _OldCall(msgspec.Struct):
    name: str
    arguments: str | None = None


class WireMessage(msgspec.Struct):
    """A message as OpenAI's clients send it."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[WireCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: _OldCall | None = None


def message_of(wire: WireMessage, path: str, model: str) -> Message:
    """The message as a value. Raises BadRequest below `path`, Unsupported for images and sound."""
    role = _role(wire, path)
    if wire.content is None and wire.tool_calls is None and role not in _MAY_BE_EMPTY:
        raise BadRequest(f"{path}.content", "invalid message content type: null")
    return Message(
        role=role,
        content=content_text(wire.content, f"{path}.content", model),
        thinking=wire.reasoning or wire.reasoning_content or "",
        tool_calls=_calls(wire, path),
        tool_name=(wire.name or "") if role == "tool" else "",
        tool_call_id=wire.tool_call_id or "",
    )


def _role(wire: WireMessage, path: str) -> str:
    role = _ROLES.get(wire.role.strip().lower())
    if role is None:
        known = ", ".join(f'"{one}"' for one in _ROLES)
        raise BadRequest(f"{path}.role", f'"{wire.role[:_MAX_SHOWN]}" is not one of {known}')
    if role != "assistant":
        for field in ("tool_calls", "function_call"):
            if getattr(wire, field):
                raise BadRequest(f"{path}.{field}", f"only an assistant calls, not a {role}")
    return role


def _calls(wire: WireMessage, path: str) -> tuple[ToolCall, ...]:
    old = wire.function_call
    if wire.tool_calls or old is None:
        return calls_of(wire.tool_calls, f"{path}.tool_calls")
    arguments = arguments_of(old.arguments, f"{path}.function_call.arguments")
    return (ToolCall(old.name, arguments),)
