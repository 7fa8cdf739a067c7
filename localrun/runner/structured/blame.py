"""Which part of a schema it is that the engine refuses: its own messages do not say.

Knows no engine: it is told what each part comes to alone.
"""

import time
from collections.abc import Callable

from localrun.errors import BadRequest
from localrun.schemas.parts import Schema, below, children

# A part takes a millisecond; who sent a large schema that is wrong gets a shorter path.
_LIMIT_S = 0.5

# Where the engine speaks of options that are not the client's.
_ADVICE = {
    "oneOf": "its alternatives may overlap, which is not supported; use `anyOf`, or alternatives "
    "that differ in a key with `const`"
}

# Says what is wrong with a schema, or nothing.
TryOut = Callable[[Schema], str]

_DEFINITIONS = ("$defs", "definitions")


def refusal(schema: Schema, problem: str, try_out: TryOut) -> BadRequest:
    """The error for `schema`, which has `problem`: with the path to the smallest part that has."""
    deadline_s = time.monotonic() + _LIMIT_S
    path, at = "", schema
    while guilty := _guilty(at, schema, try_out, deadline_s):
        # What it comes to further out may be another sentence about the same thing.
        inner, at, problem = next((one for one in guilty if one[2] == problem), guilty[0])
        path = below(path, inner)
    keyword = _keyword(at, schema, problem, try_out, deadline_s)
    return BadRequest(below(path, keyword), _ADVICE.get(keyword, problem))


def _guilty(
    at: Schema, root: Schema, try_out: TryOut, deadline_s: float
) -> list[tuple[str, Schema, str]]:
    """(path, part, problem) of the parts of `at` that have one alone; definitions first."""
    found = []
    for path, part in sorted(children(at), key=lambda one: not one[0].startswith(_DEFINITIONS)):
        # `false` is refused alone, and means something where it stands.
        if not isinstance(part, dict) or time.monotonic() > deadline_s:
            continue
        if problem := try_out(_alone(part, root)):
            found.append((path, part, problem))
    return found


def _keyword(at: Schema, root: Schema, problem: str, try_out: TryOut, deadline_s: float) -> str:
    """The keyword of `at` without which the problem is gone."""
    for key in sorted(at, key=_is_broad):
        if key in _DEFINITIONS or time.monotonic() > deadline_s:
            continue
        less = {name: value for name, value in at.items() if name != key}
        if try_out(_alone(less, root)) != problem:
            return str(key)
    return ""


def _is_broad(key: str) -> bool:
    """True for what would take everything else with it."""
    return key in ("type", "properties")


def _alone(part: Schema, root: Schema) -> Schema:
    """The part as a schema of its own, with the definitions that it may refer to."""
    return {**{key: root[key] for key in _DEFINITIONS if key in root}, **part}
