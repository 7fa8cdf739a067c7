"""What the parts of a schema come to together: references, and what multiplies.

Parts have been looked at one by one before (`keywords`).
"""

from collections.abc import Mapping
from typing import Any

from localrun.errors import BadRequest
from localrun.schemas.keywords import MAX_DIVISOR, TYPES, n_remainders
from localrun.schemas.parts import ANNOTATIONS, Schema, below, children, is_vain, shown, walk
from localrun.schemas.unique import arrays, n_lacking

# Levels of the schema and of all that is referred to, which the engine goes down by recursion: 800
# of them fit a stack of 8 MiB.
MAX_LEVELS = 400

# Values inside of constants that are no plain ones. Each is several symbols: 2,000 take 0.2 s.
MAX_CONSTANTS = 2000

# Regular expressions that may hold at once. Each doubles the work: 12 take 20 ms, 16 a second.
MAX_JOINED = 12

# Parts that are looked at to see which references end: a tenth of a second.
MAX_LOOKS = 100_000

_JOINING = {"anyOf", "oneOf", "allOf", "$ref"}


def has_joints(schema: Any) -> bool:
    """Whether somewhere a value has to match two schemas at once."""
    for _, part in walk(schema):
        if isinstance(part, dict):
            says = part.keys() - ANNOTATIONS - {"$defs", "definitions"}
            if says & _JOINING and (len(says) > 1 or len(part.get("allOf", ())) > 1):
                return True
    return False


def check_sums(schema: Any) -> None:
    """Raises BadRequest for what is harmless in each place, and not in all of them together."""
    n_constants = n_patterns = 0
    divisor = 1
    for _, part in walk(schema):
        if isinstance(part, dict):
            constants = [part.get("const"), *part.get("enum", ())]
            n_constants += sum(map(_n_inside, constants))
            n_patterns += "pattern" in part
            n_patterns += len(part.get("patternProperties", ()))
            divisor *= n_remainders(part.get("multipleOf", 1))
    if n_constants > MAX_CONSTANTS:
        raise BadRequest("", f"the constants hold more than {MAX_CONSTANTS} values")
    if n_patterns > MAX_JOINED and has_joints(schema):
        raise BadRequest(
            "", f"more than {MAX_JOINED} patterns in a schema of parts that hold at once"
        )
    if divisor > MAX_DIVISOR and has_joints(schema):
        raise BadRequest("", "the divisors in a schema of parts that hold at once are too large")


def check_unique(schema: Any) -> None:
    """Raises BadRequest for `uniqueItems` where a grammar cannot say all that may come."""
    n_items = 0
    for path, part in walk(schema):
        if not isinstance(part, dict) or is_vain("uniqueItems", {"uniqueItems": False, **part}):
            continue
        n_needed, n_known = n_lacking(part, schema)
        if n_needed:
            raise BadRequest(
                below(path, "minItems"),
                f"no array can ever match: it needs {n_needed} different items, and `items` "
                f"allows {n_known}",
            )
        told = arrays(part, schema)
        n_items += sum(map(len, told or ()))
        if told is None or n_items > MAX_CONSTANTS:
            raise BadRequest(
                below(path, "uniqueItems"),
                "`uniqueItems` is supported for up to five values of an `enum`; leave it out "
                "(a list instead of a set), and drop what comes twice",
            )


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


def check_references(schema: Any) -> None:
    """Raises BadRequest for one that leads nowhere, and where following them never ends."""
    targets: dict[str, Any] = {}
    first: dict[str, str] = {}
    for path, part in walk(schema):
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
