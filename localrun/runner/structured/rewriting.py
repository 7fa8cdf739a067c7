"""A schema in the words of the engine, where it knows others or none. Pure.

Whatever matches what comes out matches what went in. Looks only at schemas that have been checked.
"""

import math
from typing import Any

from localrun.schemas.formats import HELD, WIDER
from localrun.schemas.keywords import MAX_BOUND, MAX_NUMBER
from localrun.schemas.parts import Schema, is_vain, may_be, rebuilt
from localrun.schemas.unique import arrays


def rewritten(schema: Schema) -> Schema:
    """The schema for the engine; see the functions below for what becomes of it."""

    def change(part: Schema) -> Schema:
        part = _of_fewer_values(part, schema)
        return _with_named_keys(_with_exact_bounds(_with_patterns(part)))

    found: Schema = rebuilt(schema, change)
    return found


def _with_patterns(part: Schema) -> Schema:
    """Formats that are held to become patterns; one that is there already holds as well.

    Where the values are told they are what was meant, also where ours have no room for them.
    """
    form = part.get("format")
    if form not in HELD or not may_be("string", part):
        return part
    rest = {key: value for key, value in part.items() if key != "format"}
    if "enum" in rest or "const" in rest:
        return rest
    pattern = f"^{HELD[form]}$"
    if "pattern" not in rest or rest["pattern"] in WIDER.get(form, ()):
        return {**rest, "pattern": pattern}
    return {**rest, "allOf": [*rest.get("allOf", ()), {"pattern": pattern}]}


def _with_exact_bounds(part: Schema) -> Schema:
    """Bounds that the engine can count to and that its floats do not move outwards."""
    new = dict(part)
    # Of numbers with a fraction the engine writes larger bounds in rounded digits.
    limit = MAX_NUMBER if may_be("number", part) else MAX_BOUND
    for key in ("minimum", "exclusiveMinimum"):
        if key in new and new[key] < -MAX_NUMBER:
            new[key] = -_inwards(-new[key], key, limit)
    for key in ("maximum", "exclusiveMaximum"):
        if key in new and new[key] > MAX_NUMBER:
            new[key] = _inwards(new[key], key, limit)
    return new


def _inwards(bound: float, key: str, limit: int) -> int:
    """The next smaller whole number that is a float; that far out an exclusive bound is none."""
    whole = int(min(bound, limit))
    whole -= key.startswith("exclusive")
    near = float(whole)
    return int(near if near <= whole else math.nextafter(near, 0))


def _with_named_keys(part: Schema) -> Schema:
    """`propertyNames` with a list or a pattern become the names of properties."""
    if "propertyNames" not in part:
        return part
    rest = {key: value for key, value in part.items() if key != "propertyNames"}
    if is_vain("propertyNames", part):
        return rest
    names, other = part["propertyNames"], part.get("additionalProperties", True)
    rest["additionalProperties"] = False
    if "pattern" in names:
        return {**rest, "patternProperties": {names["pattern"]: other}}
    named = part.get("properties", {})
    told = names.get("enum", [names.get("const")])
    return {**rest, "properties": {name: named.get(name, other) for name in told}}


def _of_fewer_values(part: Schema, root: Any) -> Schema:
    """Arrays of different values become a list of them all."""
    if "uniqueItems" not in part:
        return part
    if not is_vain("uniqueItems", part) and (told := arrays(part, root)) is not None:
        return {"enum": told}
    return {key: value for key, value in part.items() if key != "uniqueItems"}
