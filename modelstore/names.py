"""Model names: `[scheme://][host[:port]/][namespace/]model[:tag]`.

Owns the grammar, the defaults and the two spellings (full, and the shortest for display). Pure: it
knows no file system, but what it accepts is safe as four path components, because no part may
start with a dot or hold a separator.
Source: Ollama, `types/model/name.go` (lengths in bytes, character classes, defaults).
"""

import re
from dataclasses import dataclass

from modelstore.errors import InvalidName

# The host is a folder name in Ollama's layout, so the default is part of that format.
DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

# part: (longest in bytes, characters after the first); the first is a letter, digit or `_`.
_RULES = {
    "host": (350, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", re.ASCII)),
    "namespace": (80, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)),
    "model": (80, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)),
    "tag": (80, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)),
}
PART_NAMES = tuple(_RULES)


@dataclass(frozen=True, slots=True)
class ModelName:
    """A complete, valid name; the case is kept as typed."""

    host: str
    namespace: str
    model: str
    tag: str

    @staticmethod
    def parse(text: str) -> "ModelName":
        """Completes `text` with the defaults.

        Raises: InvalidName, which names the part that is wrong.
        """
        rest = text.strip()
        if not rest:
            raise InvalidName(text, "the name is empty")
        _, scheme, after = rest.partition("://")
        if scheme:
            rest = after
        if "@" in rest:
            raise InvalidName(text, "digests (`@`) are not supported in names")
        tag = DEFAULT_TAG
        colon = rest.rfind(":")
        if colon > rest.rfind("/"):
            rest, tag = rest[:colon], rest[colon + 1 :]
        parts = rest.split("/")
        if len(parts) > 3:
            raise InvalidName(text, "it has more than host, namespace and model")
        host, namespace, model = [DEFAULT_HOST, DEFAULT_NAMESPACE][: 3 - len(parts)] + parts
        name = ModelName(host, namespace, model, tag)
        for part, value in zip(PART_NAMES, name.parts, strict=True):
            if problem := part_problem(part, value):
                raise InvalidName(text, problem)
        return name

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Host, namespace, model, tag: also the four folders below `manifests/`."""
        return (self.host, self.namespace, self.model, self.tag)

    def display(self) -> str:
        """The shortest text that parses to this name, except that the tag is always shown."""
        text = f"{self.model}:{self.tag}"
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{text}"
        if self.namespace != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{text}"
        return text

    def full(self) -> str:
        """The text with all four parts."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    def __str__(self) -> str:
        return self.display()


def part_problem(part: str, value: str) -> str | None:
    """Says what is wrong with `value` as that part of a name, or None."""
    longest, pattern = _RULES[part]
    if not value:
        return f"the {part} is empty"
    if len(value.encode("utf-8", "surrogatepass")) > longest:
        return f"the {part} is longer than {longest} bytes"
    if pattern.fullmatch(value) is None:
        if pattern.match(value) is None:
            return f"the {part} must start with a letter, a digit or `_`"
        return f"the {part} has a character that is not allowed there"
    return None
