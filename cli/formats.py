"""The format of answers as a person gives it: `json`, or a JSON Schema, as text or in a file."""

from pathlib import Path
from typing import Any

import msgspec

from cli.errors import Usage
from cli.sources import expanded, no_file

TAKES = "takes `json`, a JSON schema or the name of a file with one"


def format_value(text: str, name: str) -> Any:
    """The value for a request, or a path when `text` is no schema but names a file.

    `name` is what the person typed in front of it. Raises: Usage.
    """
    if text == "json":
        return text
    return _schema(text, name) if text.lstrip().startswith(("{", "[")) else expanded(text)


def schema_in(path: Path, name: str) -> Any:
    """The schema in a file. Raises: Usage."""
    if problem := no_file(path, str(path)):
        raise Usage(f"{name} {TAKES}: {problem}")
    try:
        return _schema(path.read_bytes(), name, f" in `{path}`")
    except OSError as error:
        raise Usage(f"{name}: `{path}` cannot be read: {error.strerror}") from error


def described(value: Any) -> str:
    """What answers are with this format of a request, None for none."""
    if value is None:
        return "free text"
    return "JSON" if value == "json" else "JSON that matches the schema"


def _schema(text: str | bytes, name: str, where: str = "") -> Any:
    try:
        schema = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise Usage(f"{name} takes `json` or a JSON schema{where}: {error}") from error
    if not isinstance(schema, dict):
        raise Usage(f"{name} takes `json` or a JSON schema{where}, which is an object")
    return schema
