"""What an answer has to look like: a call that must come, a schema, or both. Pure.

A call is written in the format of the template where that has JSON, else as plain JSON, which is
read in every format (`output.calls`). Source of the grammar's language: llguidance's Lark.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from localrun.core import ChatPrompt, Tool
from localrun.errors import BadRequest
from localrun.ipc.messages import Submit
from localrun.runner.output.formats import PLAIN_JSON, Writing
from localrun.runner.output.style import Style
from localrun.runner.prompt.definitions import parameters_of
from localrun.runner.structured.constraint import Constraint, json_grammar, json_rule

# Gives the id of the control token that is spelled so, None where there is none.
ControlId = Callable[[str], int | None]


def constraint_of(submit: Submit, style: Style, control_id: ControlId) -> Constraint | None:
    """The constraint of a request's answer; None leaves it free.

    A call that has to come wins over a schema. Where a call may come, the answer is one or matches
    the schema, if the format of calls is JSON; else it matches the schema, and cannot be a call.
    Raises BadRequest for a choice of no tool and for a schema that cannot be expressed.
    """
    prompt, schema = submit.prompt, submit.schema
    tools: tuple[Tool, ...] = ()
    think = None
    if isinstance(prompt, ChatPrompt):
        think = prompt.think
        tools = _chosen(prompt)
    is_required = isinstance(prompt, ChatPrompt) and prompt.choice.is_required
    if schema is None and not is_required:
        return None
    grammar = json_grammar(schema) if schema is not None else ""
    if tools:
        assert isinstance(prompt, ChatPrompt)
        writing = PLAIN_JSON if style.markup.is_harmony else style.markup.form.writing
        rules = _Calls(tools, writing, control_id, is_parallel=prompt.choice.is_parallel).rules()
        if is_required:
            grammar = "\n".join(("start: calls", *rules))
        elif schema is not None and style.markup.form.is_json:
            answer = f"answer: {json_rule(schema)}"
            grammar = "\n".join(("start: calls | answer", answer, *rules))
    is_quiet = think is False and not style.is_thinking
    return Constraint(grammar, None if is_quiet else style.markup.tags, style.is_thinking)


def _chosen(prompt: ChatPrompt) -> tuple[Tool, ...]:
    if not prompt.choice.name:
        if prompt.choice.is_required and not prompt.tools:
            raise BadRequest("tool_choice", "a tool has to be called, but there are no tools")
        return prompt.tools
    tools = tuple(tool for tool in prompt.tools if tool.name == prompt.choice.name)
    if not tools:
        raise BadRequest("tool_choice", f"there is no tool `{prompt.choice.name}`")
    return tools


class _Calls:
    """The rule `calls` and what it needs."""

    def __init__(
        self,
        tools: Sequence[Tool],
        writing: Writing,
        control_id: ControlId,
        *,
        is_parallel: bool,
    ) -> None:
        self._tools = tools
        self._writing = writing
        self._control_id = control_id
        self._is_parallel = is_parallel

    def rules(self) -> list[str]:
        rules = [f"calls: {self._calls()}"]
        rules.append("call: " + " | ".join(f"call_{n}" for n in range(len(self._tools))))
        for number, tool in enumerate(self._tools):
            before = f'{{"name": {_json(tool.name)}, "{self._writing.arguments_key}": '
            rules.append(f'call_{number}: {_json(before)} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: {_arguments(tool)}")
        return rules

    def _calls(self) -> str:
        opening = self._marker(self._writing.opening)
        more = '(", " call)*' if self._is_parallel else ""
        if self._writing.closing:
            one = f"{opening} call {self._marker(self._writing.closing)}"
            return f'{one} ("\\n" {one})*' if self._is_parallel else one
        if self._writing.is_list:
            return f'{opening} "[" call {more} "]"'
        return f'call | "[" call {more} "]"' if self._is_parallel else "call"

    def _marker(self, text: str) -> str:
        """The marker as the model has learned it: its control token, if it has one."""
        core = text.strip()
        before, _, behind = text.partition(core) if core else ("", "", "")
        token = self._control_id(core) if core else None
        marker = f"<[{token}]>" if token is not None else _json(core)
        parts = (_json(before) if before else "", marker, _json(behind) if behind else "")
        return " ".join(filter(None, parts)) if core else ""


def _arguments(tool: Tool) -> str:
    """A rule for the arguments; any object where the schema says what no grammar can."""
    schema = _with_lists_of_types(parameters_of(tool))
    try:
        return json_rule(msgspec.json.encode(schema).decode())
    except BadRequest:
        return json_rule('{"type": "object"}')


def _with_lists_of_types(schema: Any) -> Any:
    """`"type": "string, integer"`, as ollama-python makes it of functions, is a list of types."""
    if isinstance(schema, list):
        return [_with_lists_of_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    sane = {key: _with_lists_of_types(value) for key, value in schema.items()}
    kind = sane.get("type")
    if isinstance(kind, str) and "," in kind:
        sane["type"] = [one.strip() for one in kind.split(",")]
    return sane


def _json(text: str) -> str:
    """A text as JSON has it, which is how Lark has it too."""
    return json.dumps(text, ensure_ascii=False)
