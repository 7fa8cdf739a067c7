"""What may come next in one answer. Knows tokens and grammars, not what they are for."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from localrun.runner.structured.digits import DigitRun, DigitTokens

if TYPE_CHECKING:
    from llguidance import LLMatcher

# What models write between their thinking and their answer is a line break or two.
_MOST_BLANKS = 8


class GrammarMatcher:
    """An answer that is of a grammar from its first token on; see `model.Matcher`."""

    def __init__(self, grammar: "LLMatcher", digits: DigitTokens | None = None) -> None:
        """With the vocabulary's `digits` its numbers come to an end."""
        self._grammar = grammar
        self._problem = ""
        self._digits = digits
        self._run = DigitRun()

    @property
    def is_finished(self) -> bool:
        """True when nothing may follow."""
        return self._grammar.is_stopped()

    @property
    def problem(self) -> str:
        """Why it cannot go on."""
        return self._problem

    def take(self, token: int) -> bool:
        """Goes on by `token` if it may come next."""
        if self._is_too_long(token):
            return False
        if self._grammar.try_consume_tokens([token]) == 1:
            if self._digits is not None:
                self._run.follow(self._digits.bytes_of(token))
            return True
        self._look_for_problem()
        return False

    def _is_too_long(self, token: int) -> bool:
        if self._digits is None or not self._run.is_long or not self._digits.is_one(token):
            return False
        return not int.from_bytes(self.allowed(), "little") >> token & 1

    def _look_for_problem(self) -> None:
        if self._grammar.is_error():
            self._problem = "its grammar has become too complex here"

    def allowed(self) -> bytes:
        """A bit for each token that may come next."""
        mask = self._grammar.compute_bitmask()
        self._look_for_problem()
        if self._problem:
            return bytes(len(mask))
        if self._digits is not None and self._run.is_long:
            return self._digits.left_out(mask)
        return mask


class ThinkingMatcher:
    """An answer that may come after some thinking; see `model.Matcher`.

    As long as both can begin, what was written so far is given to both. What begins the answer
    ends the chance to think, and the closing tag begins the answer.
    """

    def __init__(
        self,
        thinking: "LLMatcher",
        answer: "LLMatcher",
        name_of: Callable[[int], bytes],
        digits: DigitTokens,
        *,
        may_answer: bool,
    ) -> None:
        """`may_answer` unless the thinking has begun already."""
        self._thinking: GrammarMatcher | None = GrammarMatcher(thinking)
        self._fresh = answer
        self._answer: GrammarMatcher | None = None
        if may_answer:
            self._answer = GrammarMatcher(answer.deep_copy(), digits)
        self._name_of = name_of
        self._digits = digits
        self._n_blanks = 0
        self._has_answer_begun = False

    @property
    def is_finished(self) -> bool:
        """True when nothing may follow."""
        return self._thinking is None and self._answer is not None and self._answer.is_finished

    @property
    def problem(self) -> str:
        """Why it cannot go on."""
        return next((one.problem for one in self._ways() if one.problem), "")

    def _ways(self) -> list[GrammarMatcher]:
        return [one for one in (self._thinking, self._answer) if one is not None]

    def take(self, token: int) -> bool:
        """Goes on by `token` if it may come next."""
        thinks = self._thinking is not None and self._thinking.take(token)
        answers = self._answer is not None and self._answer.take(token)
        is_gap = not answers and self._is_gap(token)
        if not (thinks or answers or is_gap):
            return False
        self._has_answer_begun |= answers
        if not thinks:
            self._thinking = None
        if not (answers or is_gap):
            self._answer = None
        if self._thinking is not None and self._thinking.is_finished:
            self._thinking = None
            self._answer = GrammarMatcher(self._fresh, self._digits)
            self._has_answer_begun, self._n_blanks = False, 0
        return True

    def _is_gap(self, token: int) -> bool:
        """White space before the answer; it is no part of it."""
        if self._answer is None or self._has_answer_begun:
            return False
        blanks = self._name_of(token)
        if not blanks or blanks.strip() or self._n_blanks + len(blanks) > _MOST_BLANKS:
            return False
        self._n_blanks += len(blanks)
        return True

    def allowed(self) -> bytes:
        """A bit for each token that may come next."""
        first, *others = (one.allowed() for one in self._ways())
        bits = int.from_bytes(first, "little")
        for other in others:
            bits |= int.from_bytes(other, "little")
        return bits.to_bytes(len(first), "little")
