"""Tools as templates and models read them, and what else a request asks of a template. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from localrun.core import Message, Think, Tool

# Schemas of tools that take nothing are written in many ways; templates know this one.
_NO_PARAMETERS = {"type": "object", "properties": {}}

_BEFORE = "You can call these functions; their parameters are JSON Schemas:"
_BEHIND = (
    "To call one, answer with nothing but JSON in this form, or with a list of such:\n"
    '{"name": "the name of the function", "arguments": {"the name of a parameter": "its value"}}'
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of a template besides its turns; it is told nothing of None."""

    tools: tuple[Tool, ...] = ()
    think: Think = None


NOTHING_ASKED = Asked()


def as_dicts(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as OpenAI's API has them, which is what templates expect."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                # Always there: templates join it with other text.
                "description": tool.description,
                "parameters": parameters_of(tool),
            },
        }
        for tool in tools
    ]


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The schema of the tool's arguments, with a type."""
    if not tool.parameters:
        return _NO_PARAMETERS
    return tool.parameters if "type" in tool.parameters else {"type": "object", **tool.parameters}


def with_definitions(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation for a template that has no place for tools: they stand in the system text.

    Calls are asked for as plain JSON, which is read in the answers of every model.
    """
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in as_dicts(tools)]
    text = "\n".join((_BEFORE, *lines, _BEHIND))
    if messages and messages[0].role == "system":
        first, *rest = messages
        return [replace(first, content="\n\n".join(filter(None, (first.content, text)))), *rest]
    return [Message("system", text), *messages]
