"""Which turns go into the context. Pure but for the counting it is given."""

from collections.abc import Callable, Sequence

from localrun.core import Message
from localrun.errors import ContextOverflow


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


def _without_oldest(messages: Sequence[Message], n_dropped: int) -> list[Message]:
    system = [message for message in messages[:n_dropped] if message.role == "system"]
    return [*system, *messages[n_dropped:]]
