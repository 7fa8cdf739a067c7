"""Constraints → matchers, through llguidance. The only file that imports it.

It is safe against what strangers write: bounded in fuel, in depth and in size, and it lets go of
the interpreter lock while it compiles and while it makes a mask. Only the vocabulary's trie is made
with the lock held, once for a model.
"""

import json
import re
from typing import cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from localrun.errors import BadRequest
from localrun.runner.model import Matcher, Vocab
from localrun.runner.structured.constraint import Constraint
from localrun.runner.structured.digits import DigitTokens
from localrun.runner.structured.matcher import GrammarMatcher, ThinkingMatcher

# The engine's defaults, which end a mask after 10 ms, but for what a grammar may hold in memory,
# which is a fifth: 50,000 states of a lexer take 100 MB.
_LIMITS = LLParserLimits(
    max_items_in_row=2000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)

# Else a mask would hold only one spelling of what has to come: the model has a say in that too.
_OPTIONS = '%llguidance {"no_forcing": true}\n'

# Marks a token that is not its text. Source: llguidance, `toktrie`.
_CONTROL = b"\xff"

# Parts of the vocabulary whose masks are made ahead: none. The engine's default of four makes masks
# inside of strings twenty times faster, but few steps need one; it doubles the time with the lock
# held (0.4 → 0.8 s at 262,000 tokens) and the memory.
_SLICES: list[str] = []

# White space before an opening tag.
_GAP = r"/[ \t\r\n]{0,8}/"

_LONGEST_PROBLEM = 300

_TOO_LARGE = "its grammar is too large"

# (part of what the engine says about its insides, what is said instead)
_OWN_WORDS = (
    (
        "Unable to determine if regex is empty",
        "the patterns, formats and lengths that hold here at once are too complex to be joined; "
        "use fewer of them, or simpler ones",
    ),
    ("Regex is empty", "no text matches the patterns, formats and lengths that hold here at once"),
    ("Failed to generate regex for", "no number that can be written is within these bounds"),
)

# A schema, and what tools and tags put around it; its reader takes seconds for a few MB.
_MOST_CHARACTERS = 1 << 20


def problem_of(grammar: str) -> str:
    """What the engine cannot express in a grammar, in a sentence; empty if nothing."""
    return _sentence(LLMatcher.validate_grammar(_OPTIONS + grammar, limits=_LIMITS))


def _sentence(message: str) -> str:
    """The engine's message without the places in a grammar that the client has never seen."""
    kept = [line for line in message.splitlines() if not re.match(r"\s*\d* \| |\s*\^+$", line)]
    text = " ".join(" ".join(kept).replace("<non-verbose/>", "").split())
    text = text.partition(" while processing ")[0]
    text = re.sub(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?", "", text)
    for beginning, own in _OWN_WORDS:
        if beginning in text:
            return own
    if text.startswith("panic: "):  # an assertion about sizes, with a stack behind it
        return _TOO_LARGE
    return text[:_LONGEST_PROBLEM].strip()


class Compiler:
    """Makes the matchers of one model. For one thread; takes up to a second when it is made."""

    def __init__(self, vocab: Vocab) -> None:
        wrapped = _Wrapped(vocab)
        self._vocab = vocab
        self._digits = DigitTokens(wrapped.tokens, vocab.token_bytes)
        self._controls = wrapped.controls
        self._tokenizer = LLTokenizer(
            cast(TokenizerWrapper, wrapped), eos_token=wrapped.ends, slices=_SLICES
        )

    def matcher(self, constraint: Constraint) -> Matcher:
        """Raises BadRequest, without a path, when it takes more than the limits."""
        answer = self._compile(constraint.grammar)
        if constraint.tags is None:
            return GrammarMatcher(answer, self._digits)
        return ThinkingMatcher(
            self._compile(self._thinking(constraint)),
            answer,
            self._vocab.token_name,
            self._digits,
            may_answer=not constraint.is_thinking,
        )

    def _compile(self, grammar: str) -> LLMatcher:
        if len(grammar) > _MOST_CHARACTERS:
            raise BadRequest("", _TOO_LARGE)
        made = LLMatcher(self._tokenizer, _OPTIONS + grammar, limits=_LIMITS, log_level=0)
        if made.is_error():
            raise BadRequest("", _sentence(made.get_error()))
        return made

    def _thinking(self, constraint: Constraint) -> str:
        """The grammar of thinking, the tags included."""
        assert constraint.tags is not None
        start = f"{_GAP} {self._tag(constraint.tags.opening)} rest"
        closing = self._tag(constraint.tags.closing)
        rest = f"rest: /(?s:.*)/ {closing}"
        if not closing.startswith("<["):
            # As text it ends where the tag stands first.
            rest = f"rest[lazy]: REST\nREST: /(?s:.*)/ {closing}"
        return f"start: {'rest' if constraint.is_thinking else start}\n{rest}"

    def _tag(self, text: str) -> str:
        """By its number where it is one control token, else by its text."""
        token = self._controls.get(text.encode())
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"


class _Wrapped:
    """A vocabulary in the form that the engine reads. Text is never tokenized for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, vocab: Vocab) -> None:
        self.tokens: list[bytes] = []
        self.controls: dict[bytes, int] = {}
        self.ends: list[int] = []
        for token, (name, is_control) in enumerate(vocab.tokens()):
            is_end = vocab.is_end(token)
            # What ends an answer is no part of one, also where it is spelled like text.
            self.tokens.append(_CONTROL + name if is_control or is_end else name)
            if is_control:
                self.controls[name] = token
            if is_end:
                self.ends.append(token)
        self.eos_token_id = self.ends[0] if self.ends else None

    def __call__(self, _text: str) -> list[int]:
        raise NotImplementedError("nothing is forced, so nothing is tokenized")
