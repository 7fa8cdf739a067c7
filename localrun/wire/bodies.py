"""Request bodies: bytes → validated struct, and the rules that several dialects share.

Owns the translation of msgspec's complaints into `BadRequest`, the message content that may be text
or parts, `keep_alive`, and the refusal of images, which this version does not read yet.
Knows neither URLs nor statuses. Source: Ollama `api/types.go`, `server/routes.go`.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from localrun.core import Call
from localrun.errors import BadRequest, Unsupported
from localrun.options import INT32_MAX, OPTIONS, check_options
from localrun.units import FOREVER, parse_duration_s
from localrun.wire.timestamps import LONGEST_S

T = TypeVar("T")

# msgspec has no attribute for the place of an error; it always ends its sentence with it.
_PLACE = re.compile(r"(?s)(?P<problem>.*) - at `(?:key in )?\$\.?(?P<path>.*)`")


class TextRequest(msgspec.Struct, frozen=True):
    """A request for text in any dialect, checked.

    `stream` is what the client asked for; `ignored` names the fields that have no effect.
    """

    call: Call
    stream: bool
    ignored: tuple[str, ...] = ()


class Part(msgspec.Struct):
    """One part of a message's content. Only text can be used so far; null is an empty one."""

    type: str
    text: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The struct in `body`. Raises BadRequest, with the JSON path of the field that is wrong."""
    if not body.strip():
        raise BadRequest("", "missing request body")
    try:
        return decoder.decode(mended(body))
    except msgspec.ValidationError as error:
        raise located(str(error)) from None
    except msgspec.DecodeError as error:
        raise BadRequest("", f"the request body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequest("", "the request body is nested too deeply") from None


# Clients that cut a string inside an emoji send half of a surrogate pair. It is no character, so
# no UTF-8 either; as in Go's decoder, hence in Ollama, U+FFFD takes its place. The first and the
# last alternative only keep whole pairs and other escapes, such as an escaped backslash, apart.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\."
)


def mended(body: bytes) -> bytes:
    """The JSON text without halves of surrogate pairs, in which decoders see an error."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return body
    return _LONE_SURROGATE.sub(_replaced, body)


def _replaced(match: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if match[1] else match[0]


def located(sentence: str, where: str = "") -> BadRequest:
    """msgspec's complaint about what stands at the path `where`."""
    match = _PLACE.fullmatch(sentence)
    place, problem = (match["path"], match["problem"]) if match else ("", sentence)
    path = f"{where}.{place}" if where and place else where or place
    return BadRequest(path, problem[:1].lower() + problem[1:])


def required_model(model: str | None, path: str = "") -> str:
    """The name as sent. Raises BadRequest when there is none."""
    if not model or not model.strip():
        raise BadRequest(path, "is required" if path else "model is required")
    return model


def check_limit(n_tokens: int | float, path: str) -> None:
    """Raises BadRequest for a limit of an answer that is no whole number of at least 1."""
    if n_tokens < 1 or n_tokens != int(n_tokens):
        raise BadRequest(path, "must be a whole number of at least 1")
    if n_tokens > INT32_MAX:
        raise BadRequest(path, f"must be at most {INT32_MAX}, not {n_tokens}")


def content_text(
    content: str | list[Part] | None, path: str, model: str, *, kind: str = "text"
) -> str:
    """The text of a message; parts are joined in order. `kind` is the dialect's type of a text.

    Raises BadRequest for a part of an unknown type or without a text, Unsupported for an image or
    sound.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}[{i}]", model, kind) for i, part in enumerate(content))


_NEEDED = {
    "image_url": "vision",
    "image": "vision",
    "input_image": "vision",
    "input_audio": "audio",
}


def _part_text(part: Part, path: str, model: str, kind: str) -> str:
    match part.type:
        case "text" | "input_text" | "output_text":
            return part_field(part.text, f"{path}.text")
        case "refusal":
            return part_field(part.refusal, f"{path}.refusal")
    if part.type in _NEEDED:
        raise Unsupported(model, _NEEDED[part.type], path)
    raise BadRequest(f"{path}.type", f'unknown content part "{part.type[:40]}"; use "{kind}"')


def part_field(text: str | UnsetType | None, path: str) -> str:
    """What a part is there for. Raises BadRequest when it is not."""
    if text is UNSET:
        raise BadRequest(path, "is required")
    return text or ""


def keep_alive_s(value: Any) -> float | None:
    """Seconds of a `keep_alive` field; None when it is absent, infinite when negative.

    A number is seconds, also inside a string; a string may be a Go duration.
    Raises BadRequest for anything else.
    """
    match value:
        case None | "":
            return None
        case bool():
            pass
        case int() | float():
            # Beyond this, seconds no longer fit the nanoseconds of anybody's clock.
            return FOREVER if value < 0 or value > LONGEST_S else float(value)
        case str():
            try:
                return parse_duration_s(value)
            except ValueError as error:
                raise BadRequest("keep_alive", str(error)) from None
    raise BadRequest("keep_alive", "must be a number of seconds or a duration such as `5m`")


def checked_options(raw: dict[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """(known options, names without effect). Raises BadRequest for a wrong type or range."""
    return check_options(raw) if raw else ({}, [])


_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


# What changes an answer in some dialect, or in `options`. People take it from one to another.
_MEANINGFUL = frozenset(OPTIONS) | {
    *("options", "keep_alive", "think", "format", "raw", "context", "system", "template"),
    *("max_tokens", "max_completion_tokens", "n", "best_of", "echo", "suffix", "verbosity"),
    *("response_format", "reasoning_effort", "logprobs", "top_logprobs", "tools", "tool_choice"),
    *("functions", "function_call", "parallel_tool_calls", "reasoning", "moderation", "audio"),
}


def without_effect(body: bytes, wire: msgspec.Struct) -> list[str]:
    """Names that stand at the top level of a valid body, where `wire` has no field for them.

    Names that change no answer anywhere, such as `user`, are left out.
    """
    fields = wire.__struct_fields__
    return [
        name
        for name, value in _KEYS.decode(mended(body)).items()
        if name in _MEANINGFUL and name not in fields and bytes(value) != b"null"
    ]


def refuse_images(images: Sequence[Any] | None, model: str) -> None:
    """Raises Unsupported when there is an image."""
    if images:
        raise Unsupported(model, "vision", "images")


# Ollama's and OpenAI's bound.
_MAX_TOP_LOGPROBS = 20


def wanted_logprobs(logprobs: bool | None, top_logprobs: int | None, path: str = "") -> int | None:
    """How many likeliest tokens are asked for beside each token; None without log-probabilities.

    Raises BadRequest when their number is wrong, also where it would have no effect.
    """
    if top_logprobs is not None and not 0 <= top_logprobs <= _MAX_TOP_LOGPROBS:
        problem = f"must be between 0 and {_MAX_TOP_LOGPROBS}"
        raise BadRequest(path, problem if path else f"top_logprobs {problem}")
    return (top_logprobs or 0) if logprobs else None
