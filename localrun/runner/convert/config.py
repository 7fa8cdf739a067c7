"""`config.json` and its kin: JSON files from strangers, read into values of the expected types."""

import json
from pathlib import Path
from typing import Any

from localrun.runner.jobs import Refused

# Vocabularies of 260,000 tokens with their merges have some 35 MB.
_MAX_JSON_BYTES = 128 << 20
# No dimension of a published model comes near it; beyond it sizes would only be a mistake.
_MAX_COUNT = 1 << 24


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no such file. Raises Refused."""
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise Refused(f"`{path.name}` is larger than {_MAX_JSON_BYTES >> 20} MiB")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Refused(f"`{path.name}` is not JSON") from error
    if not isinstance(value, dict):
        raise Refused(f"`{path.name}` is not a JSON object")
    return value


class Config:
    """Values by their Hugging Face names. Methods raise Refused for one of a wrong type."""

    def __init__(self, values: dict[str, Any], name: str = "config.json") -> None:
        self._values = values
        self._name = name

    def has(self, key: str) -> bool:
        """True when the key has a value."""
        return self._values.get(key) is not None

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_COUNT:
            raise Refused(f"`{key}` of `{self._name}` must be a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(f"`{key}` of `{self._name}` must be a number")
        return float(value)

    def text(self, key: str, default: str = "") -> str:
        """A text; empty when there is none."""
        value = self._values.get(key)
        return value if isinstance(value, str) else default

    def flag(self, key: str) -> bool:
        """True only for true."""
        return self._values.get(key) is True

    def part(self, key: str) -> "Config | None":
        """The object below a key."""
        value = self._values.get(key)
        return Config(value, self._name) if isinstance(value, dict) else None

    def architectures(self) -> list[str]:
        """What the model says that it is."""
        value = self._values.get("architectures")
        found = value if isinstance(value, list) else []
        return [name for name in found if isinstance(name, str)]

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise Refused(f"`{self._name}` has no `{key}`")
        return value
