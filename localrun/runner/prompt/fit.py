"""What of a prompt goes into the context. Pure but for the counting it is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from localrun.core import Message
from localrun.errors import ContextOverflow

# The longest tokens of common vocabularies are runs of 128 spaces. Text beyond this per token of
# the window cannot fit, which is known without spending seconds on tokenizing it.
MAX_TOKEN_CHARS = 256

# What text that was never tokenized counts as, where we say how much was left out.
_CHARS_PER_TOKEN = 4

# Part of the window that is free for the answer once turns have to go: without it most answers of
# a long conversation would end after a few words.
_ANSWER_PART = 8

# Part of the window that has to move when its middle goes. With less, the tail would be computed
# anew every few tokens.
_MOVING_PART = 4

Tokenize = Callable[[Sequence[Message]], list[int]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt shorter than its window; `n_dropped` tokens of the whole one are not in it."""

    tokens: list[int]
    n_dropped: int = 0


def cut_around(
    prefix: list[int], suffix: list[int], n_ctx: int, *, num_predict: int = -1
) -> tuple[list[int], list[int]]:
    """(end of `prefix`, beginning of `suffix`): what is nearest to the gap that is to be filled.

    The suffix has a quarter of the room at most, unless the prefix leaves more. `n_ctx` tokens
    are there for both and the answer. Source: llama.cpp's server, /infill.
    """
    room = max(1, n_ctx // 2)
    n_both = max(0, n_ctx - (max(1, min(room, num_predict)) if num_predict >= 0 else room))
    n_suffix = min(len(suffix), max(n_both // 4, n_both - len(prefix)))
    n_prefix = min(len(prefix), n_both - n_suffix)
    return prefix[len(prefix) - n_prefix :], suffix[:n_suffix]


def check_size(n_chars: int, n_ctx: int) -> None:
    """Raises ContextOverflow when that much text cannot fit, whatever it says."""
    if n_chars > n_ctx * MAX_TOKEN_CHARS:
        raise ContextOverflow(n_chars // MAX_TOKEN_CHARS, n_ctx, is_at_least=True)


def whole(messages: Sequence[Message], n_ctx: int, tokenize: Tokenize) -> Fitted:
    """All of the conversation. Raises ContextOverflow when it leaves no room for an answer."""
    check_size(_n_chars(messages), n_ctx)
    tokens = tokenize(messages)
    if len(tokens) >= n_ctx:
        raise ContextOverflow(len(tokens), n_ctx)
    return Fitted(tokens)


def answer_room(n_ctx: int, num_predict: int) -> int:
    """Tokens that stay free for the answer when turns have to go."""
    room = n_ctx // _ANSWER_PART
    return max(1, room if num_predict < 0 else min(room, num_predict))


def fit(
    messages: Sequence[Message], n_ctx: int, tokenize: Tokenize, *, n_answer: int = 1
) -> Fitted:
    """Tokens of the longest recent part of the conversation that leaves room for an answer.

    The oldest turns go first; system messages and the last turn always stay. What fits as it is
    stays whole; else `n_answer` tokens are kept free, if the last turn allows it. `tokenize`
    renders and counts; it runs about log2(turns) times. Source: Ollama's truncation of /api/chat.
    Raises ContextOverflow when even the last turn is too long.
    """
    recent = _conceivable(messages, n_ctx)
    n_unseen = (_n_chars(messages) - _n_chars(recent)) // _CHARS_PER_TOKEN
    everything = tokens = tokenize(recent)
    if len(tokens) < n_ctx:
        return Fitted(tokens, n_unseen)
    best: list[int] | None = None
    # What a tool says is nothing without the call, so they go and stay together.
    begins = [n for n in range(1, len(recent)) if recent[n].role != "tool"]
    low, high = 0, len(begins) - 1  # dropping what is before `begins[high]` leaves the last turn
    while low <= high:
        middle = (low + high) // 2
        shorter = tokenize(_without_oldest(recent, begins[middle]))
        is_last = middle == len(begins) - 1
        if len(shorter) + (1 if is_last else n_answer) <= n_ctx:
            best, high = shorter, middle - 1
        else:
            tokens, low = shorter, middle + 1
    if best is None:
        raise ContextOverflow(len(tokens), n_ctx)
    return Fitted(best, len(everything) - len(best) + n_unseen)


def n_kept(num_keep: int, n_tokens: int, n_ctx: int, *, has_bos: bool) -> int:
    """How many of the first tokens stay in a window of `n_ctx` when its middle has to go.

    `num_keep` is the option: all of `n_tokens` when negative, and a BOS does not count. Whatever
    it is, a part of the window is left to move.
    """
    wanted = n_tokens if num_keep < 0 else num_keep + has_bos
    return min(wanted, n_tokens, n_ctx - max(1, n_ctx // _MOVING_PART))


def cut(tokens: list[int], n_ctx: int, *, n_keep: int, num_predict: int = -1) -> Fitted:
    """The first `n_keep` tokens and the end of the prompt.

    Half of what is behind the first ones is left for the answer, or less when it is bounded by
    less. Source: Ollama's limit for prompts without turns.
    """
    room = max(1, (n_ctx - n_keep) // 2)
    if num_predict >= 0:
        room = max(1, min(room, num_predict))
    n_tail = max(0, n_ctx - room - n_keep)
    shorter = tokens[:n_keep] + tokens[len(tokens) - n_tail :]
    return Fitted(shorter, len(tokens) - len(shorter))


def shortened(text: str, n_ctx: int, num_keep: int) -> tuple[str, int]:
    """(the text as far as it can matter for `cut`, tokens that the rest may have had)."""
    n_front = min(n_ctx, num_keep if num_keep >= 0 else n_ctx) * MAX_TOKEN_CHARS
    n_back = n_ctx * MAX_TOKEN_CHARS
    n_left_out = len(text) - n_front - n_back
    if n_left_out <= 0:
        return text, 0
    return text[:n_front] + text[-n_back:], n_left_out // _CHARS_PER_TOKEN


def with_last_shortened(
    messages: Sequence[Message], n_ctx: int, num_keep: int
) -> tuple[Sequence[Message], int]:
    """(messages, tokens left out): the last one is `shortened`."""
    *others, last = messages
    text, n_left_out = shortened(last.content, n_ctx, num_keep)
    return ([*others, replace(last, content=text)], n_left_out) if n_left_out else (messages, 0)


def cut_last_turn(
    messages: Sequence[Message],
    n_ctx: int,
    tokenize: Tokenize,
    *,
    keep: Callable[[list[int]], int],
    num_predict: int,
    n_context: int = 0,
) -> Fitted:
    """What always stays, with the middle of the last turn left out.

    `keep` says how many of the first tokens stay at least. Of the first `n_context` tokens, an
    earlier conversation, the middle goes first, if that is enough. What stands before the text of
    that turn stays whole, the system text and the turn's beginning as the template spells it, and
    so does what stands behind it: else a user's words could end up as somebody else's.
    Raises ContextOverflow when the window holds no more than that.
    """
    always = _without_oldest(messages, _begin_of_last(messages))
    check_size(_n_chars(always[:-1]), n_ctx)
    tokens = tokenize(always)
    n_keep = keep(tokens)
    shorter = cut(tokens, n_ctx, n_keep=n_keep, num_predict=num_predict)
    if not n_context or len(shorter.tokens) - n_keep < len(tokens) - n_context:
        empty = tokenize([*always[:-1], replace(always[-1], content="")])
        pairs = zip(tokens, empty, strict=False)
        n_head = next((n for n, (one, other) in enumerate(pairs) if one != other), len(empty))
        n_keep = max(n_keep, n_head)
        shorter = cut(tokens, n_ctx, n_keep=n_keep, num_predict=num_predict)
        if len(shorter.tokens) - n_keep <= len(empty) - n_head:
            raise ContextOverflow(len(tokens), n_ctx)
    n_turns = (_n_chars(messages) - _n_chars(always)) // _CHARS_PER_TOKEN
    return Fitted(shorter.tokens, shorter.n_dropped + n_turns)


def _begin_of_last(messages: Sequence[Message]) -> int:
    """Where the last turn begins, which has the call of a tool's result with it."""
    return max((n for n, one in enumerate(messages) if one.role != "tool"), default=0)


def _n_chars(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _conceivable(messages: Sequence[Message], n_ctx: int) -> Sequence[Message]:
    """The recent turns that could fit by their sheer number and size: a turn is a token at least.

    Raises ContextOverflow when what always stays is too long already.
    """
    n_chars = _n_chars([message for message in messages[:-1] if message.role == "system"])
    check_size(n_chars + len(messages[-1].content), n_ctx)
    last = _begin_of_last(messages)
    n_dropped = min(max(0, len(messages) - n_ctx), last)
    n_chars = _n_chars(messages[n_dropped:])
    while n_dropped < last and (
        n_chars > n_ctx * MAX_TOKEN_CHARS or (n_dropped and messages[n_dropped].role == "tool")
    ):
        n_chars -= len(messages[n_dropped].content)
        n_dropped += 1
    return _without_oldest(messages, n_dropped)


def _without_oldest(messages: Sequence[Message], n_dropped: int) -> list[Message]:
    system = [message for message in messages[:n_dropped] if message.role == "system"]
    return [*system, *messages[n_dropped:]]
