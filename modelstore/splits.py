"""Split models: one model in several GGUF files, `x-00001-of-00003.gguf` and so on.

Owns which files are parts of one model, their order, and the header of the whole. Pure: works on
names and headers that others have read. The order follows the headers, not the names, since a
blob has lost its name.
Source: llama.cpp `gguf-split` (names; the keys `split.no`, `split.count`, `split.tensors.count`;
only the first part has the metadata).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from modelstore.errors import IncompleteSplit, InvalidGGUF, shown
from modelstore.header import Header

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_of(file_name: str) -> tuple[str, int, int] | None:
    """(stem, number from 1, how many) of a part's name, however wrong the numbers; else None."""
    match = _PART_NAME.fullmatch(file_name)
    return (match["stem"], int(match["number"]), int(match["count"])) if match else None


def part_names(file_name: str) -> tuple[str, ...]:
    """The names of all parts, in order, from the name of any; of another file only its own."""
    stem, number, count = part_of(file_name) or ("", 0, 0)
    if not 0 < number <= count:
        return (file_name,)
    return tuple(f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))


def part_name(file_name: str, number: int) -> str:
    """What part `number`, counted from 0, is called where a part is called `file_name`."""
    names = part_names(file_name)
    return names[number] if number < len(names) > 1 else f"part {number + 1}"


def n_parts(header: Header) -> int:
    """How many files the model has; 1 for one that is not split."""
    count = header.get("split.count")
    return count if isinstance(count, int) and count > 1 else 1


def is_later_part(header: Header) -> bool:
    """True for a part that leaves the metadata to the first one."""
    return n_parts(header) > 1 and _number(header) != 0


def in_order(names: Sequence[str], headers: Sequence[Header]) -> tuple[int, ...]:
    """Positions of the parts of one model in their order; `names` are for messages.

    Raises: IncompleteSplit (a part is missing), InvalidGGUF (they are not parts of one model).
    """
    count = n_parts(headers[0])
    places: dict[int, int] = {}
    for place, header in enumerate(headers):
        number = _number(header)
        name = shown(names[place])
        if n_parts(header) != count or not 0 <= number < count:
            raise InvalidGGUF(f"`{name}` is not a part of the same model as `{shown(names[0])}`")
        if number in places:
            raise InvalidGGUF(f"`{name}` and `{shown(names[places[number]])}` are the same part")
        places[number] = place
    missing = [number for number in range(count) if number not in places]
    if missing:
        raise IncompleteSplit(shown(part_name(names[0], missing[0])), len(missing), count)
    return tuple(places[number] for number in range(count))


def joined(headers: Sequence[Header]) -> Header:
    """The header of the whole model, from those of all its parts in order.

    Offsets of its tensors count within their own part.
    Raises: InvalidGGUF when a tensor is in two parts or in none.
    """
    first = headers[0]
    if len(headers) == 1:
        return first
    tensors = tuple(chain.from_iterable(header.tensors for header in headers))
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise InvalidGGUF("a tensor is in more than one part of the split model")
    promised = first.get("split.tensors.count")
    if isinstance(promised, int) and promised != len(tensors):
        raise InvalidGGUF(
            f"the parts of the split model have {len(tensors)} tensors together, not {promised}"
        )
    size_bytes = sum(header.file_size_bytes for header in headers)
    return replace(first, tensors=tensors, file_size_bytes=size_bytes)


def _number(header: Header) -> int:
    number = header.get("split.no")
    return number if isinstance(number, int) else 0
