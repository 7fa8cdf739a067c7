"""What is left of a schema that nothing can be held to in whole. Pure.

Takes out the smallest part that is in the way, and the next, until the rest can be held to. Every
step allows more than before. Trusts nothing in the schema, which may be of any shape.
"""

import copy
from collections.abc import Callable
from typing import Any

from localrun.errors import BadRequest
from localrun.schemas.keywords import MAX_KEYS, MAX_OPTIONAL
from localrun.schemas.parts import ALONE, ANNOTATIONS, IN_LISTS, IN_MAPS, Schema

# Places of one schema; most that is wrong in practice is wrong in one or two.
MAX_ROUNDS = 100

# What goes from everywhere, step by step, where no place is told or known.
_COARSE = (
    ANNOTATIONS,
    frozenset({"pattern", "patternProperties"}),
    frozenset({"multipleOf"}),
    frozenset({"enum", "const"}),
    frozenset({"allOf", "anyOf", "oneOf", "$ref"}),
)

# Keywords that say what others do not speak of, and would say it of more without those.
_RESTS = {
    "properties": "additionalProperties",
    "patternProperties": "additionalProperties",
    "prefixItems": "items",
}


def loosened(
    schema: Schema, check: Callable[[Schema], object], may_go_on: Callable[[], bool]
) -> tuple[Schema, list[str]]:
    """(a schema that passes `check` and allows all that `schema` does, the places that had to go).

    `check` raises BadRequest with a path. Nothing is left, and the last place is "", when it takes
    too many rounds, or longer than it `may_go_on`.
    """
    schema = copy.deepcopy(schema)
    gone: list[str] = []
    coarse = iter(_COARSE)
    for _ in range(MAX_ROUNDS):
        try:
            check(schema)
        except BadRequest as error:
            path = error.path
        else:
            return schema, gone
        if not may_go_on():
            break
        if path and _take_out(schema, path.removesuffix("…").rstrip(".")):
            gone.append(path)
            continue
        if (keywords := next(coarse, None)) is None:
            break
        if _take_out_all(schema, keywords) and keywords is not ANNOTATIONS:
            gone.append("/".join(sorted(keywords)))
    return {}, [*gone, ""]


def _parts(schema: Schema) -> list[tuple[str, Any, Any]]:
    """(path, where it is kept, its key there) of whatever stands in the places of schemas."""
    found: list[tuple[str, Any, Any]] = [(key, schema, key) for key in ALONE if key in schema]
    for key in IN_LISTS:
        kept = schema.get(key)
        if isinstance(kept, list):
            found += [(f"{key}[{i}]", kept, i) for i in range(len(kept))]
    for key in IN_MAPS:
        kept = schema.get(key)
        if isinstance(kept, dict):
            found += [(f"{key}.{name}", kept, name) for name in kept]
    return found


def _take_out(schema: Schema, path: str) -> bool:
    """Takes out the keyword at `path`, or makes the part there mean anything; False if neither."""
    inside = [one for one in _parts(schema) if path == one[0] or path.startswith(f"{one[0]}.")]
    if inside:
        own, kept, key = max(inside, key=lambda one: len(one[0]))
        part = kept[key]
        if path != own and isinstance(part, dict) and _take_out(part, path[len(own) + 1 :]):
            return True
        if part is True or part == {}:
            return False
        kept[key] = {}
        return True
    keyword = next((key for key in schema if path == key or path.startswith(f"{key}.")), None)
    if keyword is None:
        # Names that are required count as keys.
        return path == "properties" and schema.pop("required", None) is not None
    _drop(schema, keyword)
    return True


def _drop(schema: Schema, keyword: str) -> None:
    value = schema.pop(keyword)
    rest = _RESTS.get(keyword)
    if rest is not None or keyword == "additionalProperties":
        # Left away, others would be thought unwanted.
        schema[rest or keyword] = True
    if keyword == "properties" and isinstance(value, dict):
        fewer = _fewer(value, schema.get("required"))
        if len(fewer) < len(value):
            schema[keyword] = fewer
    if keyword == "oneOf" and "anyOf" not in schema:
        schema["anyOf"] = value


def _fewer(properties: Schema, required: Any) -> Schema:
    """As many of the properties as can be held to, those that are required first."""
    needed = [name for name in properties if isinstance(required, list) and name in required]
    free = [name for name in properties if name not in set(needed)]
    kept = {*needed[: MAX_KEYS - MAX_OPTIONAL], *free[:MAX_OPTIONAL]}
    return {name: part for name, part in properties.items() if name in kept}


def _take_out_all(schema: Schema, keywords: frozenset[str]) -> bool:
    """Takes out the keywords wherever they are; True if there were any."""
    found = False
    for keyword in keywords & schema.keys():
        schema.pop(keyword)
        rest = _RESTS.get(keyword)
        if rest is not None:
            schema[rest] = True
        found = True
    for _, kept, key in _parts(schema):
        if isinstance(kept[key], dict):
            found |= _take_out_all(kept[key], keywords)
    return found
