"""The seam between the engine and what computes: `llama.py` and, scripted, `fake.py`.

`Vocab` may be used from any thread. Everything of `Model` belongs to the engine thread.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from localrun.core import RunnerInfo, SamplingParams

# Called with the part of the weights that is in place, 0 to 1.
OnProgress = Callable[[float], None]


class LoadRefused(Exception):
    """The weights cannot be loaded; the text says why, for the user."""


class Vocab(Protocol):
    """Text ⇄ token ids of one model. Thread-safe."""

    chat_template: str | None
    bos_text: str
    eos_text: str

    @property
    def n_tokens(self) -> int:
        """Ids run from 0 to this, exclusive."""
        ...

    def tokenize(self, text: str, *, is_start: bool = True) -> list[int]:
        """Ids of `text`, control tokens recognised, without an EOS at the end.

        At the start of a prompt with exactly one BOS if the model wants one, else without.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text; empty for control tokens. May split a character."""
        ...

    def is_end(self, token: int) -> bool:
        """True for every end-of-generation token."""
        ...


class Sampler(Protocol):
    """The sampler chain of one sequence."""

    def sample(self, row: int) -> int:
        """The token for output `row` of the last forward; the chain remembers it."""
        ...

    def close(self) -> None:
        """Frees the chain. The sampler must not be used afterwards."""
        ...


class Model(Protocol):
    """Weights and context of one loaded model. Engine thread only."""

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary; this part may be used from any thread."""
        ...

    @property
    def info(self) -> RunnerInfo:
        """What was really allocated."""
        ...

    @property
    def n_batch(self) -> int:
        """Rows that one forward takes at most."""
        ...

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> int:
        """Evaluates rows: equally long sequences of token, position, slot, and "give logits".

        Returns llama.cpp's code: 0 done, 1 no cells free (nothing changed), anything else an
        error. Output rows are numbered from 0 in the order of the rows that asked for one.
        Raises ValueError for rows that would abort the process.
        """
        ...

    def greedy(self) -> list[int]:
        """The likeliest token of every output row of the last forward."""
        ...

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
        """A chain for one sequence; penalties look back into `prompt` too."""
        ...

    def free(self, slot: int) -> None:
        """Gives back every cell of the slot."""
        ...
