"""A Modelfile's TEMPLATE: conversation → prompt text, by Go's text/template.

Ollama's data and functions. Few models have one, so this is imported when the first one comes.
"""

import datetime
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import gotpl

from localrun.core import Message
from localrun.errors import TemplateFailed

# Stands where the answer begins; what a template puts after it is for finished turns only.
_ANSWER = "\x00answer\x00"


class GoTemplate:
    """A Modelfile's TEMPLATE. Source: Ollama's template data and its two ways of rendering."""

    def __init__(self, source: str) -> None:
        self._takes_messages = ".Messages" in source
        if not self._takes_messages and ".Response" not in source:
            source += "{{ .Response }}"
        try:
            self._template = gotpl.Template(source, functions=_GO_FUNCTIONS)
        except gotpl.TemplateError as error:
            raise TemplateFailed(f"it does not compile: {error}") from None

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that ends where the assistant's turn begins. Raises TemplateFailed."""
        render = self._render_messages if self._takes_messages else self._render_turns
        return self._guarded(lambda: render(messages))

    def render_fill(self, prefix: str, suffix: str) -> str:
        """The prompt for what is missing between two texts. Raises TemplateFailed."""
        data = {"Prompt": prefix, "Suffix": suffix, "Response": _ANSWER}
        return self._guarded(lambda: self._run(**data)).partition(_ANSWER)[0]

    def _guarded(self, render: Callable[[], str]) -> str:
        try:
            return render()
        except (TemplateFailed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None

    def _run(self, **data: Any) -> str:
        empty = {"System": "", "Prompt": "", "Response": "", "Suffix": "", "Tools": []}
        flags = {"Think": False, "ThinkLevel": "", "IsThinkSet": False}
        return str(self._template.render({**empty, **flags, **data}))

    def _render_messages(self, messages: Sequence[Message]) -> str:
        turns: list[dict[str, Any]] = []
        for message in messages:
            if turns and message.role != "tool" and turns[-1]["Role"] == message.role:
                turns[-1]["Content"] += "\n\n" + message.content
            else:
                turns.append(_go_message(message))
        system = "\n\n".join(turn["Content"] for turn in turns if turn["Role"] == "system")
        return self._run(System=system, Messages=turns)

    def _render_turns(self, messages: Sequence[Message]) -> str:
        text, system, prompt = "", "", ""
        for message in messages:
            if message.role == "system":
                system = f"{system}\n\n{message.content}" if system else message.content
            elif message.role == "assistant":
                text += self._run(System=system, Prompt=prompt, Response=message.content)
                system = prompt = ""
            else:
                prompt = f"{prompt}\n\n{message.content}" if prompt else message.content
        last = self._run(System=system, Prompt=prompt, Response=_ANSWER)
        return text + last.partition(_ANSWER)[0]


def _go_message(message: Message) -> dict[str, Any]:
    return {
        "Role": message.role,
        "Content": message.content,
        "Thinking": message.thinking,
        "Images": [],
        "ToolCalls": [
            {
                "ID": call.id,
                "Function": {"Index": i, "Name": call.name, "Arguments": call.arguments},
            }
            for i, call in enumerate(message.tool_calls)
        ],
        "ToolName": message.tool_name,
        "ToolCallID": message.tool_call_id,
    }


def _day(offset_days: int) -> Callable[..., str]:
    def render(*_arguments: object) -> str:
        day = datetime.date.today() + datetime.timedelta(days=offset_days)
        return day.isoformat()

    return render


_TYPESCRIPT = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


def _typescript(property_: Any) -> str:
    """The type of a tool's property as TypeScript spells it; `any` for what is none.

    Source: Ollama `api/types.go`, `ToTypeScriptType`.
    """
    known = property_ if isinstance(property_, dict) else {}
    fields = {key.lower(): value for key, value in known.items()}
    if choices := fields.get("anyof"):
        return " | ".join(map(_typescript, choices))
    names = fields.get("type") or ()
    if isinstance(names, str):
        names = (names,)
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in names) or "any"


_GO_FUNCTIONS: dict[str, Callable[..., object]] = {
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "currentDate": _day(0),
    "yesterdayDate": _day(-1),
    "toTypeScriptType": _typescript,
}


@lru_cache(maxsize=64)  # a model has one; names that share its weights may bring a few more
def go_template(source: str) -> GoTemplate:
    """The compiled template. Raises TemplateFailed."""
    return GoTemplate(source)
