"""Which turns go into the context. Pure but for the counting it is given."""

from collections.abc import Callable, Sequence

from localrun.core import Message
from localrun.errors import ContextOverflow

# The longest tokens of common vocabularies are runs of 128 spaces. Text beyond this per token of
# the window cannot fit, which is known without spending seconds on tokenizing it.
_MAX_TOKEN_CHARS = 256


def check_size(n_chars: int, n_ctx: int) -> None:
    """Raises ContextOverflow when that much text cannot fit, whatever it says."""
    if n_chars > n_ctx * _MAX_TOKEN_CHARS:
        raise ContextOverflow(n_chars // _MAX_TOKEN_CHARS, n_ctx, is_at_least=True)


def fit(
    messages: Sequence[Message],
    n_ctx: int,
    tokenize: Callable[[Sequence[Message]], list[int]],
) -> list[int]:
    """Tokens of the longest recent part of the conversation that leaves room for an answer.

    The oldest turns go first; system messages and the last turn always stay. `tokenize` renders
    and counts; it runs about log2(turns) times. Source: Ollama's truncation of /api/chat.
    Raises ContextOverflow when even the last turn is too long.
    """
    messages = _conceivable(messages, n_ctx)
    tokens = tokenize(messages)
    if len(tokens) < n_ctx:
        return tokens
    best: list[int] | None = None
    low, high = 1, len(messages) - 1  # dropping `high` turns leaves the last one
    while low <= high:
        n_dropped = (low + high) // 2
        shorter = tokenize(_without_oldest(messages, n_dropped))
        if len(shorter) < n_ctx:
            best, high = shorter, n_dropped - 1
        else:
            tokens, low = shorter, n_dropped + 1
    if best is None:
        raise ContextOverflow(len(tokens), n_ctx)
    return best


def _conceivable(messages: Sequence[Message], n_ctx: int) -> Sequence[Message]:
    """The recent turns that could fit by their sheer number and size: a turn is a token at least.

    Raises ContextOverflow when what always stays is too long already.
    """
    n_chars = sum(len(message.content) for message in messages[:-1] if message.role == "system")
    check_size(n_chars + len(messages[-1].content), n_ctx)
    n_dropped = max(0, len(messages) - n_ctx)
    n_chars = sum(len(message.content) for message in messages[n_dropped:])
    while n_chars > n_ctx * _MAX_TOKEN_CHARS and n_dropped < len(messages) - 1:
        n_chars -= len(messages[n_dropped].content)
        n_dropped += 1
    return _without_oldest(messages, n_dropped)


def _without_oldest(messages: Sequence[Message], n_dropped: int) -> list[Message]:
    system = [message for message in messages[:n_dropped] if message.role == "system"]
    return [*system, *messages[n_dropped:]]
