"""What a JSON Schema consists of: its parts, their places, and the words that say nothing.

Knows no limits but that of depth, which keeps every walk through a stranger's schema short.
Source: JSON Schema, draft 2020-12.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from localrun.errors import BadRequest
from localrun.schemas.formats import BEYOND, HELD, OF_ENGINE

# OpenAI allows 10 levels, and the engine's own JSON reader ends at 128 brackets.
MAX_DEPTH = 48

# Characters of a path that is shown.
_MAX_PATH = 80

Schema = dict[str, Any]

# Say nothing about what is valid.
ANNOTATIONS = frozenset(
    {
        *("$anchor", "$comment", "$id", "$schema", "contentEncoding", "contentMediaType"),
        *("contentSchema", "default", "deprecated", "description", "examples", "id"),
        *("readOnly", "title", "writeOnly"),
    }
)

# Keywords with schemas below them: in lists, under names, and one.
IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
IN_MAPS = ("properties", "patternProperties", "$defs", "definitions")
ALONE = ("items", "additionalProperties")


def children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """(path, schema) of what stands directly below, definitions included."""
    for key in ALONE:
        if key in schema:
            yield key, schema[key]
    for key in IN_LISTS:
        yield from ((f"{key}[{i}]", part) for i, part in enumerate(schema.get(key, ())))
    for key in IN_MAPS:
        yield from ((f"{key}.{name}", part) for name, part in schema.get(key, {}).items())


def rebuilt(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema with `change` made in every part, from within."""
    if not isinstance(schema, dict):
        return schema
    new = dict(schema)
    for key in ALONE:
        if key in new:
            new[key] = rebuilt(new[key], change)
    for key in IN_LISTS:
        if key in new:
            new[key] = [rebuilt(part, change) for part in new[key]]
    for key in IN_MAPS:
        if key in new:
            new[key] = {name: rebuilt(part, change) for name, part in new[key].items()}
    return change(new)


def walk(schema: Any, path: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Every schema in `schema`, the outer ones first: each is checked before it is entered."""
    if not isinstance(schema, dict | bool):
        raise BadRequest(path, f"must be a JSON Schema, an object, and not {shown(schema)}")
    if depth > MAX_DEPTH:
        raise BadRequest(_start(path), f"the schema has more than {MAX_DEPTH} levels")
    yield path, schema
    if isinstance(schema, dict):
        for key, part in children(schema):
            yield from walk(part, below(path, key), depth + 1)


def below(path: str, key: str) -> str:
    """The path of `key` at `path`."""
    return ".".join(filter(None, (path, key)))


def shown(value: Any) -> str:
    """The value as JSON, of a length that fits a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + "…"


def _start(path: str) -> str:
    """The first names of a path that is too long to be of use."""
    if len(path) <= _MAX_PATH:
        return path
    return path[: path.rfind(".", 0, _MAX_PATH) if "." in path[:_MAX_PATH] else 0] + "…"


def may_be(kind: str, schema: Schema) -> bool:
    """Whether the schema's `type` allows for values of that kind."""
    kinds = schema.get("type", kind)
    return kind in kinds if isinstance(kinds, list) else kinds == kind


def is_vain(key: str, schema: Schema) -> bool:
    """True for a keyword of the schema that says nothing of what is valid.

    A format is about strings, and one that nobody knows is about nothing. Source: JSON Schema.
    """
    value = schema[key]
    match key:
        case "format":
            is_unknown = isinstance(value, str) and value not in HELD.keys() | OF_ENGINE | BEYOND
            return is_unknown or not may_be("string", schema)
        case "propertyNames":
            says = value.keys() - ANNOTATIONS if isinstance(value, dict) else {"?"}
            return value is True or not says or (says == {"type"} and value["type"] == "string")
        case "uniqueItems":
            return value is False or schema.get("maxItems") in (0, 1) or not may_be("array", schema)
    return key in ANNOTATIONS
