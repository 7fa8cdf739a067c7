"""What may stand behind each keyword, and how much of it. One schema at a time.

Refused is what a grammar cannot say, what it would say at the cost of the machine, and what is no
schema. Regular expressions are looked at only as far as the grammar engine is generous with them.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from localrun.errors import BadRequest
from localrun.schemas.formats import BEYOND
from localrun.schemas.parts import ANNOTATIONS, Schema, below, is_vain, may_be, shown

# Keys of an object, required or not: another recursion, and a symbol of the grammar each.
MAX_KEYS = 1000

# Four items of a row of the parser each, which has 2,000. One that has to come costs none.
MAX_OPTIONAL = 400

# Each item that may come becomes a rule of its own.
MAX_ITEMS = 1000

# Each is compared with each other.
MAX_PATTERNS = 32

# Each character that may come can become a state of the lexer.
MAX_LENGTH = 100_000

# A remainder is a state: ten thousand of them take 25 ms, a hundred times as many take minutes.
MAX_DIVISOR = 10_000

# What people write by hand; long ones are states of the lexer too.
MAX_PATTERN = 1000
MAX_PATTERN_DEPTH = 32

# Beyond it neighbouring whole numbers are the same number to most readers of JSON.
MAX_NUMBER = 1 << 53

# What the engine can count to, as far as it is exact: bounds beyond it hold for all that comes.
MAX_BOUND = (1 << 63) - (1 << 10)

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Would have to be remembered over the whole value, or compared with other places.
_BEYOND = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
        *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
        *("$dynamicRef", "$recursiveRef"),
    }
)


def check_keywords(schema: Schema, path: str) -> None:
    """Raises BadRequest for the schema at `path`, whatever its parts are."""
    known = [key for key in schema if key in _CHECKS or key in _BEYOND or key in ANNOTATIONS]
    if schema and not known:
        keys = ", ".join(f"`{key[:40]}`" for key in list(schema)[:5])
        raise BadRequest(
            path, f"has no keyword of JSON Schema, only {keys}; an example is not a schema"
        )
    for key, value in schema.items():
        if is_vain(key, schema):
            continue
        if key in _BEYOND:
            raise BadRequest(below(path, key), f"`{key}` is not supported; leave it out")
        if key in _CHECKS and (problem := _CHECKS[key](value)):
            raise BadRequest(below(path, key), problem)
    _check_keys(schema, path)


def _check_keys(schema: Schema, path: str) -> None:
    """Raises BadRequest for what keywords come to that are about the keys of an object."""
    required = set(schema.get("required", ()))
    names = schema.get("propertyNames", True)
    if names is not True and not is_vain("propertyNames", schema):
        if "enum" in names and len(set(names["enum"]) - required) > MAX_OPTIONAL:
            raise BadRequest(below(path, "propertyNames"), f"has more than {MAX_OPTIONAL} names")
        if "patternProperties" in schema or ("properties" in schema and "enum" not in names):
            raise BadRequest(
                below(path, "propertyNames"),
                "is not supported beside `properties` and `patternProperties`; leave it out",
            )
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
    if not isinstance(value, str):
        return f"must be a string, and not {shown(value)}"
    return f"{shown(value)} is not supported; leave it out" if value in BEYOND else ""


def _boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, and not {shown(value)}"


def _names(value: Any) -> str:
    """Of `propertyNames`: what becomes `properties` or a pattern of them."""
    says = value.keys() - ANNOTATIONS - {"type"} if isinstance(value, dict) else set()
    if len(says) != 1 or not may_be("string", value) or not says <= {"enum", "const", "pattern"}:
        return "is supported with an `enum` or a `pattern` alone; leave it out"
    if "pattern" in value:
        return _pattern(value["pattern"])
    return _texts(value["enum"]) if "enum" in value else _texts([value["const"]])


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


def _lower(value: Any) -> str:
    is_vast = isinstance(value, int | float) and value < -MAX_NUMBER
    return "" if is_vast and not isinstance(value, bool) else _number(value)


def _upper(value: Any) -> str:
    is_vast = isinstance(value, int | float) and value > MAX_NUMBER
    return "" if is_vast and not isinstance(value, bool) else _number(value)


def _step(value: Any) -> str:
    if problem := _number(value):
        return problem
    if value <= 0:
        return "must be greater than 0"
    if n_remainders(value) <= MAX_DIVISOR:
        return ""
    return f"{shown(value)} has too many digits; without its point it must be at most {MAX_DIVISOR}"


def n_remainders(step: float) -> int:
    """How many remainders a division by `step` has, digits behind the point counted as others."""
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


def _constants(value: Any) -> str:
    return _filled_list(value) or next(filter(None, map(_constant, value)), "")


def _constant(value: Any) -> str:
    """Of numbers beyond the limit the engine writes others, and dies of the least it can count."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, int | float) and abs(one) > MAX_NUMBER:
            return f"{shown(one)} is beyond {MAX_NUMBER}, where numbers are not exact; use a string"
        if isinstance(one, dict | list):
            rest.extend(one.values() if isinstance(one, dict) else one)
    return ""


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "type": _type,
    "enum": _constants,
    "const": _constant,
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
    "propertyNames": _names,
    "minProperties": _count(MAX_ITEMS),
    "maxProperties": _count(MAX_ITEMS),
    "items": _anything,
    "prefixItems": _filled_list,
    "minItems": _count(MAX_ITEMS),
    "maxItems": _count(MAX_ITEMS),
    "uniqueItems": _boolean,
    "minLength": _count(MAX_LENGTH),
    "maxLength": _count(MAX_LENGTH),
    "pattern": _pattern,
    "format": _format,
    "minimum": _lower,
    "maximum": _upper,
    "exclusiveMinimum": _lower,
    "exclusiveMaximum": _upper,
    "multipleOf": _step,
}
