"""Which JSON Schemas an answer can be held to. Pure; knows neither grammars nor dialects.

What passes here may still be refused by the grammar engine, which knows regular expressions and
what schemas come to when they are joined. Paths are those below the schema:
`properties.a.pattern`.
"""

import json
from typing import Any

from localrun.errors import BadRequest
from localrun.schemas.keywords import check_keywords
from localrun.schemas.parts import MAX_DEPTH, walk
from localrun.schemas.totals import check_references, check_sums, check_unique

# What clients send is below 100 kB, OpenAI allows 120,000 characters of names and values; the
# grammar of twice as much is made in a fifth of a second.
MAX_BYTES = 256 << 10


def check_schema(schema: Any) -> None:
    """Raises BadRequest for a schema that an answer cannot be held to."""
    if _n_bytes(schema) > MAX_BYTES:
        raise BadRequest("", f"the schema is longer than {MAX_BYTES} bytes")
    for path, part in walk(schema):
        if isinstance(part, dict):
            check_keywords(part, path)
    check_references(schema)
    check_unique(schema)
    check_sums(schema)


def _n_bytes(schema: Any) -> int:
    try:
        return len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise BadRequest("", f"the schema has more than {MAX_DEPTH} levels") from None
