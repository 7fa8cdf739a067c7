"""Modelfiles: text to a value and back, without I/O.

Owns the grammar. Does not know what a FROM refers to, which parameters exist, or how templates
work. `parse(render(x)) == x` for every value whose texts the grammar can carry (`is_expressible`).
Source: Ollama `parser/parser.go`. Deliberate differences: a CRLF counts as one line, and the two
zero-width joiners stay, because scripts and emoji need them.
"""

import re
from dataclasses import dataclass, field

from modelstore.errors import ModelfileSyntax, UnsupportedFormat

INSTRUCTIONS = (
    "FROM",
    "LICENSE",
    "TEMPLATE",
    "SYSTEM",
    "ADAPTER",
    "DRAFT",
    "RENDERER",
    "PARSER",
    "PARAMETER",
    "MESSAGE",
    "REQUIRES",
)
ROLES = ("system", "user", "assistant")

_BLANK = " \t"
_KEPT_CONTROLS = frozenset("\t\n\u200c\u200d")
_WORD = re.compile(r"([A-Za-z]+)(?=[ \t]|$)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Modelfile:
    """The instructions of a Modelfile, grouped; order is kept within a group."""

    froms: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    template: str | None = None
    system: str | None = None
    adapters: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()  # role, text
    drafts: tuple[str, ...] = ()
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    # Of each instruction: word, parameter name or role, line. Empty for a value that was not read.
    lines: tuple[tuple[str, str, int], ...] = field(default=(), compare=False, repr=False)

    def line_of(self, word: str, argument: str = "") -> int:
        """The line of the last such instruction, from 1, which is the one that counts; 0 = none."""
        found = (line for at, what, line in self.lines if (at, what) == (word, argument))
        return max(found, default=0)

    def merged_parameters(self) -> dict[str, str | list[str]]:
        """Parameters by name: `stop` collects its values, of the others the last one counts."""
        merged: dict[str, str | list[str]] = {}
        stops: list[str] = []
        for name, value in self.parameters:
            if name == "stop":
                stops.append(value)
                merged["stop"] = stops
            else:
                merged[name] = value
        return merged


@dataclass(frozen=True, slots=True)
class _Instruction:
    line: int
    word: str
    argument: str  # parameter name or role; empty for the other instructions
    value: str


def decode(data: bytes) -> str:
    """The text of a Modelfile: UTF-8, or UTF-16 with a byte order mark.

    Raises: ModelfileSyntax when it is neither.
    """
    has_utf16_mark = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if has_utf16_mark else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ModelfileSyntax(line, "the file is not UTF-8 text") from error


def parse(text: str) -> Modelfile:
    """Raises: ModelfileSyntax, with the line at which the faulty instruction starts."""
    lines = _normalized(text).split("\n")
    found = _instructions(lines)
    if not any(instruction.word == "FROM" for instruction in found):
        raise ModelfileSyntax(len(lines), "no FROM line")

    def every(word: str) -> tuple[str, ...]:
        return tuple(item.value for item in found if item.word == word)

    def last(word: str) -> str | None:
        return next((item.value for item in reversed(found) if item.word == word), None)

    def pairs(word: str) -> tuple[tuple[str, str], ...]:
        return tuple((item.argument, item.value) for item in found if item.word == word)

    return Modelfile(
        froms=every("FROM"),
        parameters=pairs("PARAMETER"),
        template=last("TEMPLATE"),
        system=last("SYSTEM"),
        adapters=every("ADAPTER"),
        licenses=every("LICENSE"),
        messages=pairs("MESSAGE"),
        drafts=every("DRAFT"),
        renderer=last("RENDERER"),
        parser=last("PARSER"),
        requires=last("REQUIRES"),
        lines=tuple((item.word, item.argument, item.line) for item in found),
    )


def render(modelfile: Modelfile) -> str:
    """The text of a Modelfile, one instruction a line.

    Raises: UnsupportedFormat for a text that the grammar cannot carry; `expressible` adapts one.
    """
    singles = (
        ("TEMPLATE", modelfile.template),
        ("SYSTEM", modelfile.system),
        ("RENDERER", modelfile.renderer),
        ("PARSER", modelfile.parser),
        ("REQUIRES", modelfile.requires),
    )
    lines = [f"FROM {_quoted(value)}" for value in modelfile.froms]
    lines += [f"ADAPTER {_quoted(value)}" for value in modelfile.adapters]
    lines += [f"DRAFT {_quoted(value)}" for value in modelfile.drafts]
    lines += [f"{word} {_quoted(value)}" for word, value in singles if value is not None]
    lines += [f"PARAMETER {name} {_quoted(value)}" for name, value in modelfile.parameters]
    lines += [f"LICENSE {_quoted(value)}" for value in modelfile.licenses]
    lines += [f"MESSAGE {role} {_quoted(value)}" for role, value in modelfile.messages]
    return "".join(line + "\n" for line in lines)


def is_expressible(text: str) -> bool:
    """Tells whether some quoting brings this text through `parse` unchanged.

    The grammar has no escapes: control characters are dropped, and in a text of several lines a
    line that ends with three quotes ends the value.
    """
    return _best_quoting(text) is not None


def expressible(text: str) -> str:
    """The text itself, or the nearest text that the grammar can carry."""
    if is_expressible(text):
        return text
    return re.sub(r'"""(?=[ \t]*\n)', "'''", _normalized(text))


def _normalized(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isprintable():
        return text
    return "".join(c for c in text if c.isprintable() or c in _KEPT_CONTROLS)


def _instructions(lines: list[str]) -> list[_Instruction]:
    found = []
    at = 0
    while at < len(lines):
        line = lines[at].lstrip(_BLANK)
        if not line or line.startswith("#"):
            at += 1
            continue
        word, argument, rest = _opening(line, at + 1)
        value, n_lines = _value(rest, lines, at)
        if value is None:
            raise ModelfileSyntax(at + 1, f"unexpected EOF: the quote after {word} never ends")
        if word == "FROM" and not value:
            raise ModelfileSyntax(at + 1, "FROM needs a model name or a file")
        found.append(_Instruction(at + 1, word, argument, value))
        at += n_lines
    return found


def _opening(line: str, number: int) -> tuple[str, str, str]:
    """Splits the first line of an instruction: word, argument, what is left for the value."""
    match = _WORD.match(line)
    word = match[1].upper() if match else ""
    if match is None or word not in INSTRUCTIONS:
        valid = ", ".join(instruction.lower() for instruction in INSTRUCTIONS)
        raise ModelfileSyntax(number, f"the command must be one of {valid}")
    rest = line[match.end() :]
    if not rest:
        raise ModelfileSyntax(number, f"{word} needs a value on the same line")
    if word not in ("PARAMETER", "MESSAGE"):
        return word, "", rest
    argument, _, rest = _split_argument(rest.lstrip(_BLANK))
    if word == "MESSAGE" and argument not in ROLES:
        raise ModelfileSyntax(number, f"the message role must be one of {', '.join(ROLES)}")
    if word == "PARAMETER" and _NAME.fullmatch(argument) is None:
        raise ModelfileSyntax(number, "a parameter name consists of letters, digits and `_`")
    if not rest:
        raise ModelfileSyntax(number, f"{word} {argument} needs a value on the same line")
    return word, argument, rest


def _split_argument(text: str) -> tuple[str, str, str]:
    match = re.match(r"[^ \t]*", text)
    end = match.end() if match else 0
    return text[:end], text[end : end + 1], text[end:]


def _value(rest: str, lines: list[str], at: int) -> tuple[str | None, int]:
    """The value that starts with `rest` on line `at`, and the number of lines it takes."""
    first = rest.strip(_BLANK)
    value = _unquoted(first)
    if value is not None:
        return value, 1
    fence = '"""' if first.startswith('"""') else '"'
    parts = [rest.lstrip(_BLANK)]
    for n_more, line in enumerate(lines[at + 1 :], start=1):
        parts.append(line)
        # Only such a line can end the value; joining at each line would take quadratic time.
        if line.rstrip(_BLANK).endswith(fence):
            value = _unquoted("\n".join(parts).rstrip(_BLANK))
            if value is not None:
                return value, n_more + 1
    return None, len(lines) - at


def _unquoted(text: str) -> str | None:
    """The text without its quotes; None while its closing quote is missing."""
    for fence in ('"""', '"'):
        if text.startswith(fence):
            is_closed = len(text) >= 2 * len(fence) and text.endswith(fence)
            return text[len(fence) : -len(fence)] if is_closed else None
    return text


def _quoted(text: str) -> str:
    quoted = _best_quoting(text)
    if quoted is None:
        raise UnsupportedFormat(
            "a text cannot be written in a Modelfile: it has control characters, or a line in it "
            "ends with three quotes"
        )
    return quoted


def _best_quoting(text: str) -> str | None:
    # Trying the parser on each spelling is slower than rules about quotes, but cannot disagree.
    bare = [text] if text and "\n" not in text else []
    for candidate in [*bare, f'"{text}"', f'"""{text}"""']:
        lines = _normalized(candidate).split("\n")
        if _value(lines[0], lines, 0) == (text, len(lines)):
            return candidate
    return None
