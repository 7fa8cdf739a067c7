"""What an answer's text has to look like: both dialects' fields → the text of a JSON Schema."""

from typing import Any

import msgspec

from localrun.errors import BadRequest

_ANY_OBJECT = '{"type":"object"}'


def schema_of_format(value: Any) -> str | None:
    """Ollama's `format`; None for free text. Raises BadRequest."""
    if value in (None, ""):
        return None
    if value == "json":
        return _ANY_OBJECT
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    raise BadRequest("format", 'must be "json" or a JSON Schema')


def schema_of_response_format(value: Any) -> str | None:
    """OpenAI's `response_format`; None for free text. Raises BadRequest."""
    if value is None:
        return None
    if isinstance(value, dict):
        match str(value.get("type") or "text").strip().lower():
            case "text":
                return None
            case "json_object":
                return _ANY_OBJECT
            case "json_schema":
                described = value.get("json_schema")
                if isinstance(described, dict) and isinstance(described.get("schema"), dict):
                    return msgspec.json.encode(described["schema"]).decode()
                raise BadRequest("response_format.json_schema.schema", "must be a JSON Schema")
        raise BadRequest("response_format.type", "must be text, json_object or json_schema")
    raise BadRequest("response_format", "must be an object")
