"""What can be pulled: a model by its name, or a GGUF file by its URL.

Owns which text is which, the name that a file's model gets, and the URLs of a split file's parts.
Pure; stricter than `ModelName.parse`, since here a mistake would become a request to a stranger.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from modelstore.errors import InvalidName
from modelstore.names import DEFAULT_HOST, NO_CLOUD, ModelName, check_no_userinfo
from modelstore.splits import part_names, part_of

_URL = re.compile(r"https?://", re.IGNORECASE)
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)
_MODEL_LIMIT_BYTES = 80  # of a model's part in a name
_MAX_PARTS = 1000  # the largest split models have some hundred


@dataclass(frozen=True, slots=True)
class GgufUrl:
    """`urls` of one model's file, or of all its parts in order; `files` are names for them."""

    urls: tuple[str, ...]
    files: tuple[str, ...]
    name: ModelName


def parse_pull(text: str) -> ModelName | GgufUrl:
    """What `text` asks for.

    Raises: InvalidName, which says what part is wrong, before anything goes to the network.
    """
    text = text.strip()
    scheme, rest = "", text
    if match := _URL.match(text):
        scheme, rest = match[0], text[match.end() :]
        check_no_userinfo(text, rest)
        if urlsplit(text).path.lower().endswith(".gguf"):
            return _gguf_url(text)
    if scheme and rest.count("/") < 2:
        raise InvalidName(
            text, "after a scheme come host, namespace and model, or the path of a .gguf file"
        )
    name = ModelName.parse(text)
    is_cloud = name.tag == "cloud" or name.tag.endswith("-cloud")
    if is_cloud and name.host == DEFAULT_HOST:
        raise InvalidName(text, NO_CLOUD)
    return name


def _gguf_url(text: str) -> GgufUrl:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidName(text, "a URL has only printable ASCII characters and no spaces")
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise InvalidName(text, "the URL has no usable host and port")
    folder, _, file = parts.path.rpartition("/")
    paths = [f"{folder}/{name}" for name in _all_parts(text, file)]
    urls = tuple(urlunsplit(parts._replace(path=path, fragment="")) for path in paths)
    files = tuple(_safe(unquote(path.rpartition("/")[2])[:-5]) + ".gguf" for path in paths)
    return GgufUrl(urls, files, _model_name(text, files[0]))


def _all_parts(text: str, file: str) -> list[str]:
    stem, suffix = file[:-5], file[-5:]  # in any case
    part = part_of(stem + ".gguf")
    if part is None:
        return [file]
    front, number, n_parts = part
    if not 1 <= number <= n_parts <= _MAX_PARTS:
        raise InvalidName(text, f"`{stem[len(front) + 1 :]}` is not a part of a split file")
    return [name[:-5] + suffix for name in part_names(stem + ".gguf")]


def _safe(stem: str) -> str:
    """What a model's name and a label of a file may hold."""
    return _FOREIGN.sub("-", stem).lstrip(".-")


def _model_name(text: str, file: str) -> ModelName:
    part = part_of(file)
    model = _safe(part[0] if part else file[:-5])[:_MODEL_LIMIT_BYTES].rstrip("-")
    if not model:
        raise InvalidName(text, "the file's name makes no model name")
    return ModelName.parse(model)
