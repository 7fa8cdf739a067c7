"""Anthropic's dialect: the turns of a conversation → `Message`. No I/O.

Content is a text or a list of blocks. Documents and results of searches that consist of text are
text of the turn. Blocks that a model here has no use for, such as what servers of Anthropic have
done and thinking that only they can read, are passed over; everything else is refused.
Source: Anthropic's API reference, "Messages"; Ollama `anthropic/anthropic.go`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from localrun.core import Message, ToolCall
from localrun.errors import BadRequest, Unsupported
from localrun.wire.bodies import located
from localrun.wire.tools import arguments_of

T = TypeVar("T")

_ROLES = ("user", "assistant", "system")
_MAX_SHOWN = 40
_PASSED_OVER = frozenset(
    {
        "redacted_thinking",
        # What Anthropic's servers have called, and what came of it.
        *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "tool_reference"),
        *("web_search_tool_result", "web_fetch_tool_result", "tool_search_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        "text_editor_code_execution_tool_result",
    }
)

# What the result of a call that failed begins with: templates have no field for it.
_FAILED = "The call failed."

Content = str | list[dict[str, Any]]


class WireTurn(msgspec.Struct):
    """A turn as Anthropic's clients send it."""

    role: str
    content: Content


class _Text(msgspec.Struct):
    text: str


class _Thinking(msgspec.Struct):
    thinking: str


class _ToolUse(msgspec.Struct):
    id: str
    name: str
    input: Any = None


class _ToolResult(msgspec.Struct):
    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class _Document(msgspec.Struct):
    source: dict[str, Any]
    title: str | None = None
    context: str | None = None


class _TextSource(msgspec.Struct):
    data: str


class _Contained(msgspec.Struct):
    """What a document or a result of a search contains."""

    content: Content
    title: str | None = None


class _Piece(NamedTuple):
    """Some text of a turn; what is a document stands apart from its neighbours."""

    text: str
    is_document: bool = False


def messages_of(
    system: Content | None, turns: Sequence[WireTurn], model: str
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """(the conversation, types of blocks that were passed over).

    Raises BadRequest with the path of what is wrong, Unsupported for images and documents
    other than text.
    """
    reader = _Reader(model)
    messages: list[Message] = []
    if text := reader.text(system, "system"):
        messages.append(Message("system", text))
    for i, turn in enumerate(turns):
        messages += reader.turn(turn, f"messages[{i}]")
    return tuple(messages), tuple(reader.passed_over)


class _Reader:
    """Reads turns, and remembers which types of blocks it has passed over."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.passed_over: dict[str, None] = {}

    def turn(self, turn: WireTurn, path: str) -> list[Message]:
        """The results of tools in it, then what is said. Source for the order: Ollama."""
        if turn.role not in _ROLES:
            known = ", ".join(f'"{role}"' for role in _ROLES)
            raise BadRequest(f"{path}.role", f'"{turn.role[:_MAX_SHOWN]}" is not one of {known}')
        pieces: list[_Piece] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        results: list[Message] = []
        for block, at in self._blocks(turn.content, f"{path}.content"):
            match block.get("type"):
                case "thinking":
                    thoughts.append(_read(_Thinking, block, at).thinking)
                case "tool_use" if turn.role != "assistant":
                    raise BadRequest(at, f"only an assistant calls, not {_an(turn.role)}")
                case "tool_use":
                    calls.append(_call(block, at))
                case "tool_result" if turn.role != "user":
                    raise BadRequest(at, f"results come from a user, not from {_an(turn.role)}")
                case "tool_result":
                    results.append(self._result(block, at))
                case _:
                    pieces += self._pieces(block, at)
        if results and not (pieces or thoughts or calls):
            return results
        said = Message(turn.role, _joined(pieces), "".join(thoughts), tuple(calls))
        return [*results, said]

    def text(self, content: Content | None, path: str) -> str:
        """The text of content, documents in it included."""
        blocks = self._blocks(content or "", path)
        return _joined([piece for block, at in blocks for piece in self._pieces(block, at)])

    def _pieces(self, block: dict[str, Any], path: str) -> list[_Piece]:
        """The text of a block; none when it is passed over."""
        match block.get("type"):
            case "document":
                return [_Piece(self._document(_read(_Document, block, path), path), True)]
            case "search_result":
                found = _read(_Contained, block, path)
                text = self._plain(found.content, f"{path}.content")
                return [_Piece(_paragraphs(found.title, text), True)]
        return self._plain_pieces(block, path)

    def _plain_pieces(self, block: dict[str, Any], path: str) -> list[_Piece]:
        kind = block.get("type")
        if kind == "text":
            return [_Piece(_read(_Text, block, path).text)]
        self._pass_over(kind, path)
        return []

    def _plain(self, content: Content, path: str) -> str:
        """The text of content that contains no documents."""
        blocks = self._blocks(content, path)
        return _joined([piece for block, at in blocks for piece in self._plain_pieces(block, at)])

    def _document(self, document: _Document, path: str) -> str:
        source, at = document.source, f"{path}.source"
        match source.get("type"):
            case "text":
                text = _read(_TextSource, source, at).data
            case "content":
                text = self._plain(_read(_Contained, source, at).content, f"{at}.content")
            case str():
                raise Unsupported(self._model, "documents other than text", path)
            case _:
                raise BadRequest(f"{at}.type", "is required")
        return _paragraphs(document.title, document.context, text)

    def _result(self, block: dict[str, Any], path: str) -> Message:
        result = _read(_ToolResult, block, path)
        if not result.tool_use_id:
            raise BadRequest(f"{path}.tool_use_id", "is required")
        content = self.text(result.content, f"{path}.content")
        if result.is_error:
            content = _paragraphs(_FAILED, content)
        return Message("tool", content, tool_call_id=result.tool_use_id)

    def _blocks(self, content: Content, path: str) -> list[tuple[dict[str, Any], str]]:
        if isinstance(content, str):
            return [({"type": "text", "text": content}, path)]
        return [(block, f"{path}[{i}]") for i, block in enumerate(content)]

    def _pass_over(self, kind: Any, path: str) -> None:
        if not isinstance(kind, str):
            problem = "is required" if kind is None else "must be a string"
            raise BadRequest(f"{path}.type", problem)
        if kind == "image":
            raise Unsupported(self._model, "vision", path)
        if kind not in _PASSED_OVER:
            problem = f'blocks of the type "{kind[:_MAX_SHOWN]}" cannot be read here; send text'
            raise BadRequest(f"{path}.type", problem)
        self.passed_over[kind] = None


def _an(role: str) -> str:
    return f"an {role}" if role == "assistant" else f"a {role}"


def _joined(pieces: Sequence[_Piece]) -> str:
    joined = ""
    was_document = False
    for piece in pieces:
        if joined and (piece.is_document or was_document):
            joined += "\n\n"
        joined += piece.text
        was_document = piece.is_document
    return joined


def _paragraphs(*texts: str | None) -> str:
    return "\n\n".join(text for text in texts if text)


def _call(block: dict[str, Any], path: str) -> ToolCall:
    call = _read(_ToolUse, block, path)
    for field, value in (("id", call.id), ("name", call.name)):
        if not value:
            raise BadRequest(f"{path}.{field}", "is required")
    return ToolCall(call.name, arguments_of(call.input, f"{path}.input"), call.id)


def _read(kind: type[T], block: dict[str, Any], path: str) -> T:
    try:
        return msgspec.convert(block, kind)
    except msgspec.ValidationError as error:
        raise located(str(error), path) from None
