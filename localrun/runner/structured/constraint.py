"""What an answer's text has to look like, as values: the prompt thread makes them, the matcher
reads them. Knows the grammar's language, but neither a vocabulary nor llguidance.
"""

from dataclasses import dataclass

import msgspec

from localrun.errors import BadRequest

# At most one blank, and no line break: small models that may write white space go on for ever.
# With a blank as without: which of the two has a token of its own depends on the vocabulary.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What stands before and behind a model's thinking, as the vocabulary spells it."""

    opening: str
    closing: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """The language of an answer. `grammar` is a Lark grammar as llguidance reads it.

    With `tags` the answer may think first. `is_thinking` when the prompt has opened the thinking
    already: then nothing is constrained up to the closing tag. Else the answer may begin with the
    opening tag, after white space, and is constrained at once if it does not.
    """

    grammar: str
    tags: ThinkTags | None = None
    is_thinking: bool = False


def json_grammar(schema: str) -> str:
    """A Lark grammar of JSON that matches `schema`, the text of a JSON Schema.

    Raises BadRequest with the path below the schema for what cannot be expressed.
    """
    return f"start: {json_rule(schema)}"


def json_rule(schema: str) -> str:
    """As `json_grammar`, for the right side of a rule in a larger grammar."""
    try:
        document = msgspec.json.decode(schema)
    except msgspec.DecodeError as error:
        raise BadRequest("", f"the schema is not valid JSON: {error}") from None
    if document is True:
        document = {}
    if not isinstance(document, dict):
        raise BadRequest("", "a JSON Schema is an object")
    document["x-guidance"] = _STYLE
    return "%json " + msgspec.json.encode(document).decode()
