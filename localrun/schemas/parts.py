"""What a JSON Schema consists of: its parts, their places, and the words that say nothing.

Knows no limits but that of depth, which keeps every walk through a stranger's schema short.
Source: JSON Schema, draft 2020-12.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from localrun.errors import BadRequest

# OpenAI allows 10 levels, and the engine's own JSON reader ends at 128 brackets.
MAX_DEPTH = 48

Schema = dict[str, Any]

# Those that the engine knows.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)

# Written by generators of schemas; they say something of the value's use, and nothing of its text.
SILENT_FORMATS = frozenset(("password", "binary", "path", "file-path", "directory-path"))

# Say nothing about what is valid.
ANNOTATIONS = frozenset(
    {
        *("$anchor", "$comment", "$id", "$schema", "contentEncoding", "contentMediaType"),
        *("contentSchema", "default", "deprecated", "description", "examples", "id"),
        *("readOnly", "title", "writeOnly"),
    }
)

_IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ALONE = ("items", "additionalProperties")


def children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """(path, schema) of what stands directly below, definitions included."""
    for key in _ALONE:
        if key in schema:
            yield key, schema[key]
    for key in _IN_LISTS:
        yield from ((f"{key}[{i}]", part) for i, part in enumerate(schema.get(key, ())))
    for key in _IN_MAPS:
        yield from ((f"{key}.{name}", part) for name, part in schema.get(key, {}).items())


def rebuilt(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """The schema with `change` made in every part, from within."""
    if not isinstance(schema, dict):
        return schema
    new = dict(schema)
    for key in _ALONE:
        if key in new:
            new[key] = rebuilt(new[key], change)
    for key in _IN_LISTS:
        if key in new:
            new[key] = [rebuilt(part, change) for part in new[key]]
    for key in _IN_MAPS:
        if key in new:
            new[key] = {name: rebuilt(part, change) for name, part in new[key].items()}
    return change(new)


def walk(schema: Any, path: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Every schema in `schema`, the outer ones first: each is checked before it is entered."""
    if not isinstance(schema, dict | bool):
        raise BadRequest(path, f"must be a JSON Schema, an object, and not {shown(schema)}")
    if depth > MAX_DEPTH:
        raise BadRequest(path[:80], f"the schema has more than {MAX_DEPTH} levels")
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


def is_vain(key: str, value: Any) -> bool:
    """True for a keyword that says nothing of what is valid."""
    if key == "format":
        return value in SILENT_FORMATS
    return key in ANNOTATIONS or (key == "uniqueItems" and value is False)
