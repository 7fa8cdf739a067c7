"""One schema for each feature of JSON Schema, and what matches it or does not."""

from typing import Any

Schema = dict[str, Any]


def of(part: Any, **more: Any) -> Schema:
    """An object with one key, `a`, that has to be there."""
    return {"type": "object", "properties": {"a": part}, "required": ["a"], **more}


_NODE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
    },
    "required": ["v", "next"],
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "boss": {"$ref": "#"}},
    "required": ["name"],
}

# name → a schema that has to be supported
SUPPORTED: dict[str, Schema] = {
    "ref": of({"$ref": "#/$defs/c"}) | {"$defs": {"c": {"enum": ["red", "green"]}}},
    "ref with a description": of({"$ref": "#/$defs/c", "description": "d"})
    | {"$defs": {"c": {"enum": ["red", "green"]}}},
    "old definitions": of({"$ref": "#/definitions/c"})
    | {"definitions": {"c": {"type": "integer"}}},
    "recursive ref": {"$ref": "#/$defs/n", "$defs": {"n": _NODE}},
    "ref to the root": _PERSON,
    "ref to a property": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    },
    "anyOf null": of({"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]}),
    "anyOf of objects": of({"anyOf": [of({"const": 1}), of({"const": 2}, title="two")]}),
    "const": of({"const": "fixed"}),
    "const number": of({"const": 3.5}),
    "const object": of({"const": {"x": [1, {"y": None}]}}),
    "enum": of({"enum": ["red", "green", "blue"]}),
    "enum of everything": of({"enum": [1, 2.5, None, True, 'a"b\\', "é😀", {"k": 1}, [1, "z"]]}),
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "allOf of one": of({"allOf": [{"$ref": "#/$defs/c"}], "default": "red"})
    | {"$defs": {"c": {"enum": ["red"]}}},
    "keywords beside anyOf": {
        "type": "object",
        "properties": {"k": {"type": "string", "maxLength": 5}},
        "required": ["k"],
        "anyOf": [
            {"properties": {"n": {"type": "integer"}}, "required": ["n"]},
            {"properties": {"s": {"type": "boolean"}}, "required": ["s"]},
        ],
    },
    "oneOf of types": of({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}),
    "oneOf told apart": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "v": {"type": kind}},
                "required": ["kind", "v"],
            }
            for kind in ("integer", "boolean")
        ]
    },
    "pattern, anchored": of({"type": "string", "pattern": r"^\d{4}-\d{2}$"}),
    "pattern, one digit": of({"type": "string", "pattern": "^[0-9]$"}),
    "pattern, not anchored": of({"type": "string", "pattern": "[0-9]", "maxLength": 12}),
    "pattern, no blank": of({"type": "string", "pattern": r"\S", "maxLength": 12}),
    "pattern, groups": of({"type": "string", "pattern": "(a|b)+", "maxLength": 12}),
    "pattern, deep inside": of(
        of({"type": "array", "items": {"type": "string", "pattern": "^x?$"}})
    ),
    "pattern, quotes": of({"type": "string", "pattern": '^["\\\\/]{2}$'}),
    "format date": of({"type": "string", "format": "date"}),
    "format date-time": of({"type": "string", "format": "date-time"}),
    "format time": of({"type": "string", "format": "time"}),
    "format uuid": of({"type": "string", "format": "uuid"}),
    "format ipv4": of({"type": "string", "format": "ipv4"}),
    "format email": of({"type": "string", "format": "email"}),
    "format without meaning": of({"type": "string", "format": "password", "maxLength": 5}),
    "minimum and maximum": of({"type": "integer", "minimum": -3, "maximum": 12}),
    "exclusive bounds": of({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    "fractional bounds": of({"type": "number", "minimum": 0.25, "maximum": 10.5}),
    "multipleOf": of({"type": "integer", "multipleOf": 7}),
    "multipleOf a cent": of({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 99}),
    "minLength": of({"type": "string", "minLength": 3, "maxLength": 6}),
    "minItems and maxItems": of(
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}
    ),
    "prefixItems": of(
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
            "items": False,
            "minItems": 1,
        }
    ),
    "no additional properties": of({"type": "integer"}, additionalProperties=False),
    "additional properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
    },
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
    },
    "required without properties": {
        "type": "object",
        "required": ["b"],
        "additionalProperties": {"type": "null"},
    },
    "several types": of({"type": ["string", "null", "integer"], "maxLength": 4}),
    "top-level array": {"type": "array", "items": {"type": "boolean"}, "maxItems": 5},
    "top-level string": {"type": "string", "maxLength": 10},
    "top-level number": {"type": "integer", "minimum": 0, "maximum": 999},
    "empty schema": of({}) | {"additionalProperties": False},
    "true": of(True),
    "false for what may not be there": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": False},
        "required": ["a"],
    },
    "optional keys": {
        "type": "object",
        "properties": {
            "end_line": {"type": "integer"},
            "start_line": {"type": "integer"},
            "file": {"type": "string", "maxLength": 9},
        },
        "required": ["file"],
    },
    "annotations": of(
        {"type": "integer", "title": "t", "default": 3, "examples": [1], "deprecated": True},
        title="x",
    )
    | {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/x"},
    "keys that look like keywords": {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in ("title", "default", "enum", "$ref")},
        "required": ["title", "default", "enum", "$ref"],
    },
}

_COLORS = {"Color": {"enum": ["red", "green", "blue"], "title": "Color", "type": "string"}}
_ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
_ZOD_DURATION = (
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
)

# As generators of schemas write them: pydantic, Zod, .NET, OpenAPI.
GENERATED: dict[str, Schema] = {
    **{
        f"format {name}": of({"type": kind, "format": name})
        for kind, names in {
            "integer": ("int32", "int64", "uint32", "uint64", "date"),
            "number": ("float", "double", "decimal"),
        }.items()
        for name in names
    },
    **{
        f"format {name}": of({"type": "string", "format": name, "maxLength": 5})
        for name in ("byte", "color", "unheard-of")
    },
    "format of several types": of({"type": ["string", "null"], "format": "date"}),
    "Zod's email": of({"type": "string", "format": "email", "pattern": _ZOD_EMAIL}),
    "Zod's duration": of({"type": "string", "format": "duration", "pattern": _ZOD_DURATION}),
    "format and pattern": of({"type": "string", "format": "date", "pattern": "^19.*$"}),
    "format, pattern and allOf": of(
        {
            "type": "string",
            "format": "date",
            "pattern": "^19.*$",
            "allOf": [{"pattern": "^.*-0[1-9]$"}],
        }
    ),
    "bounds of 64 bits": of({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
    "bounds of unsigned 64 bits": of({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}),
    "exclusive bounds of 64 bits": of(
        {"type": "integer", "exclusiveMinimum": -(2**63), "exclusiveMaximum": 2**63}
    ),
    "a bound that is no float": of({"type": "integer", "minimum": 2**53 - 5, "maximum": 2**53 + 3}),
    "bounds of floats": of({"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}),
    "a lower bound of 64 bits": of({"type": "integer", "minimum": -(2**63)}),
    "names that are strings": {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "integer"},
    },
    "names of an enum": {
        "type": "object",
        "propertyNames": {"type": "string", "enum": ["a", "b"]},
        "additionalProperties": {"type": "integer"},
        "required": ["a"],
    },
    "names of an enum beside properties": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "c": {"type": "boolean"}},
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": {"type": "integer"},
    },
    "names of a pattern": {
        "type": "object",
        "propertyNames": {"pattern": "^x_[a-z]{1,3}$"},
        "additionalProperties": {"type": "integer"},
    },
    "names of a pattern that is not anchored": {
        "type": "object",
        "propertyNames": {"pattern": "a"},
        "additionalProperties": {"type": "integer"},
    },
    "a name": {"type": "object", "propertyNames": {"const": "a"}},
    "a set of an enum": of({"$ref": "#/$defs/S"})
    | {
        "$defs": {
            "S": {"type": "array", "items": {"$ref": "#/$defs/Color"}, "uniqueItems": True},
            **_COLORS,
        }
    },
    "a set of literals": of(
        {"type": "array", "items": {"enum": [1, "1", True, None]}, "uniqueItems": True}
    ),
    "a set of booleans": of(
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1}
    ),
    "two of many": of(
        {
            "type": "array",
            "items": {"enum": [*"abcdefgh"]},
            "uniqueItems": True,
            "minItems": 2,
            "maxItems": 2,
        }
    ),
    "a set of one": of({"type": "array", "uniqueItems": True, "maxItems": 1}),
}

# (schema, path of the place, part of what is said)
REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "objekt"}, "type", "objekt"),
    (of({"type": ["string", "nul"]}), "properties.a.type", "nul"),
    ({"name": "Bob", "age": 5}, "", "`name`"),
    (of({"name": "string"}), "properties.a", "`name`"),
    (of("string"), "properties.a", '"string"'),
    (of({"$ref": "#/$defs/missing"}), "properties.a.$ref", "missing"),
    (of({"$ref": "https://example.com/s.json"}), "properties.a.$ref", "example.com"),
    (of({"$ref": 5}), "properties.a.$ref", "5"),
    (of({"$ref": "#/required"}), "properties.a.$ref", "no schema"),
    ({"$ref": "#"}, "$ref", "never ends"),
    (of({"$ref": "#"}), "properties.a.$ref", "never ends"),
    (of({"anyOf": [{"$ref": "#"}, of({"$ref": "#"})]}), "properties.a.anyOf[0].$ref", "never ends"),
    (
        of({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        "properties.a.items.$ref",
        "never ends",
    ),
    (of({"not": {"type": "string"}}), "properties.a.not", "not"),
    (of({"type": "array", "uniqueItems": True}), "properties.a.uniqueItems", "uniqueItems"),
    (of({"type": "array", "contains": {"const": 1}}), "properties.a.contains", "contains"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if", "if"),
    (of({}, unevaluatedProperties=False), "unevaluatedProperties", "unevaluatedProperties"),
    (of({"oneOf": [{"type": "string"}, {"maxLength": 3}]}), "properties.a.oneOf", "overlap"),
    (of({"type": "string", "format": "regex"}), "properties.a.format", "regex"),
    (of({"type": "string", "format": 5}), "properties.a.format", "5"),
    (of({"const": 123456789012345678901234567890}), "properties.a.const", "exact"),
    (of({"const": -(2**63)}), "properties.a.const", "exact"),
    (of({"enum": ["a", {"b": [2**53 + 1]}]}), "properties.a.enum", "9007199254740993"),
    (of({"type": "integer", "minimum": 1e30}), "properties.a.minimum", "out of range"),
    (of({"type": "integer", "maximum": -1e30}), "properties.a.maximum", "out of range"),
    (of({"propertyNames": {"minLength": 3}}), "properties.a.propertyNames", "pattern"),
    (of({}, propertyNames={"pattern": "^a$"}), "propertyNames", "beside"),
    (
        of({"type": "array", "items": {"enum": [*"abcdef"]}, "uniqueItems": True}),
        "properties.a.uniqueItems",
        "leave it out",
    ),
    (
        of({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}, "minItems": 3}),
        "properties.a.minItems",
        "needs 3 different items, and `items` allows 2",
    ),
    (of({"type": "string", "format": "email", "minLength": 250}), "properties.a.format", "complex"),
    (
        of(
            {
                "type": "string",
                "pattern": "^(.*a.{300}){20}$",
                "allOf": [{"pattern": "^(.*b.{301}){20}$"}],
            }
        ),
        "properties.a.pattern",
        "complex",
    ),
    (of({"type": "array", "uniqueItems": "yes"}), "properties.a.uniqueItems", '"yes"'),
    (
        of({"type": "string", "pattern": "^(x+x+)+y$", "allOf": [{"pattern": "^[^y]*$"}]}),
        "properties.a.pattern",
        "no text matches",
    ),
    (of({"type": "string", "pattern": "^(?=x)y"}), "properties.a.pattern", "look-around"),
    (of({"type": "string", "pattern": r"(a)\1"}), "properties.a.pattern", "backreferences"),
    (of({"type": "string", "pattern": r"\bword"}), "properties.a.pattern", "lookarounds"),
    (of({"type": "string", "pattern": "(unclosed"}), "properties.a.pattern", "unclosed"),
    (of({"type": "string", "pattern": 5}), "properties.a.pattern", "5"),
    (
        of({"type": "array", "items": of({"type": "string", "pattern": "(?<!x)y"})}),
        "properties.a.items.properties.a.pattern",
        "look-around",
    ),
    (
        of({"$ref": "#/$defs/x"}) | {"$defs": {"x": {"type": "string", "pattern": "(?=y)"}}},
        "$defs.x.pattern",
        "look-around",
    ),
    (
        of({"anyOf": [{"type": "string", "pattern": "(?=y)"}]}),
        "properties.a.anyOf[0].pattern",
        "look",
    ),
    (of({"type": "integer", "minimum": 9, "maximum": 5}), "properties.a.minimum", "minimum"),
    (of({"type": "integer", "minimum": "9"}), "properties.a.minimum", '"9"'),
    (of({"minimum": 0, "exclusiveMinimum": True}), "properties.a.exclusiveMinimum", "true"),
    (of({"multipleOf": 0}), "properties.a.multipleOf", "greater"),
    (of({"multipleOf": 9999991}), "properties.a.multipleOf", "digits"),
    (of({"type": "array", "maxItems": 10**9}), "properties.a.maxItems", "1000000000"),
    (of({"type": "array", "minItems": -1}), "properties.a.minItems", "-1"),
    (of({"type": "string", "maxLength": 10**9}), "properties.a.maxLength", "1000000000"),
    (of({"type": "string", "minLength": 5, "maxLength": 3}), "properties.a.minLength", "minLength"),
    (of({"enum": []}), "properties.a.enum", "[]"),
    (of({"anyOf": {}}), "properties.a.anyOf", "{}"),
    ({"type": "object", "required": "a"}, "required", '"a"'),
    ({"type": "object", "properties": ["a"]}, "properties", '["a"]'),
    ({"type": "object", "minProperties": 2}, "minProperties", "at most 1"),
    (of({"items": [{"type": "string"}]}), "properties.a.items", "string"),
    (of(False), "required", "property 'a'"),
]
