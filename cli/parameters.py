"""Model options as people type them: `temperature 0.2` → a value in the option's type. Pure.

Used by `/set parameter` of the prompt and by PARAMETER lines of a Modelfile; ranges and types stand
in the daemon's own table (`localrun.options`).
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from localrun.errors import BadRequest
from localrun.options import OPTIONS, check_option
from localrun.units import parse_switch


def typed(name: str, words: Sequence[str], *, path: str = "parameter") -> Any:
    """The checked value of option `name`. Raises: BadRequest, which names option and problem."""
    if name not in OPTIONS:
        raise BadRequest("", f"unknown {path} `{name}`; known are {', '.join(sorted(OPTIONS))}")
    kind = OPTIONS[name].kind
    text = " ".join(words)
    value: Any = list(words) if kind == "strings" else text
    if kind == "numbers":
        value = text.replace(",", " ").split()
    if kind == "boolean":
        with suppress(ValueError):  # the check below refuses the text, naming the option
            value = parse_switch(text)
    return check_option(name, value, path="")
