"""Which JSON Schemas an answer can be held to. Pure; knows neither grammars nor dialects.

Refused here is what a grammar cannot say, what it would say at the cost of the machine, and what is
no schema at all. Regular expressions and what schemas come to when they are joined are left to the
grammar engine. Paths are those below the schema: `properties.a.pattern`.
Source: JSON Schema, draft 2020-12.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from localrun.errors import BadRequest

# What clients send is below 100 kB, OpenAI allows 120,000 characters of names and values; the
# grammar of twice as much is made in a fifth of a second.
MAX_BYTES = 256 << 10

# OpenAI allows 10 levels, and the engine's own JSON reader ends at 128 brackets.
MAX_DEPTH = 48

# Levels of the schema and of all that is referred to, which the engine goes down by recursion: 800
# of them fit a stack of 8 MiB.
MAX_LEVELS = 400

# Keys of an object, required or not: another recursion, and a symbol of the grammar each.
MAX_KEYS = 1000

# Values inside of constants that are no plain ones. Each is several symbols: 2,000 take 0.2 s.
MAX_CONSTANTS = 2000

# Regular expressions that may hold at once. Each doubles the work: 12 take 20 ms, 16 a second.
MAX_JOINED = 12

# Each item that may come becomes a rule of its own.
MAX_ITEMS = 1000

# Each is compared with each other.
MAX_PATTERNS = 32

# Four items of a row of the parser each, which has 2,000. One that has to come costs none.
MAX_OPTIONAL = 400

# Each character that may come can become a state of the lexer.
MAX_LENGTH = 100_000

# A remainder is a state: ten thousand of them take 25 ms, a hundred times as many take minutes.
MAX_DIVISOR = 10_000

# What people write by hand; long ones are states of the lexer too.
MAX_PATTERN = 1000
MAX_PATTERN_DEPTH = 32

# Parts that are looked at to see which references end: a tenth of a second.
MAX_LOOKS = 100_000

# Beyond it neighbouring whole numbers are the same number to most readers of JSON.
MAX_NUMBER = float(1 << 53)

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

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

# Would have to be remembered over the whole value, or compared with other places.
_BEYOND = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
        *("$dynamicRef", "$recursiveRef"),
    }
)

_IN_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ALONE = ("items", "additionalProperties")

Schema = dict[str, Any]


def check_schema(schema: Any) -> None:
    """Raises BadRequest for a schema that an answer cannot be held to."""
    if _n_bytes(schema) > MAX_BYTES:
        raise BadRequest("", f"the schema is longer than {MAX_BYTES} bytes")
    for path, part in _walk(schema):
        if isinstance(part, dict):
            _check_keywords(part, path)
    _check_references(schema)
    _check_sums(schema)


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


def below(path: str, key: str) -> str:
    """The path of `key` at `path`."""
    return ".".join(filter(None, (path, key)))


def _n_bytes(schema: Any) -> int:
    try:
        return len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise BadRequest("", f"the schema has more than {MAX_DEPTH} levels") from None


def _walk(schema: Any, path: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Every schema in `schema`, the outer ones first: each is checked before it is entered."""
    if not isinstance(schema, dict | bool):
        raise BadRequest(path, f"must be a JSON Schema, an object, and not {shown(schema)}")
    if depth > MAX_DEPTH:
        raise BadRequest(path[:80], f"the schema has more than {MAX_DEPTH} levels")
    yield path, schema
    if isinstance(schema, dict):
        for key, part in children(schema):
            yield from _walk(part, below(path, key), depth + 1)


def shown(value: Any) -> str:
    """The value as JSON, of a length that fits a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:60] + "…"


# ---- one schema


def _check_keywords(schema: Schema, path: str) -> None:
    known = [key for key in schema if key in _CHECKS or key in _BEYOND or key in ANNOTATIONS]
    if schema and not known:
        keys = ", ".join(f"`{key[:40]}`" for key in list(schema)[:5])
        raise BadRequest(
            path, f"has no keyword of JSON Schema, only {keys}; an example is not a schema"
        )
    for key, value in schema.items():
        if key in _BEYOND and not is_vain(key, value):
            raise BadRequest(below(path, key), f"`{key}` is not supported; leave it out")
        if key in _CHECKS and (problem := _CHECKS[key](value)):
            raise BadRequest(below(path, key), problem)
    required = set(schema.get("required", ()))
    if len(schema.get("properties", {}).keys() | required) > MAX_KEYS:
        raise BadRequest(below(path, "properties"), f"has more than {MAX_KEYS} keys")
    if len(schema.get("properties", {}).keys() - required) > MAX_OPTIONAL:
        raise BadRequest(
            below(path, "properties"), f"has more than {MAX_OPTIONAL} keys that are not `required`"
        )
    # Keys that only `additionalProperties` allows may come twice, and count once.
    if schema.get("minProperties", 0) > max(1, len(required)):
        raise BadRequest(
            below(path, "minProperties"), "must be at most 1, or the number of `required` keys"
        )


def is_vain(key: str, value: Any) -> bool:
    """True for a keyword that says nothing of what is valid."""
    if key == "format":
        return value in SILENT_FORMATS
    return key in ANNOTATIONS or (key == "uniqueItems" and value is False)


def _type(value: Any) -> str:
    names = value if isinstance(value, list) else [value]
    wrong = [name for name in names if name not in TYPES]
    if names and not wrong:
        return ""
    what = shown(wrong[0]) if wrong else "an empty list"
    return f"{what} is no type; use {', '.join(TYPES)}"


def _texts(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ""
    return f"must be a list of strings, and not {shown(value)}"


def _filled_list(value: Any) -> str:
    return "" if isinstance(value, list) and value else f"must be a list, and not {shown(value)}"


def _map(value: Any) -> str:
    return "" if isinstance(value, dict) else f"must be an object, and not {shown(value)}"


def _patterns(value: Any) -> str:
    if problem := _map(value):
        return problem
    if len(value) > MAX_PATTERNS:
        return f"has more than {MAX_PATTERNS} patterns"
    return next(filter(None, map(_pattern, value)), "")


def _pattern(value: Any) -> str:
    if not isinstance(value, str):
        return f"must be a string, and not {shown(value)}"
    if len(value) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    bare = _CLASS.sub("x", _ESCAPE.sub("x", value))
    if _VAIN.search(bare):
        return f"{shown(value)} repeats what is not there"
    depth = deepest = 0
    for character in bare:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return f"has more than {MAX_PATTERN_DEPTH} levels" if deepest > MAX_PATTERN_DEPTH else ""


# Takes escapes and classes out of a pattern, so that what is left of its signs means itself.
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
# The engine would read a repeated anchor as none at all, where others see a mistake.
_VAIN = re.compile(r"(?:^|[(|^$])(?:[*+]|\{\d|\?(?![:=!<P]))|\$\?")


def _format(value: Any) -> str:
    if isinstance(value, str) and value in FORMATS | SILENT_FORMATS:
        return ""
    return f"{shown(value)} is not supported; use {', '.join(sorted(FORMATS))}, or a pattern"


def _count(limit: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit:
            return ""
        return f"must be an integer from 0 to {limit}, and not {shown(value)}"

    return check


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number, and not {shown(value)}"
    return "" if abs(value) <= MAX_NUMBER else f"{shown(value)} is out of range"


def _step(value: Any) -> str:
    if problem := _number(value):
        return problem
    if value <= 0:
        return "must be greater than 0"
    return "" if _n_remainders(value) <= MAX_DIVISOR else f"has more digits than {MAX_DIVISOR}"


def _n_remainders(step: float) -> int:
    _sign, digits, exponent = Decimal(str(step)).as_tuple()
    assert isinstance(exponent, int)  # else it is no number
    n: int = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    return n


def _reference(value: Any) -> str:
    if isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return ""
    return f"{shown(value)} is not supported; name a place in the schema, as in `#/$defs/name`"


def _anything(_value: Any) -> str:
    return ""


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "type": _type,
    "enum": _filled_list,
    "const": _anything,
    "anyOf": _filled_list,
    "oneOf": _filled_list,
    "allOf": _filled_list,
    "$ref": _reference,
    "$defs": _map,
    "definitions": _map,
    "properties": _map,
    "patternProperties": _patterns,
    "additionalProperties": _anything,
    "required": _texts,
    "minProperties": _count(MAX_ITEMS),
    "maxProperties": _count(MAX_ITEMS),
    "items": _anything,
    "prefixItems": _filled_list,
    "minItems": _count(MAX_ITEMS),
    "maxItems": _count(MAX_ITEMS),
    "minLength": _count(MAX_LENGTH),
    "maxLength": _count(MAX_LENGTH),
    "pattern": _pattern,
    "format": _format,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _step,
}


# ---- what parts come to together

_JOINING = {"anyOf", "oneOf", "allOf", "$ref"}


def has_joints(schema: Any) -> bool:
    """Whether somewhere a value has to match two schemas at once."""
    for _, part in _walk(schema):
        if isinstance(part, dict):
            says = part.keys() - ANNOTATIONS - {"$defs", "definitions"}
            if says & _JOINING and (len(says) > 1 or len(part.get("allOf", ())) > 1):
                return True
    return False


def _check_sums(schema: Any) -> None:
    """Raises BadRequest for what is harmless in each place, and not in all of them together."""
    n_constants = n_patterns = 0
    divisor = 1
    for _, part in _walk(schema):
        if isinstance(part, dict):
            constants = [part.get("const"), *part.get("enum", ())]
            n_constants += sum(map(_n_inside, constants))
            n_patterns += "pattern" in part
            n_patterns += len(part.get("patternProperties", ()))
            divisor *= _n_remainders(part.get("multipleOf", 1))
    if n_constants > MAX_CONSTANTS:
        raise BadRequest("", f"the constants hold more than {MAX_CONSTANTS} values")
    if n_patterns > MAX_JOINED and has_joints(schema):
        raise BadRequest(
            "", f"more than {MAX_JOINED} patterns in a schema of parts that hold at once"
        )
    if divisor > MAX_DIVISOR and has_joints(schema):
        raise BadRequest("", "the divisors in a schema of parts that hold at once are too large")


def _n_inside(constant: Any) -> int:
    """Values inside of an array or object."""
    n, rest = 0, [constant]
    while rest:
        value = rest.pop()
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            n += len(value)
            rest.extend(inner)
    return n


# ---- references


def _check_references(schema: Any) -> None:
    """Raises BadRequest for one that leads nowhere, and where following them never ends."""
    targets: dict[str, Any] = {}
    first: dict[str, str] = {}
    for path, part in _walk(schema):
        if isinstance(part, dict) and (reference := part.get("$ref")) is not None:
            targets[reference] = _target(schema, reference, below(path, "$ref"))
            first.setdefault(reference, below(path, "$ref"))
    depths: dict[int, int] = {}
    if sum(_depth(part, depths) for part in (schema, *targets.values())) > MAX_LEVELS:
        raise BadRequest(
            "$defs", f"the schema and what it refers to have more than {MAX_LEVELS} levels"
        )
    found = _Ends(targets)
    endless = next((reference for reference in targets if not found.ends[reference]), None)
    if endless is not None:
        raise BadRequest(first[endless], f"no value can ever match {shown(endless)}: it never ends")


def _target(schema: Any, reference: str, path: str) -> Any:
    found = schema
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            raise BadRequest(path, f"{shown(reference)} is nowhere in the schema")
    if not isinstance(found, dict | bool):
        raise BadRequest(path, f"{shown(reference)} is no schema")
    return found


def _depth(schema: Any, known: dict[int, int]) -> int:
    """Levels of a schema; `known` are those of its parts, by identity."""
    if not isinstance(schema, dict):
        return 1
    if id(schema) not in known:
        known[id(schema)] = 1 + max(
            (_depth(part, known) for _, part in children(schema)), default=0
        )
    return known[id(schema)]


class _Ends:
    """Which references lead to a schema that a value of finite size can match: `ends`.

    None does until shown otherwise, over and over, until a round shows nothing new.
    """

    def __init__(self, targets: Mapping[str, Any]) -> None:
        self.ends = dict.fromkeys(targets, False)
        self._n_looks = 0
        is_new = True
        while is_new:
            is_new = False
            for reference, target in targets.items():
                if not self.ends[reference] and self._can_end(target):
                    self.ends[reference] = is_new = True

    def _can_end(self, schema: Any) -> bool:
        self._n_looks += 1
        if self._n_looks > MAX_LOOKS:
            raise BadRequest("$defs", "the schema's references are too entangled")
        if not isinstance(schema, dict):
            return schema is not False
        if "const" in schema or "enum" in schema:
            return True
        if not self.ends.get(schema.get("$ref", ""), True):
            return False
        if not all(map(self._can_end, schema.get("allOf", ()))):
            return False
        for key in ("anyOf", "oneOf"):
            if key in schema and not any(map(self._can_end, schema[key])):
                return False
        kinds = schema.get("type", TYPES)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        return any(all(map(self._can_end, _needed(kind, schema))) for kind in kinds)


def _needed(kind: str, schema: Schema) -> list[Any]:
    """The schemas of what a value of that kind has to hold."""
    if kind == "object":
        properties, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        return [properties.get(name, other) for name in schema.get("required", ())]
    if kind == "array":
        n_items, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        rest = [schema.get("items", True)] if n_items > len(first) else []
        return [*first[:n_items], *rest]
    return []
