"""A Modelfile's TEMPLATE: conversation → prompt text, by Go's text/template.

Ollama's data and functions. Few models have one, so this is imported when the first one comes.
"""

import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import gotpl

from localrun.core import Message, ToolCall
from localrun.errors import TemplateFailed
from localrun.runner.prompt.definitions import NOTHING_ASKED, Asked, as_dicts

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

    def render(self, messages: Sequence[Message], asked: Asked = NOTHING_ASKED) -> str:
        """The prompt that ends where the assistant's turn begins. Raises TemplateFailed."""
        render = self._render_messages if self._takes_messages else self._render_turns
        return self._guarded(lambda: render(messages, _go_asked(asked)))

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
        return str(self._template.render({**_EMPTY, **data}))

    def _render_messages(self, messages: Sequence[Message], asked: dict[str, Any]) -> str:
        turns: list[dict[str, Any]] = []
        for message in messages:
            if turns and message.role != "tool" and turns[-1]["Role"] == message.role:
                _add(turns[-1], _go_message(message))
            else:
                turns.append(_go_message(message))
        system = "\n\n".join(turn["Content"] for turn in turns if turn["Role"] == "system")
        return self._run(System=system, Messages=turns, **asked)

    def _render_turns(self, messages: Sequence[Message], asked: dict[str, Any]) -> str:
        text, system, prompt = "", "", ""
        for message in messages:
            if message.role == "system":
                system = f"{system}\n\n{message.content}" if system else message.content
            elif message.role == "assistant":
                text += self._run(System=system, Prompt=prompt, Response=message.content)
                system = prompt = ""
            else:
                prompt = f"{prompt}\n\n{message.content}" if prompt else message.content
        last = self._run(System=system, Prompt=prompt, Response=_ANSWER, **asked)
        return text + last.partition(_ANSWER)[0]


_EMPTY = {"System": "", "Prompt": "", "Response": "", "Suffix": "", "Tools": []} | {
    "Think": False,
    "ThinkLevel": "",
    "IsThinkSet": False,
}


class _Fields:
    """A struct that prints as JSON. Source: Ollama's `api/types.go`, `String` of its types."""

    def __init__(self, value: Any, **fields: Any) -> None:
        self.value = value
        self._fields = fields

    def __str__(self) -> str:
        return _json(self.value)

    def __gotemplate_lookup__(self, field: str) -> Any:
        return self._fields[field]


class _Items(_Fields):
    """A list that prints as JSON."""

    def __init__(self, value: Any, items: Sequence[Any]) -> None:
        super().__init__(value)
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class _Pairs(gotpl.GoSeq2):  # type: ignore[misc]
    """A map that prints as JSON and keeps its order."""

    __slots__ = ()

    def __str__(self) -> str:
        return _json(self.value)

    @property
    def value(self) -> dict[str, Any]:
        return dict(self.values)

    def __gotemplate_lookup__(self, field: str) -> Any:
        return self.value[field]


def _pairs(value: dict[str, Any]) -> _Pairs:
    return _Pairs(tuple(value.items()))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=lambda one: one.value)


def _go_asked(asked: Asked) -> dict[str, Any]:
    tools = as_dicts(asked.tools)
    found: dict[str, Any] = {"Tools": _Items(tools, list(map(_go_tool, tools)))} if tools else {}
    if asked.think is not None:
        level = asked.think if isinstance(asked.think, str) else ""
        found |= {"Think": bool(asked.think), "ThinkLevel": level, "IsThinkSet": True}
    return found


def _go_tool(tool: dict[str, Any]) -> _Fields:
    function = tool["function"]
    parameters = function["parameters"]
    schema = _Fields(
        parameters,
        Type=parameters.get("type", ""),
        Required=parameters.get("required", []),
        Properties=_pairs(
            {key: _go_property(one) for key, one in parameters.get("properties", {}).items()}
        ),
    )
    fields = {"Name": function["name"], "Description": function["description"]}
    return _Fields(tool, Type=tool["type"], Function=_Fields(function, Parameters=schema, **fields))


def _go_property(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value.get("type", "")
    return _Fields(
        value,
        Type=kind if isinstance(kind, str) else _Items(kind, kind),
        Description=value.get("description", ""),
        Enum=value.get("enum", []),
        Items=value.get("items"),
    )


def _go_message(message: Message) -> dict[str, Any]:
    return {
        "Role": message.role,
        "Content": message.content,
        "Thinking": message.thinking,
        "Images": [],
        "ToolCalls": [_go_call(index, call) for index, call in enumerate(message.tool_calls)],
        "ToolName": message.tool_name,
        "ToolCallID": message.tool_call_id,
    }


def _go_call(index: int, call: ToolCall) -> _Fields:
    named = {"name": call.name, "arguments": call.arguments}
    function = _Fields(named, Index=index, Name=call.name, Arguments=_pairs(call.arguments))
    return _Fields({"id": call.id, "function": named}, ID=call.id, Function=function)


def _add(turn: dict[str, Any], other: dict[str, Any]) -> None:
    """Makes one turn of two. Source: Ollama's merge of neighbours with one role."""
    for key in ("Content", "Thinking"):
        turn[key] = "\n\n".join(filter(None, (turn[key], other[key])))
    turn["ToolCalls"] += other["ToolCalls"]


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
    property_ = getattr(property_, "value", property_)
    known = property_ if isinstance(property_, dict) else {}
    fields = {key.lower(): value for key, value in known.items()}
    if choices := fields.get("anyof"):
        return " | ".join(map(_typescript, choices))
    names = fields.get("type") or ()
    if isinstance(names, str):
        names = (names,)
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in names) or "any"


_GO_FUNCTIONS: dict[str, Callable[..., object]] = {
    "json": _json,
    "currentDate": _day(0),
    "yesterdayDate": _day(-1),
    "toTypeScriptType": _typescript,
}


@lru_cache(maxsize=64)  # a model has one; names that share its weights may bring a few more
def go_template(source: str) -> GoTemplate:
    """The compiled template. Raises TemplateFailed."""
    return GoTemplate(source)
