"""Model names: `[scheme://][host[:port]/][namespace/]model[:tag]`.

Owns the grammar, the defaults and the two spellings (full, and the shortest for display). Pure: it
knows no file system, but what it accepts is safe as four path components, because no part may
start with a dot or hold a separator.
Source: Ollama, `types/model/name.go` (lengths in bytes, character classes, defaults). Different on
purpose: Hugging Face's users may have a dot in their names.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

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

# Two names of one site. Only there may a namespace hold dots: elsewhere `a.b/m` is somebody's
# mistake for a host, and Ollama refuses it too.
HUGGING_FACE = frozenset(["hf.co", "huggingface.co"])
NO_CLOUD = (
    "models of `:cloud` run on somebody else's machines and need an account there; localrun runs "
    "models on this machine"
)
_DOTTED_NAMESPACE = (80, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII))


@dataclass(frozen=True, slots=True)
class ModelName:
    """A complete, valid name; the case is kept as typed."""

    host: str
    namespace: str
    model: str
    tag: str

    @staticmethod
    @lru_cache(maxsize=1024)  # each request names its model, and mostly the same one
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
        check_no_userinfo(text, rest)
        tag = DEFAULT_TAG
        rest = _without_suffix(text, rest)
        colon = rest.rfind(":")
        if colon > rest.rfind("/"):
            rest, tag = rest[:colon], rest[colon + 1 :]
        parts = rest.split("/")
        if len(parts) > 3:
            raise InvalidName(text, "it has more than host, namespace and model")
        host, namespace, model = [DEFAULT_HOST, DEFAULT_NAMESPACE][: 3 - len(parts)] + parts
        name = ModelName(host, namespace, model, tag)
        for part, value in zip(PART_NAMES, name.parts, strict=True):
            if problem := part_problem(part, value, host=host):
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


def check_no_userinfo(text: str, rest: str) -> None:
    """Refuses an `@` in `rest`, which is `text` without its scheme. Raises: InvalidName."""
    if "@" in rest.partition("/")[0] and "/" in rest:
        raise InvalidName(
            text,
            "a user or password does not belong into a name; the daemon's setting "
            "LOCALRUN_REGISTRIES holds them",
        )
    if "@" in rest:
        raise InvalidName(text, "digests (`@`) are not supported in names")


def _without_suffix(text: str, rest: str) -> str:
    """Takes `:local` off `model:tag:local`. Raises: InvalidName for `model:tag:cloud`."""
    front, _, suffix = rest.rpartition(":")
    if ":" not in front.rpartition("/")[2]:
        return rest  # one colon: an ordinary tag, whatever its letters
    if suffix == "cloud":
        raise InvalidName(text, NO_CLOUD)
    return front if suffix == "local" else rest


def part_problem(part: str, value: str, *, host: str = "") -> str | None:
    """Says what is wrong with `value` as that part of a name on `host`, or None."""
    is_dotted = part == "namespace" and host.lower() in HUGGING_FACE
    longest, pattern = _DOTTED_NAMESPACE if is_dotted else _RULES[part]
    if not value:
        return f"the {part} is empty"
    if len(value.encode("utf-8", "surrogatepass")) > longest:
        return f"the {part} is longer than {longest} bytes"
    if pattern.fullmatch(value) is None:
        if pattern.match(value) is None:
            return f"the {part} must start with a letter, a digit or `_`"
        return f"the {part} has a character that is not allowed there"
    return None
