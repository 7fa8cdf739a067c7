"""A schema in the words of the engine, where it knows others or none. Pure.

Whatever matches what comes out matches what went in. Looks only at schemas that have been checked.
"""

import math
from typing import Any

from localrun.schemas.formats import HELD, WIDER
from localrun.schemas.keywords import MAX_BOUND
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
    """Formats that are held to become patterns; one that is there already holds as well."""
    form = part.get("format")
    if form not in HELD or not may_be("string", part):
        return part
    rest = {key: value for key, value in part.items() if key != "format"}
    pattern = f"^{HELD[form]}$"
    if "pattern" not in rest or rest["pattern"] in WIDER.get(form, ()):
        return {**rest, "pattern": pattern}
    return {**rest, "allOf": [*rest.get("allOf", ()), {"pattern": pattern}]}


def _with_exact_bounds(part: Schema) -> Schema:
    """Bounds that the engine can count to and that its floats do not move outwards."""
    new = dict(part)
    for key in ("minimum", "exclusiveMinimum"):
        if key in new and new[key] < 0:
            new[key] = -_at_most(-new[key])
    for key in ("maximum", "exclusiveMaximum"):
        if key in new and new[key] > 0:
            new[key] = _at_most(new[key])
    return new


def _at_most(bound: float) -> float:
    if isinstance(bound, float) and bound <= MAX_BOUND:
        return bound
    near = float(min(bound, MAX_BOUND))
    return int(near if near <= bound else math.nextafter(near, 0))


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
