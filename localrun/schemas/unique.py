"""Arrays of different items, where the items are a few values: all such arrays. Pure.

In general a grammar cannot remember what has been. Where nothing else may come, it says it all.
"""

import json
from itertools import permutations
from math import perm
from typing import Any

from localrun.schemas.parts import ANNOTATIONS, Schema

# All orders of all choices of five; each array is a rule.
MAX_ARRAYS = 330

_OF_ARRAYS = ANNOTATIONS | {"type", "items", "uniqueItems", "minItems", "maxItems"}
_OF_VALUES = ANNOTATIONS | {"type", "enum", "const"}
_ALL: dict[str, list[Any]] = {"boolean": [False, True], "null": [None]}
_KINDS = {"null": type(None), "boolean": bool, "string": str, "integer": int}
_MAX_REFERENCES = 8


def arrays(part: Schema, root: Any) -> list[list[Any]] | None:
    """All arrays that match `part`, which has `uniqueItems`; None if they are many or unknown.

    Of `root`, the whole schema, are the definitions that items may refer to.
    """
    if part.get("type") != "array" or part.keys() - _OF_ARRAYS:
        return None
    values = _values(_resolved(part.get("items"), root))
    least, most = part.get("minItems", 0), min(part.get("maxItems", len(values)), len(values))
    lengths = range(least, most + 1)
    if (
        not 0 < len(values) <= MAX_ARRAYS
        or not 0 < sum(perm(len(values), n) for n in lengths) <= MAX_ARRAYS
    ):
        return None
    return [list(one) for n in lengths for one in permutations(values, n)]


def n_lacking(part: Schema, root: Any) -> tuple[int, int]:
    """(different items that an array needs, those that there are) where it needs more, else 0, 0.

    Of `part`, which has `uniqueItems`, only what is sure counts.
    """
    n_needed = part.get("minItems", 0)
    n_known = len(_values(_resolved(part.get("items"), root)))
    return (n_needed, n_known) if 0 < n_known < n_needed else (0, 0)


def _values(items: Any) -> list[Any]:
    """The different values that match `items`; none where they are not plain and all told."""
    if (
        not isinstance(items, dict)
        or items.keys() - _OF_VALUES
        or {"enum", "const"} <= items.keys()
    ):
        return []
    told: list[Any] = _ALL.get(str(items.get("type")), [])
    if "const" in items or "enum" in items:
        told = items.get("enum", [items.get("const")])
    kind = _KINDS.get(str(items.get("type")))
    if any(type(one) not in _KINDS.values() for one in told) or ("type" in items and not kind):
        return []
    return list({json.dumps(one): one for one in told if kind in (None, type(one))}.values())


def _resolved(items: Any, root: Any) -> Any:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(items, dict) or items.keys() - ANNOTATIONS != {"$ref"}:
            break
        steps, items = items["$ref"].split("/")[1:], root
        for step in steps:
            items = items.get(step) if isinstance(items, dict) else None
    return items
