"""The one table of model options: wire name → scope, type, range.

Names, types and defaults are Ollama's; the defaults themselves stand on `SamplingParams` and
`LoadOptions`, whose fields carry the same names. The daemon checks request bodies and Modelfile
parameters with it, the CLI uses it for `PARAMETER` lines.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from localrun.core import SamplingParams
from localrun.errors import BadRequest
from localrun.spec import Admission, LoadOptions

Scope = Literal["load", "request"]
Kind = Literal["integer", "number", "boolean", "strings", "numbers", "choice", "biases"]

# Every step searches for all of them; OpenAI takes 4.
_MAX_STOPS = 128

# Each is looked at for every token. OpenAI takes 300; lists of words to avoid are a few hundred.
_MAX_BIASES = 1024

# llama.cpp knows no more devices of one kind.
_MAX_GPUS = 16

# Token counts and seeds are 32-bit in llama.cpp.
INT32_MAX = 2**31 - 1

# What is computed with them are floats of 32 bits, which end at 3e38, and so would their squares.
_HUGE = 1e18


@dataclass(frozen=True, slots=True)
class Option:
    """One row: `low` and `high` are inclusive and apply to numbers, `choices` to a choice."""

    name: str
    scope: Scope
    kind: Kind
    low: float = -_HUGE
    high: float = _HUGE
    choices: tuple[str, ...] = ()


OPTIONS: dict[str, Option] = {
    row.name: row
    for row in (
        Option("num_ctx", "load", "integer", 0, INT32_MAX),
        Option("num_batch", "load", "integer", 1, INT32_MAX),
        Option("num_gpu", "load", "integer", -1, INT32_MAX),
        Option("main_gpu", "load", "integer", 0, 255),
        Option("tensor_split", "load", "numbers", 0),
        Option("use_mmap", "load", "boolean"),
        Option("num_thread", "load", "integer", 0, 1024),
        Option("admission", "load", "choice", choices=get_args(Admission)),
        Option("temperature", "request", "number", 0),
        Option("top_k", "request", "integer", -1, INT32_MAX),
        Option("top_p", "request", "number", 0, 1),
        Option("min_p", "request", "number", 0, 1),
        Option("typical_p", "request", "number", 0, 1),
        Option("repeat_last_n", "request", "integer", -1, INT32_MAX),
        Option("repeat_penalty", "request", "number", 0),
        Option("presence_penalty", "request", "number"),
        Option("frequency_penalty", "request", "number"),
        Option("seed", "request", "integer", -(2**63), 2**64 - 1),
        Option("num_predict", "request", "integer", -2, INT32_MAX),
        Option("num_keep", "request", "integer", -INT32_MAX, INT32_MAX),
        Option("stop", "request", "strings"),
        Option("deterministic", "request", "boolean"),
        Option("logit_bias", "request", "biases", -100, 100),
    )
}


# Options of Ollama and its Modelfiles that change nothing here: those that it has given up itself,
# and two of its own engine. Published Modelfiles have them.
IGNORED_OPTIONS = frozenset(
    {
        "penalize_newline",
        "low_vram",
        "f16_kv",
        "logits_all",
        "vocab_only",
        "use_mlock",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "tfs_z",
        "numa",
        "draft_num_predict",
    }
)


def check_option(name: str, value: Any, *, path: str, cuts: bool = True) -> Any:
    """`value` in the type of the option's row.

    Whole numbers may come as floats and, if it `cuts`, lose what is behind the point (4096.9 →
    4096), numbers may be quoted, a lone string or number is a list of one. Quoted numbers are not
    cut. Source: Ollama, where options are JSON numbers, and a Modelfile's are parsed.
    Raises BadRequest with `path` when the type or the range is wrong; without a path it says which
    option it is.
    """
    option = OPTIONS[name]
    checked: Any
    match option.kind:
        case "boolean":
            checked = value if isinstance(value, bool) else None
        case "strings":
            checked = _strings(value, path)
        case "numbers":
            checked = _numbers(option, value, path)
        case "biases":
            checked = _biases(option, value, path)
        case "choice":
            checked = value if value in option.choices else None
        case "integer" | "number":
            number = _number(value)
            checked = None if number is None else _in_range(option, number, path)
            may_cut = cuts and not isinstance(value, str)
            if option.kind == "integer" and number != checked and not may_cut:
                raise _bad(option, path, f"a whole number, not {number:g}")
    if checked is None:
        wanted = _WORDS.get(option.kind) or f"one of {', '.join(option.choices)}"
        raise _bad(option, path, wanted)
    return checked


def _bad(option: Option, path: str, wanted: str) -> BadRequest:
    name = "" if path else f'option "{option.name}" '
    return BadRequest(path, f"{name}must be {wanted}")


_WORDS = {
    "integer": "of type integer",
    "number": "of type number",
    "boolean": "of type boolean",
    "strings": "of type array of strings",
    "numbers": "of type array of numbers",
    "biases": "of type object, with token ids as keys",
}


def _strings(value: Any, path: str) -> tuple[str, ...] | None:
    """The strings that are not empty; None when it is neither a string nor a list of strings."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        return None
    if len(value) > _MAX_STOPS:
        raise BadRequest(path, f"holds {len(value)} strings, more than {_MAX_STOPS}")
    return tuple(item for item in value if item)


# Settings pages and variables hold text only, so numbers come quoted from many clients.
_QUOTED_NUMBER = re.compile(r"[-+]?\d{1,400}(\.\d+)?([eE][-+]?\d{1,4})?", re.ASCII)


def _number(value: Any) -> float | None:
    if isinstance(value, str) and (found := _QUOTED_NUMBER.fullmatch(value.strip())):
        value = float(value) if found[1] or found[2] else int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    return value


def _numbers(option: Option, value: Any, path: str) -> tuple[float, ...] | None:
    """The numbers of a list or of a text with commas; None when it is neither."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)):
        value = (value,)
    numbers = [_number(item) for item in value]
    if len(numbers) > _MAX_GPUS:
        raise BadRequest(path, f"holds {len(numbers)} numbers, more than {_MAX_GPUS}")
    if None in numbers:
        return None
    return tuple(_in_range(option, number, path) for number in numbers if number is not None)


_TOKEN_ID = re.compile(r"\d{1,10}", re.ASCII)


def _biases(option: Option, value: Any, path: str) -> dict[str, float] | None:
    """Biases by token id, cut to the range; None when it is no map.

    A line of a Modelfile holds the map as JSON. The keys stay text, as JSON stores them. Which ids
    a model has, its runner knows.
    """
    if isinstance(value, str):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            value = msgspec.json.decode(value)
    if not isinstance(value, Mapping):
        return None
    if len(value) > _MAX_BIASES:
        raise BadRequest(path, f"holds {len(value)} token ids, more than {_MAX_BIASES}")
    biases: dict[str, float] = {}
    for key, bias in value.items():
        if not _TOKEN_ID.fullmatch(str(key)):
            raise BadRequest(path, f'"{str(key)[:40]}" is not a token id')
        if isinstance(bias, bool) or not isinstance(bias, int | float) or bias != bias:
            raise BadRequest(path, f"the bias of token id {key} must be a number")
        biases[str(int(key))] = min(max(float(bias), option.low), option.high)
    return biases


def _in_range(option: Option, value: float, path: str) -> float:
    is_integer = option.kind == "integer"
    # A long integer may not even have a float, and infinity has no integer.
    number = int(value) if is_integer and abs(value) < math.inf else value
    if not option.low <= number <= option.high:
        bounds = f"from {_plain(option.low)} to {_plain(option.high)}"
        raise _bad(option, path, f"{bounds}, not {_plain(value)}")
    return number if is_integer else float(number)


def _plain(number: float) -> str:
    """Whole numbers with all their digits, as far as anybody reads them."""
    if isinstance(number, float) and (abs(number) >= _HUGE or number != int(number)):
        return f"{number:g}"
    if abs(number) >= 10**_MAX_DIGITS:
        return f"a number of more than {_MAX_DIGITS} digits"
    return str(int(number))


_MAX_DIGITS = 40


def check_options(
    raw: Mapping[str, Any], *, path: str = "options"
) -> tuple[dict[str, Any], list[str]]:
    """(known options in their types, names that no row knows). Null values are left out.

    Raises BadRequest for the first value of a wrong type or range.
    """
    known: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in raw.items():
        if name not in OPTIONS:
            unknown.append(name)
        elif value is not None:
            known[name] = check_option(name, value, path=f"{path}.{name}")
    return known, unknown


def merge(layers: Iterable[Mapping[str, Any]]) -> tuple[LoadOptions, SamplingParams]:
    """Checked options, later layers winning, split by scope; fields not given keep the defaults.

    A `num_ctx` of 0 counts as not given: forms send it for a field that was left alone.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update((name, v) for name, v in layer.items() if (name, v) != ("num_ctx", 0))
    by_scope: dict[Scope, dict[str, Any]] = {"load": {}, "request": {}}
    for name, value in merged.items():
        by_scope[OPTIONS[name].scope][name] = value
    return (
        msgspec.convert(by_scope["load"], LoadOptions),
        # Ids of tokens are text in JSON.
        msgspec.convert(by_scope["request"], SamplingParams, str_keys=True),
    )
