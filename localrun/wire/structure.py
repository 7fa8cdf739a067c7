"""Which structure a request asks its answer to have: wire values → the text of a JSON Schema.

Owns what `format` (Ollama), `response_format` (OpenAI) and `output_config.format` (Anthropic) may
be. Checks all that needs no model; a regular expression may still be refused by the runner. Keys
keep the order in which they were sent.
Source: Ollama `docs/api.md`; OpenAI's and Anthropic's API references, "Structured outputs".
"""

import json
from typing import Any

import msgspec

from localrun.core import SCHEMA_PATH
from localrun.errors import BadRequest
from localrun.schemas.check import check_schema
from localrun.schemas.parts import below, shown

# What "some JSON" means in both dialects.
_ANY_OBJECT = '{"type":"object"}'

# Where OpenAI's clients put a schema. The native one is `core.SCHEMA_PATH`.
RESPONSE_SCHEMA = "response_format.json_schema.schema"

# See `core.Call.places`.
PLACES = {SCHEMA_PATH: RESPONSE_SCHEMA, "think": "reasoning_effort"}


def schema_of_format(value: Any) -> str | None:
    """The schema that a native `format` stands for; None for free text. Raises BadRequest."""
    if value in (None, ""):
        return None
    if value == "json":
        return _ANY_OBJECT
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _decoded(value)
    if not isinstance(value, dict):
        raise BadRequest(
            SCHEMA_PATH, f'{shown(value)} is no format; use "json" or a JSON Schema, an object'
        )
    return _checked(value, SCHEMA_PATH)


# Where OpenAI's responses have it.
TEXT_SCHEMA = "text.format.schema"


def schema_of_text_format(value: Any) -> str | None:
    """The schema that a `text.format` stands for; None for free text. Raises BadRequest."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequest("text.format", f"must be an object, and not {shown(value)}")
    match value.get("type"):
        case None | "text":
            return None
        case "json_object":
            return _ANY_OBJECT
        case "json_schema":
            if "schema" not in value:
                raise BadRequest(TEXT_SCHEMA, "is missing")
            # The reply repeats it, where null is none: clients would not read that.
            _check_label(value, "text.format")
            return _checked(value["schema"], TEXT_SCHEMA)
        case kind:
            problem = f"{shown(kind)} is not one of text, json_object, json_schema"
            raise BadRequest("text.format.type", problem)


def schema_of_response_format(value: Any) -> str | None:
    """The schema that a `response_format` stands for; None for free text. Raises BadRequest."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequest("response_format", f"must be an object, and not {shown(value)}")
    kind = value.get("type")
    match kind.strip().lower() if isinstance(kind, str) else kind:
        case None | "" | "text":
            return None
        case "json_object":
            # llama.cpp's server takes a schema here.
            schema = value.get("schema")
            return _ANY_OBJECT if schema is None else _checked(schema, "response_format.schema")
        case "json_schema":
            return _checked(_named_schema(value.get("json_schema")), RESPONSE_SCHEMA)
    raise BadRequest(
        "response_format.type", f"{shown(kind)} is not one of text, json_object, json_schema"
    )


def schema_of_output_format(value: Any, path: str) -> str | None:
    """The schema that Anthropic's format at `path` stands for. Raises BadRequest."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BadRequest(path, f"must be an object, and not {shown(value)}")
    if value.get("type") != "json_schema":
        raise BadRequest(f"{path}.type", f'{shown(value.get("type"))} is not "json_schema"')
    if "schema" not in value:
        raise BadRequest(f"{path}.schema", "is missing")
    return _checked(value["schema"], f"{path}.schema")


def _named_schema(value: Any) -> Any:
    if not isinstance(value, dict):
        raise BadRequest(
            "response_format.json_schema", f"must be an object with a `schema`, not {shown(value)}"
        )
    if "schema" not in value:
        raise BadRequest(RESPONSE_SCHEMA, "is missing")
    present = {key: one for key, one in value.items() if one is not None}
    _check_label(present, "response_format.json_schema")
    return value["schema"]


def _check_label(form: dict[str, Any], path: str) -> None:
    """Raises BadRequest for fields beside a schema that are of a wrong type; none has an effect."""
    for field, kind in (("name", str), ("description", str | None), ("strict", bool | None)):
        if field in form and not isinstance(form[field], kind):
            wanted = "a boolean" if field == "strict" else "a string"
            raise BadRequest(f"{path}.{field}", f"must be {wanted}, and not {shown(form[field])}")


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(SCHEMA_PATH, f"is a string, and no JSON Schema: {error}") from None


def _checked(schema: Any, path: str) -> str:
    if not isinstance(schema, dict):
        raise BadRequest(path, f"must be a JSON Schema, an object, and not {shown(schema)}")
    try:
        check_schema(schema)
    except BadRequest as error:
        raise BadRequest(below(path, error.path), error.problem) from None
    return json.dumps(schema, ensure_ascii=False)
