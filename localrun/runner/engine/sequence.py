"""One request as the engine sees it: tokens, a place in the KV cache, and when it ends."""

from dataclasses import dataclass, field

from localrun.core import DoneReason, SamplingParams
from localrun.runner.model import Sampler


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens. The engine thread writes; the text thread reads the times at the end.

    `tokens` starts as the prompt and grows with the completion. The first `n_done` of them have
    cells in slot `slot`. `n_ctx` bounds prompt and completion together.
    """

    id: int
    tokens: list[int]
    sampling: SamplingParams
    n_ctx: int
    n_prompt: int = 0
    n_done: int = 0
    slot: int = -1
    sampler: Sampler | None = None
    # Clock readings of the engine, ns; 0 means not yet.
    admitted_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    # Longest completion that `num_predict` and the window allow.
    n_predict: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)
        room = self.n_ctx - self.n_prompt
        wanted = self.sampling.num_predict
        self.n_predict = room if wanted < 0 else min(wanted, room)

    @property
    def is_prefill(self) -> bool:
        """True until the whole prompt has been evaluated."""
        return self.n_done < self.n_prompt

    @property
    def n_prefill(self) -> int:
        """Prompt tokens that still have no cell."""
        return max(0, self.n_prompt - self.n_done)

    @property
    def n_completion(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.n_prompt

    def take(self, token: int, *, is_end: bool, now_ns: int) -> DoneReason | None:
        """Appends a sampled token and says whether the sequence ends with it.

        An end-of-generation token ends the sequence and is not part of the completion.
        """
        self.last_token_ns = now_ns
        self.first_token_ns = self.first_token_ns or now_ns
        if is_end:
            return "stop"
        self.tokens.append(token)
        return "length" if self.n_completion >= self.n_predict else None
