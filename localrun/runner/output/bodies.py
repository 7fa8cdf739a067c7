"""What stands between a format's markers → calls. Pure; one function for each way to write them.

Each takes the text of a body and the offered tools, and raises NotReadable when it is no call.
With `is_whole` nothing follows any more, so that brackets at the end may be missing.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

from localrun.runner.output.lenient import NotReadable, read_objects, read_value, sound
from localrun.runner.output.offered import Found, Offered

Body = Callable[[str, Offered, bool], list[Found]]

_FENCE = re.compile(r"\s*```\w*\s*(.*?)\s*(?:```\s*)?", re.DOTALL)
_FIRST, _MORE = re.compile(r"\s*\[?\s*"), re.compile(r"[\s,;]*")
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_INVOKE = re.compile(r'<invoke name="([^"]+)">(.*?)(?:</invoke>|\Z)', re.DOTALL)
_PARAMETER = re.compile(
    r'<parameter(?:=| name=")([^>"]+)"?>(.*?)(?:</parameter>|(?=<parameter)|\Z)', re.DOTALL
)
_GLM_PAIR = re.compile(
    r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|\Z)", re.DOTALL
)
_BRACED = re.compile(r"\s*call:([\w.-]+)\s*(?=\{)")
_MISTRAL = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*(?=\{)")
_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)(?:<｜tool▁call▁end｜>|\Z)", re.DOTALL
)
_KIMI = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|\Z)",
    re.DOTALL,
)
_KIMI_ID = re.compile(r"\s*(?:functions\.)?(.+?)(?::\d+)?\s*")


def json_values(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """`{"name": …, "arguments": …}`, one or several, in a list or not, in a fence or not."""
    if match := _FENCE.fullmatch(text):
        text = match[1]
    found = [offered.calls(value) for value in read_objects(text, is_whole=is_whole)]
    return _sum(found)


def whole_calls(text: str, offered: Offered) -> tuple[list[Found], int]:
    """(the calls that JSON begins with, one or several, in a list or not, where they end).

    None unless all the values that are whole are calls.
    """
    found: list[Found] = []
    end = 0
    at = _next_object(text, 0)
    while at < len(text) and text[at] == "{":
        try:
            value, at = read_value(text, at)
        except NotReadable:
            break
        calls = offered.calls(value)
        if calls is None:
            return [], 0
        found, end = found + calls, at
        at = _next_object(text, at)
    return found, end


def _next_object(text: str, at: int) -> int:
    match = (_MORE if at else _FIRST).match(text, at)
    return match.end() if match else at


def xml_parameters(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>`, or with `<invoke name=…>`."""
    functions = [*_FUNCTION.finditer(text), *_INVOKE.finditer(text)]
    _check_nothing_else(text, functions)
    return _sum([_xml_call(match[1], match[2], offered) for match in functions])


def _xml_call(name: str, body: str, offered: Offered) -> list[Found] | None:
    if body.lstrip().startswith("{"):
        value, _ = read_value(body.strip(), is_whole=True)
        return _listed(offered.call(name, value))
    pairs = list(_PARAMETER.finditer(body))
    _check_nothing_else(body, pairs)
    return _listed(offered.typed(name, {pair[1]: _inner(pair[2]) for pair in pairs}))


def _inner(text: str) -> str:
    """Without the line breaks that the format has around a value."""
    return text.removeprefix("\n").removesuffix("\n")


def function_tag(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """As `xml_parameters`, for a format whose opening marker is `<function=`."""
    return xml_parameters(f"<function={text}", offered, is_whole)


def glm_arguments(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """`NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…`."""
    name = text.partition("<arg_key>")[0]
    rest = text[len(name) :]
    pairs = list(_GLM_PAIR.finditer(rest))
    _check_nothing_else(rest, pairs)
    return _sum([_listed(offered.typed(name.strip(), {p[1].strip(): p[2] for p in pairs}))])


def braced_call(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """`call:NAME{KEY:VALUE,…}` with keys and texts in Gemma's spelling."""
    return _sum(list(_with_arguments(_BRACED, text, offered, is_whole)))


def mistral_calls(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """`NAME[ARGS]{…}`, with or without an id."""
    return _sum(list(_with_arguments(_MISTRAL, text, offered, is_whole)))


def _with_arguments(
    head: re.Pattern[str], text: str, offered: Offered, is_whole: bool
) -> Iterator[list[Found] | None]:
    at = 0
    while at < len(text.rstrip()):
        match = head.match(text, at)
        if match is None:
            raise NotReadable(text[at : at + 20])
        value, at = read_value(text, match.end(), is_whole=is_whole)
        yield _listed(offered.call(match[1], value))


def deepseek_calls(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """Calls between DeepSeek's markers: NAME, separator, JSON; older: a word, separator, NAME, a
    fence with JSON."""
    matches = list(_DEEPSEEK.finditer(text))
    _check_nothing_else(text, matches)
    found = []
    for match in matches:
        name, body = match[1].strip(), match[2]
        if name not in offered.names:
            name, _, body = body.strip().partition("\n")
        if fenced := _FENCE.fullmatch(body):
            body = fenced[1]
        found.append(_listed(offered.call(name.strip(), body)))
    return _sum(found)


def kimi_calls(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """Calls between Kimi's markers: `functions.NAME:NUMBER`, separator, JSON."""
    matches = list(_KIMI.finditer(text))
    _check_nothing_else(text, matches)
    found = []
    for match in matches:
        name = _KIMI_ID.fullmatch(match[1])
        found.append(_listed(offered.call(name[1] if name else "", match[2])))
    return _sum(found)


def python_calls(text: str, offered: Offered, is_whole: bool) -> list[Found]:
    """`[NAME(KEY=VALUE, …), …]` as in Python, or one call a line."""
    try:
        lines = ast.parse(text.strip()).body
        calls = [call for line in lines for call in _python_expressions(line)]
        return _sum([_python_call(call, offered) for call in calls])
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise NotReadable(str(error)) from None


def _python_expressions(line: ast.stmt) -> list[ast.expr]:
    if not isinstance(line, ast.Expr):
        raise NotReadable("a line is no call")
    return line.value.elts if isinstance(line.value, ast.List) else [line.value]


def _python_call(call: ast.expr, offered: Offered) -> list[Found] | None:
    if not isinstance(call, ast.Call) or call.args:
        return None
    arguments = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        arguments[keyword.arg] = _python_value(keyword.value)
    return _listed(offered.call(ast.unparse(call.func), arguments))


_NAMES = {"true": True, "false": False, "null": None}


def _python_value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_python_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {
                str(_python_value(key)): _python_value(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise NotReadable("a value that JSON does not have")
    return sound(value)


def either(*bodies: Body) -> Body:
    """The first of several ways to read a body that can."""

    def read(text: str, offered: Offered, is_whole: bool) -> list[Found]:
        for body in bodies:
            try:
                return body(text, offered, is_whole)
            except NotReadable:
                continue
        raise NotReadable(text[:20])

    return read


def _listed(found: Found | None) -> list[Found] | None:
    return [found] if found else None


def _sum(found: list[list[Found] | None]) -> list[Found]:
    calls = [call for some in found for call in some or ()]
    if not calls or not all(found):
        raise NotReadable("not all of it are calls of offered tools")
    return calls


def _check_nothing_else(text: str, matches: list[re.Match[str]]) -> None:
    """Raises NotReadable when there is text around the matches, which would be lost."""
    at = 0
    for match in sorted(matches, key=lambda one: one.start()):
        if text[at : match.start()].strip():
            raise NotReadable(text[at : at + 20])
        at = match.end()
    if text[at:].strip():
        raise NotReadable(text[at : at + 20])
