"""How much a model shall think: the dialects' words → `Think`. No I/O.

Absent is None: the model's own habit. Whether a model can think, its runner knows.
Source: Ollama `api/types.go` `ThinkValue`, `openai/openai.go`, `anthropic/anthropic.go`.
"""

from typing import Any

import msgspec

from localrun.core import Think
from localrun.errors import BadRequest

_LEVELS: dict[str, Think] = {"low": "low", "medium": "medium", "high": "high", "max": "max"}
# OpenAI has more words than there are levels.
_EFFORTS: dict[str, Think] = {
    "none": False,
    "minimal": "low",
    **_LEVELS,
    "xhigh": "max",
    "ultra": "max",
}
# Anthropic's own, which has a level between the two highest here.
_OUTPUT_EFFORTS: dict[str, Think] = {**_LEVELS, "xhigh": "high"}
# Of Anthropic's `thinking`.
_KINDS = ("enabled", "disabled", "adaptive", "between_tools")
_MAX_SHOWN = 40


class Reasoning(msgspec.Struct):
    """The newer place of OpenAI's `reasoning_effort`."""

    effort: str | None = None


def think_of(value: Any) -> Think:
    """Ollama's `think`. Raises BadRequest."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise BadRequest(
            "", 'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'
        )
    if value not in _LEVELS:
        raise BadRequest(
            "",
            f'invalid think value: "{value[:_MAX_SHOWN]}" '
            '(must be "high", "medium", "low", "max", true, or false)',
        )
    return _LEVELS[value]


def think_of_effort(effort: str | None, reasoning: Reasoning | None) -> Think:
    """OpenAI's `reasoning_effort` and `reasoning.effort`, which wins. Raises BadRequest."""
    path, value = "reasoning_effort", effort
    if reasoning is not None and reasoning.effort:
        path, value = "reasoning.effort", reasoning.effort
    if not value:
        return None
    if value not in _EFFORTS:
        known = ", ".join(f'"{name}"' for name in _EFFORTS)
        raise BadRequest(
            path, f'invalid reasoning value: "{value[:_MAX_SHOWN]}" (must be one of {known})'
        )
    return _EFFORTS[value]


def think_of_config(kind: str | None, effort: str | None) -> Think:
    """Anthropic's `thinking.type` and `output_config.effort`. Raises BadRequest.

    The others leave it to the model, as does none.
    """
    if kind is not None and kind not in _KINDS:
        known = ", ".join(f'"{name}"' for name in _KINDS)
        raise BadRequest("thinking.type", f'"{kind[:_MAX_SHOWN]}" is not one of {known}')
    if effort is not None and effort not in _OUTPUT_EFFORTS:
        known = ", ".join(f'"{name}"' for name in _OUTPUT_EFFORTS)
        raise BadRequest("output_config.effort", f'"{effort[:_MAX_SHOWN]}" is not one of {known}')
    if kind == "disabled":
        return False
    if effort is not None:
        return _OUTPUT_EFFORTS[effort]
    return True if kind == "enabled" else None
