"""Anthropic's dialect: the list of models, page by page, and one of them.

Pure: the caller brings the models. Knows neither URLs nor statuses.
Source: Anthropic's API reference, "List models" and "Get a model".
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from localrun.errors import BadRequest

# As there; a store has tens of models, so that without a limit the page holds all of them.
_MAX_LIMIT = 1000
_LIMIT = re.compile(r"\d{1,9}", re.ASCII)

_encode = msgspec.json.Encoder().encode


def encode_model(name: str, created_s: int) -> bytes:
    """One model; `created_s` is unix time."""
    return _encode(_entry(name, created_s))


def encode_models(models: Sequence[tuple[str, int]], query: Mapping[str, str]) -> bytes:
    """The page of (name, unix time in seconds) that `limit`, `after_id` and `before_id` ask for.

    Raises BadRequest for a limit that is none, and for an id that is not among the models.
    """
    names = [name for name, _ in models]
    low, high = 0, len(names)
    if after := query.get("after_id"):
        low = _place(names, after, "after_id") + 1
    if before := query.get("before_id"):
        high = _place(names, before, "before_id")
    limit = _limit(query.get("limit"))
    if before and not after:  # the page that ends there
        first, last = max(low, high - limit), high
        has_more = first > low
    else:
        first, last = low, min(high, low + limit)
        has_more = last < high
    page = models[first:last]
    return _encode(
        {
            "data": [_entry(*model) for model in page],
            "has_more": has_more,
            "first_id": page[0][0] if page else None,
            "last_id": page[-1][0] if page else None,
        }
    )


def _entry(name: str, created_s: int) -> dict[str, Any]:
    created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_s))
    return {"type": "model", "id": name, "display_name": name, "created_at": created_at}


def _place(names: Sequence[str], name: str, field: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise BadRequest(field, "there is no such model; begin with the first page") from None


def _limit(text: str | None) -> int:
    if text is None:
        return _MAX_LIMIT
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= _MAX_LIMIT:
        raise BadRequest("limit", f"must be a whole number from 1 to {_MAX_LIMIT}")
    return int(text)
