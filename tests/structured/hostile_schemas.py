"""Schemas that would cost time, memory or the process."""

from typing import Any

from schema_features import of


def nested(n: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(n):
        schema = of(schema)
    return schema


def pattern(text: str, **more: Any) -> Any:
    return of({"type": "string", "pattern": text, **more})


def doubled(keyword: str, n: int) -> Any:
    steps = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)}
    return {"$defs": {**steps, f"d{n}": of({"type": "string"})}, "$ref": "#/$defs/d0"}


def crossed(n: int) -> Any:
    """`n` choices of three that all hold at once."""
    return {
        "allOf": [{"anyOf": [of({}) | {"required": [f"{i}{j}"]} for j in "abc"]} for i in range(n)]
    }


def chain(n: int) -> Any:
    """References of which only the last ends, told in the order that takes longest."""
    steps = {f"d{i}": of({"$ref": f"#/$defs/d{i - 1}"}) for i in range(1, n)}
    return {"$defs": {**steps, "d0": {"type": "null"}}, "$ref": f"#/$defs/d{n - 1}"}


REFUSED: dict[str, Any] = {
    "5000 levels": nested(5000 // 20),  # Python's own JSON cannot write more
    "5000 parentheses": pattern("(" * 400 + "a" + ")" * 400),
    "a long pattern": pattern("(" * 5000 + "a" + ")" * 5000),
    "a repeated anchor": pattern("^+a$"),
    "a counted anchor": pattern("^{2}x$"),
    "a repeated lookbehind": pattern("(?<=x)*"),
    "nothing repeated": pattern("a|*b"),
    "a reference to itself": {"$ref": "#"},
    "a key that holds itself": of({"$ref": "#"}),
    "an enum of a megabyte": {"enum": [f"x{i}" for i in range(110_000)]},
    "a billion items": {"type": "array", "maxItems": 10**9},
    "a billion characters": of({"type": "string", "minLength": 10**9}),
    "a large divisor": of({"multipleOf": 9_999_991}),
    "choices multiplied": crossed(12),
    "a wide object": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    "a set of thirty thousand": {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": list(range(30_000))},
    },
    "sets of five, many": {
        "type": "object",
        "properties": {
            f"p{i}": {"type": "array", "uniqueItems": True, "items": {"enum": [*"abcde"]}}
            for i in range(100)
        },
    },
    "the least integer, as a constant": of({"const": -(2**63)}),
    "the least integer, inside of one": {"enum": [{"x": [-(2**63)]}]},
    "entangled references": chain(2000),
}
HARMLESS: dict[str, Any] = {
    "a set of five": {"type": "array", "uniqueItems": True, "items": {"enum": [*"abcde"]}},
    "formats everywhere": {
        "type": "object",
        "properties": {
            f"{name}{i}": {"type": "string", "format": name}
            for i in range(20)
            for name in ("uri", "email", "date-time", "uri-reference")
        },
    },
    "40 levels": nested(40),
    "a thousand items of a thousand": {
        "type": "array",
        "maxItems": 1000,
        "items": {"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000}},
    },
    "a long string": of({"type": "string", "minLength": 90_000, "maxLength": 100_000}),
    "counted repetitions": pattern("^((a|b|c){1,500}d){1,500}$"),
    "a pattern that doubles its states": pattern("(.*a.{300}){20}"),
    "references doubled": doubled("allOf", 30),
    "choices doubled": doubled("anyOf", 30),
    "400 optional keys": {"type": "object", "properties": {f"p{i}": {} for i in range(400)}},
    "1000 required keys": {
        "type": "object",
        "properties": {f"p{i}": {"type": "null"} for i in range(1000)},
        "required": [f"p{i}" for i in range(1000)],
    },
    "a chain of references": chain(100),
}
