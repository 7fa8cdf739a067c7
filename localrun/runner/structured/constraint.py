"""What an answer's text has to look like, as values: the prompt thread makes them, the matcher
reads them. Owns the way from a JSON Schema to a grammar; knows no vocabulary.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from localrun.errors import BadRequest
from localrun.runner.structured.rewriting import rewritten
from localrun.schemas.check import check_schema
from localrun.schemas.parts import Schema, is_vain, rebuilt
from localrun.schemas.totals import has_joints

# At most one blank, and no line break: small models that may write white space go on for ever.
# Asked for facts in JSON, SmolLM2 got as many right as with any white space (34 of 36) in a fifth
# fewer tokens; without the blank, which is in its tokens, it got 22.
# Strings may hold any character as an escape.
_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allow_general_unicode_escapes": True,
}


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

    `loosened` names what of the tools' schemas it leaves out: "tool: place in its schema".
    """

    grammar: str
    tags: ThinkTags | None = None
    is_thinking: bool = False
    loosened: tuple[str, ...] = ()


def json_grammar(schema: str) -> str:
    """A Lark grammar of JSON that matches `schema`, the text of a JSON Schema.

    The keys of an object come in the order of the schema; those that are not required may be left
    out. Raises BadRequest with the path below the schema for what cannot be expressed.
    """
    return f"start: {json_rule(schema)}"


def json_rule(schema: str) -> str:
    """As `json_grammar`, for the right side of a rule in a larger grammar."""
    try:
        document = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest("", f"the schema is not valid JSON: {error}") from None
    check_schema(document)
    # An engine for grammars that most runners never need.
    from localrun.runner.structured.blame import refusal
    from localrun.runner.structured.compiler import problem_of

    lean = _lean({} if document is True else document)
    rule = _rule(lean)
    if problem := problem_of(f"start: {rule}"):
        raise refusal(lean, problem, lambda part: problem_of(f"start: {_rule(part)}"))
    return rule


def _rule(schema: Schema) -> str:
    # The engine reads its options from here; whatever a client wrote there is none.
    styled = {**rewritten(schema), "x-guidance": _STYLE}
    return "%json " + json.dumps(styled, ensure_ascii=False)


def _lean(schema: Any) -> Any:
    """The schema without what says nothing of the text, and closed where that joins nothing.

    An object with `properties` gets no others unless it asks for them. Source: llama.cpp and,
    through it, Ollama: a small model that may go on with keys of its own does so.
    """
    is_closed = not has_joints(schema)

    def change(part: Schema) -> Schema:
        lean = {key: value for key, value in part.items() if not is_vain(key, part)}
        named = lean.get("properties", {})
        if is_closed and named and not lean.keys() & _OPENERS:
            unnamed = [name for name in lean.get("required", ()) if name not in named]
            if not unnamed:
                lean["additionalProperties"] = False
        return lean

    return rebuilt(schema, change)


# With one of these an object's other keys are spoken of, or counted.
_OPENERS = {
    *("additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties"),
}
