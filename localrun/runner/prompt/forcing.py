"""What an answer has to look like: a call that must come, a schema, or both.

A call is written in the format of the template where that has JSON, else as plain JSON, which is
read in every format (`output.calls`). Source of the grammar's language: llguidance's Lark.
"""

import json
import logging
import time
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
from localrun.schemas.loosening import loosened
from localrun.schemas.parts import below, rebuilt

# Small models that may go on with calls do so until the window is full; nobody has asked for more
# than a few at once.
_MORE = "{0,15}"

# Keys of a schema that leave it to `properties` which parameters there are.
_NAMES_NO_PARAMETER = frozenset(
    ("type", "properties", "required", "title", "description", "$schema")
)

# Where a schema keeps the parts that it refers to.
_SHARED = ("$defs", "definitions")
_SHARED_STEPS = tuple([key] for key in _SHARED)

# For all tools of a request, to find out what of their schemas can be held to. What is wrong in
# keywords is found in a millisecond, what the engine refuses takes half a second at most.
_LOOSENING_S = 1.0

# Places of a tool that the log and the client are told, and characters of each.
_MAX_SHOWN = 10
# Of all tools; a header of the reply names them.
_MAX_TOLD = 32
_MAX_PLACE = 100

_log = logging.getLogger(__name__)

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
    offers = isinstance(prompt, ChatPrompt) and (style.tools or choice.is_required)
    tools = _chosen(prompt) if isinstance(prompt, ChatPrompt) and offers else ()
    form = style.markup.form
    rules: list[str] = []
    ways: list[str] = []
    loosened: list[str] = []
    if schema is not None and not choice.is_required:
        ways.append("schema")
        rules.append(f"schema: {_schema_rule(schema)}")
    if tools and (choice.is_required or form.is_json):
        ways.append("calls")
        calls = _Calls(tools, form.writing, control_id, is_parallel=choice.is_parallel)
        rules += calls.rules()
        loosened += calls.loosened
    answer = " | ".join(ways)
    if style.markup.is_harmony:
        grammar = "\n".join((*_harmony(control_id), f"answer: {answer}", *rules))
        return Constraint(grammar, loosened=tuple(loosened))
    grammar = "\n".join((f"start: {answer}", *rules))
    is_quiet = isinstance(prompt, ChatPrompt) and prompt.think is False and not style.is_thinking
    tags = None if is_quiet else _tags(style.markup.tags, control_id)
    return Constraint(grammar, tags, style.is_thinking, tuple(loosened))


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
    """The rule `calls` and what it needs; `loosened` tells what it leaves out, once it is made."""

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
        self.loosened: list[str] = []

    def rules(self) -> list[str]:
        rules = [f"calls: {self._calls()}"]
        deadline_s = time.monotonic() + _LOOSENING_S
        rules.append("call: " + " | ".join(f"call_{n}" for n in range(len(self._tools))))
        for number, tool in enumerate(self._tools):
            rule, gone = _call(tool, self._writing.arguments_key, deadline_s)
            rules.append(f"call_{number}: {rule}")
            room = _MAX_TOLD - len(self.loosened)
            self.loosened += [f"{tool.name}: {place}" for place in gone[:room]]
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


def _closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool that names no parameters takes none: else a small model makes some up.

    Source: OpenAI's API, where to leave `parameters` out "defines a function with an empty list".
    """
    if parameters.get("properties") or parameters.keys() - _NAMES_NO_PARAMETER:
        return parameters
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _call(tool: Tool, arguments_key: str, deadline_s: float) -> tuple[str, list[str]]:
    """(a rule for a call, places of the tool's schema that its arguments are not held to).

    All of it is JSON by a schema: beside another schema, a text of our own would begin like it and
    leave the engine no way back. Raises BadRequest for a strict tool.
    """
    parameters = _with_lists_of_types(_closed(parameters_of(tool)))
    if tool.strict_path:
        try:
            _check(parameters)
            return _call_rule(tool.name, arguments_key, parameters), []
        except BadRequest as error:
            path = below(tool.strict_path, error.path)
            raise BadRequest(path, f"{error.problem} (the tool is `strict`)") from None
    rest, gone = loosened(parameters, _check, lambda: time.monotonic() < deadline_s)
    try:
        rule = _call_rule(tool.name, arguments_key, rest)
    except BadRequest as error:
        gone.append(error.path)
        rule = _call_rule(tool.name, arguments_key, {})
    places = list(map(_place, gone[:_MAX_SHOWN]))
    if gone:
        more = f" and {len(gone) - _MAX_SHOWN} more" if len(gone) > _MAX_SHOWN else ""
        shown = ", ".join(places) + more
        _log.warning("calls of the tool %s are not held to %s", tool.name, shown)
    return rule, places


def _place(path: str) -> str:
    """A path to be shown: names are the client's, and may hold anything."""
    shown = "".join(one if one.isprintable() else "?" for one in path[:_MAX_PLACE])
    return shown or "any of its schema"


def _check(parameters: dict[str, Any]) -> None:
    json_rule(msgspec.json.encode(parameters).decode())


def _call_rule(name: str, arguments_key: str, parameters: dict[str, Any]) -> str:
    here = f"#/properties/{arguments_key}"

    def change(part: dict[str, Any]) -> dict[str, Any]:
        reference = part.get("$ref")
        if not isinstance(reference, str) or reference.split("/")[1:2] in _SHARED_STEPS:
            return part
        return {**part, "$ref": here + reference.removeprefix("#")}

    arguments = {**rebuilt(parameters, change), "type": "object"}
    # The engine finds them faster at the top, and so does who looks for what is wrong.
    shared = {key: arguments.pop(key) for key in _SHARED if key in arguments}
    schema = {
        "type": "object",
        "properties": {"name": {"const": name}, arguments_key: arguments},
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
