"""The tools that an answer may call, and what values mean as calls of them. Pure.

Only an offered name makes a call: everything else is what the model wanted to say.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from localrun.core import Tool
from localrun.runner.output.lenient import NotReadable, read_value

_NAME_KEYS = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_OTHER_KEYS = ("type", "id", "tool_call_id", "tool_calls")
_TYPES = ("function", "tool", "tool_call")

# How far into a text one looks to see whether it may become a call: no key in front of the name
# is longer, and what is looked at is looked at with every piece.
N_TELLING = 256

_JSON_START = re.compile(
    r'\s*(?:\[\s*)?(?:\{\s*(?:"(?P<key>[^"\\]*)(?P<is_key>")?'
    r'(?P<rest>\s*:\s*(?:"(?P<value>[^"\\]*)(?P<is_value>")?)?)?)?)?'
)


class Found(NamedTuple):
    """A call as it was read: of an offered tool, and with an object of arguments."""

    name: str
    arguments: dict[str, Any]


class Offered:
    """The offered tools by name. Immutable."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._parameters = {tool.name: tool.parameters for tool in tools}
        self.names = tuple(self._parameters)

    def call(self, name: str, arguments: Any) -> Found | None:
        """A call with arguments as JSON has them, or as text of such; None when it is none."""
        if isinstance(arguments, str) and (source := arguments.strip()):
            try:
                arguments, end = read_value(source)
            except NotReadable:
                return None
            if end < len(source):
                return None
        if name not in self._parameters or not isinstance(arguments or {}, dict):
            return None
        return Found(name, arguments or {})

    def calls(self, value: Any) -> list[Found] | None:
        """What a JSON value calls; None unless all of it are calls."""
        if isinstance(value, list):
            return self._all(value)
        if not isinstance(value, dict) or not value:
            return None
        if "tool_calls" in value:
            return self._all(value["tool_calls"])
        found = self._one(value)
        return [found] if found else None

    def _all(self, values: Any) -> list[Found] | None:
        if not isinstance(values, list) or not values:
            return None
        calls = [self._one(value) if isinstance(value, dict) else None for value in values]
        return [call for call in calls if call] if all(calls) else None

    def _one(self, value: dict[str, Any]) -> Found | None:
        if isinstance(value.get("function"), dict):
            value = value["function"]
        name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
        if name is None:
            ((name, arguments),) = value.items() if len(value) == 1 else (("", None),)
            return self.call(name, arguments) if isinstance(arguments, dict) else None
        arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), {})
        unknown = value.keys() - {*_NAME_KEYS, *_ARGUMENT_KEYS, *_OTHER_KEYS}
        return None if unknown else self.call(name, arguments)

    def typed(self, name: str, texts: dict[str, str]) -> Found | None:
        """A call whose arguments are texts, made what the tool's schema says that they are."""
        properties = self._parameters.get(name, {}).get("properties", {})
        if not isinstance(properties, dict):
            properties = {}
        arguments = {key: _typed(text, properties.get(key)) for key, text in texts.items()}
        return self.call(name, arguments)

    def may_begin(self, text: str) -> bool:
        """Whether JSON that begins like `text` may become a call."""
        match = _JSON_START.match(text)
        assert match is not None
        key, value = match["key"], match["value"]
        if key is None:
            return match.end() == len(text)
        known = {*_NAME_KEYS, *_ARGUMENT_KEYS, *_OTHER_KEYS, *self.names}
        if not _may_become(key, known, is_whole=bool(match["is_key"])):
            return False
        if value is None:
            return True
        is_whole = bool(match["is_value"])
        if key in _NAME_KEYS:
            return _may_become(value, self.names, is_whole=is_whole)
        return key != "type" or _may_become(value, _TYPES, is_whole=is_whole)


def _may_become(text: str, known: Iterable[str], *, is_whole: bool) -> bool:
    return any(text == one if is_whole else one.startswith(text) for one in known)


def _typed(text: str, schema: Any) -> Any:
    """Source: the coercion of Ollama's parsers for formats whose values have no types."""
    types = _types(schema)
    if not types - {"string"}:
        return text
    try:
        value, end = read_value(text.strip())
    except NotReadable:
        return text
    if end != len(text.strip()) or isinstance(value, str):
        return text
    return value if _type_of(value) & types else text


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    if any_of := schema.get("anyOf"):
        return set().union(*map(_types, any_of)) if isinstance(any_of, list) else set()
    types = schema.get("type", ())
    return set(types.replace(",", " ").split()) if isinstance(types, str) else {*map(str, types)}


def _type_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case list():
            return {"array"}
    return {"object"}
