"""Prompts of about a wanted number of tokens that share no beginning and ask for long answers.

How many tokens a word has depends on the model, so two short requests of a known number of words
tell it first (`fit`). No I/O.
"""

import random
from dataclasses import dataclass

_TEXT = (
    "river window stone garden winter letter market bridge candle forest harbor island kitchen "
    "ladder meadow morning mountain music night ocean orange paper pencil pocket rain road school "
    "shadow silver sister snow song spring station storm story street summer table teacher tower "
    "train valley village wall water weather wind wood yellow animal autumn basket brother castle "
    "corner country desert doctor dream engine family farmer field finger fire flower friend glass"
)
_WORDS = _TEXT.split()
# At the end, so that every prompt makes a model talk on for as long as it may.
_TASK = "Write a very long story with all of these words, in full detail, and never come to an end."
# Requests of one run get numbers this far apart: neighbours differ from the first digit on.
_STRIDE, _N_NUMBERS = 7919, 1_000_003
# Words of the two requests that `fit` is given.
FIT_WORDS = (40, 240)


@dataclass(frozen=True, slots=True)
class Fit:
    """Tokens of a prompt as the server counts them: `overhead` + `per_word` × words."""

    per_word: float = 1.3
    overhead: float = 60.0

    def n_words(self, n_tokens: int) -> int:
        """Words for a prompt of about `n_tokens`; 0 when task and template alone have as many."""
        return max(0, round((n_tokens - self.overhead) / self.per_word))


def fit(first: tuple[int, int], second: tuple[int, int]) -> Fit:
    """The line through two pairs (words, tokens)."""
    (words, tokens), (more_words, more_tokens) = first, second
    per_word = (more_tokens - tokens) / (more_words - words)
    # A server that truncates or does not count would give a nonsensical line.
    if per_word <= 0:
        return Fit()
    return Fit(per_word, tokens - per_word * words)


class Prompter:
    """Makes prompts, no two of them alike.

    `seed` decides the words. `nonce`, another one for every run, decides the numbers in front, so
    that a server does not know the prompts from the run before.
    """

    def __init__(self, seed: int, nonce: int) -> None:
        self._seed = seed
        self._nonce = nonce
        self._n_made = 0

    def prompt(self, n_words: int) -> str:
        """A number of its own, `n_words` words and the task."""
        return f"{self.text(n_words)}\n{_TASK}"

    def text(self, n_words: int) -> str:
        """A number of its own and `n_words` words."""
        self._n_made += 1
        number = (self._nonce + self._n_made * _STRIDE) % _N_NUMBERS
        chosen = random.Random(f"{self._seed} {self._n_made}")
        return " ".join([f"{number}.", *(chosen.choice(_WORDS) for _ in range(n_words))])
