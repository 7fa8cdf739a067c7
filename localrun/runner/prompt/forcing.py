"""What an answer has to look like: a call that must come, a schema, or both. Pure.

A call is written in the format of the template where that has JSON, else as plain JSON, which is
read in every format (`output.calls`). Source of the grammar's language: llguidance's Lark.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from localrun.core import SCHEMA_PATH, ChatPrompt, Tool, ToolChoice
from localrun.errors import BadRequest
from localrun.ipc.messages import Submit
from localrun.runner.output.formats import Writing
from localrun.runner.output.style import Style
from localrun.runner.prompt.definitions import parameters_of
from localrun.runner.structured.constraint import Constraint, ThinkTags, json_rule
from localrun.schemas.parts import below

# Small models that may go on with calls do so until the window is full; nobody has asked for more
# than a few at once.
_MORE = "{0,15}"

# Where a schema keeps the parts that it refers to.
_SHARED = ("$defs", "definitions")

# Gives the id of the control token that is spelled so, None where there is none.
ControlId = Callable[[str], int | None]


def constraint_of(submit: Submit, style: Style, control_id: ControlId) -> Constraint | None:
    """The constraint of a request's answer; None leaves it free.

    A call that has to come wins over a schema. Where a call may come, the answer is one or matches
    the schema, if the format of calls is JSON; else it matches the schema, and cannot be a call.
    Raises BadRequest for a choice of no tool and for a schema that cannot be expressed.
    """
    prompt, schema = submit.prompt, submit.schema
    choice = prompt.choice if isinstance(prompt, ChatPrompt) else ToolChoice()
    if schema is None and not choice.is_required:
        return None
    tools = _chosen(prompt) if isinstance(prompt, ChatPrompt) else ()
    form = style.markup.form
    rules: list[str] = []
    ways: list[str] = []
    if schema is not None and not choice.is_required:
        ways.append("schema")
        rules.append(f"schema: {_schema_rule(schema)}")
    if tools and (choice.is_required or form.is_json):
        ways.append("calls")
        rules += _Calls(tools, form.writing, control_id, is_parallel=choice.is_parallel).rules()
    answer = " | ".join(ways)
    if style.markup.is_harmony:
        return Constraint("\n".join((*_harmony(control_id), f"answer: {answer}", *rules)))
    grammar = "\n".join((f"start: {answer}", *rules))
    is_quiet = isinstance(prompt, ChatPrompt) and prompt.think is False and not style.is_thinking
    tags = None if is_quiet else _tags(style.markup.tags, control_id)
    return Constraint(grammar, tags, style.is_thinking)


def _schema_rule(schema: str) -> str:
    try:
        return json_rule(schema)
    except BadRequest as error:
        raise BadRequest(below(SCHEMA_PATH, error.path), error.problem) from None


def _tags(tags: ThinkTags | None, control_id: ControlId) -> ThinkTags | None:
    """The tags as far as they are control tokens: of `<|channel>thought` it is the first part."""
    if tags is None:
        return None
    token, bracket, _ = tags.opening.partition(">")
    opening = token + bracket
    return replace(tags, opening=opening) if control_id(opening) is not None else tags


def _harmony(control_id: ControlId) -> tuple[str, str]:
    """Rules for messages: any thinking, and then the answer on its channel."""
    channel, message, end, start = (
        _token(f"<|{name}|>", control_id) for name in ("channel", "message", "end", "start")
    )
    return (
        f'start: thinking* {channel} "final" {message} answer',
        f'thinking: {channel} "analysis" {message} /(?s:.*)/ {end} {start} "assistant"',
    )


def _token(text: str, control_id: ControlId) -> str:
    """A marker as the model has learned it: its control token, if it has one."""
    token = control_id(text)
    return _json(text) if token is None else f"<[{token}]>"


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
            rules.append(f"call_{number}: {_call(tool, self._writing.arguments_key)}")
        return rules

    def _calls(self) -> str:
        opening = self._marker(self._writing.opening)
        more = f"(/, ?/ call){_MORE}" if self._is_parallel else ""
        if self._writing.closing:
            one = f"{opening} call {self._marker(self._writing.closing)}"
            return f'{one} ("\\n" {one}){_MORE}' if self._is_parallel else one
        if self._writing.is_list:
            return f'{opening} "[" call {more} "]"'
        return f'call | "[" call {more} "]"' if self._is_parallel else "call"

    def _marker(self, text: str) -> str:
        core = text.strip()
        if not core:
            return ""
        before, _, behind = text.partition(core)
        blanks = (_json(before) if before else "", _json(behind) if behind else "")
        return f"{blanks[0]} {_token(core, self._control_id)} {blanks[1]}".strip()


def _call(tool: Tool, arguments_key: str) -> str:
    """A rule for a call; of any arguments where their schema says what no grammar can.

    All of it is JSON by a schema: beside another schema, a text of our own would begin like it and
    leave the engine no way back.
    """
    parameters = dict(_with_lists_of_types(parameters_of(tool)))
    # What they refer to is looked for at the top.
    shared = {key: parameters.pop(key) for key in _SHARED if key in parameters}
    try:
        return _call_rule(tool.name, arguments_key, parameters, shared)
    except BadRequest:
        return _call_rule(tool.name, arguments_key, {"type": "object"}, {})


def _call_rule(
    name: str, arguments_key: str, parameters: dict[str, Any], shared: dict[str, Any]
) -> str:
    schema = {
        "type": "object",
        "properties": {"name": {"const": name}, arguments_key: parameters},
        "required": ["name", arguments_key],
        "additionalProperties": False,
    }
    return json_rule(msgspec.json.encode(schema | shared).decode())


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
