"""One request as the engine sees it: tokens, a place in the KV cache, and when it ends."""

from dataclasses import dataclass, field
from typing import Optional

from localrun.core import DoneReason, SamplingParams
from localrun.runner.engine.host_tier import Saved
from localrun.runner.model import Matcher, Sampler

# How many windows a completion may go through that shifts. Source: Ollama's bound of num_predict.
MAX_WINDOWS = 10


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's tokens. The engine thread writes; the text thread reads the counts at the end.

    `tokens` starts as the prompt and grows with the completion. The first `n_done` of them have
    cells under the KV cache's sequence id `kv_id`, -1 while it has none. `n_ctx` bounds prompt
    and completion together, unless the sequence `shifts`: then its middle goes when the window is
    full, and the first `n_keep` tokens stay. `client` and `scope` are those of `core.Call`.
    """

    id: int
    tokens: list[int]
    sampling: SamplingParams
    n_ctx: int
    shifts: bool = False
    n_keep: int = 0
    client: str = ""
    scope: str = ""
    n_prompt: int = 0
    n_done: int = 0
    kv_id: int = -1
    sampler: Sampler | None = None
    # Follows the answer where it has to be of some form.
    matcher: Matcher | None = None
    # Tokens that have left the window.
    n_shifted: int = 0
    # Prompt tokens whose KV was there already when it was admitted.
    n_cached: int = 0
    # Most cells it ever had: rows below are evaluated for a second time.
    n_evaluated: int = 0
    # Place in the order of arrival, which decides who yields when cells run out.
    arrival: int = 0
    # Place in the line of those who wait; fair between clients.
    tag: float = 0.0
    # Later ones that went ahead because they were small enough.
    n_overtaken: int = 0
    # Preempted with its KV kept outside the cells.
    saved: Saved | None = None
    # Waits until that sequence has evaluated this many tokens, which both have in common.
    leader: Optional["Sequence"] = None
    n_awaited: int = 0
    # Clock readings of the engine, ns; 0 means not yet.
    arrived_ns: int = 0
    admitted_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    # Longest completion that `num_predict` and the window allow.
    n_predict: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)
        self.cap(self.n_ctx)

    def cap(self, n_ctx: int) -> None:
        """Bounds the window further."""
        self.n_ctx = min(self.n_ctx, n_ctx)
        room = max(0, self.n_ctx - self.n_prompt)
        if self.shifts:
            room = self.n_ctx * MAX_WINDOWS
        wanted = self.sampling.num_predict
        self.n_predict = room if wanted < 0 else min(wanted, room)

    @property
    def n_pending(self) -> int:
        """Tokens without a cell: one for a sequence that decodes, more while it prefills."""
        return len(self.tokens) - self.n_done

    @property
    def n_completion(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) + self.n_shifted - self.n_prompt

    @property
    def is_window_full(self) -> bool:
        """True when another token would have no place."""
        return len(self.tokens) >= self.n_ctx

    @property
    def is_held(self) -> bool:
        """True while another sequence computes a prefix that this one will share."""
        leader = self.leader
        return leader is not None and leader.kv_id >= 0 and leader.n_done < self.n_awaited

    def take(self, token: int, *, is_end: bool, now_ns: int) -> DoneReason | None:
        """Appends a sampled token and says whether the sequence ends with it.

        An end-of-generation token ends the sequence and is not part of the completion. A token
        that completes what the answer has to be ends it too, and is.
        """
        self.last_token_ns = now_ns
        self.first_token_ns = self.first_token_ns or now_ns
        if is_end:
            return "stop"
        self.tokens.append(token)
        if self.matcher is not None and self.matcher.is_finished:
            return "stop"
        return "length" if self.n_completion >= self.n_predict else None

    def drop_middle(self) -> int:
        """Takes half of what is behind the first tokens out of a full window.

        Returns how many of the tokens before it stay where they are. What follows has other
        positions now and has to be evaluated again: cells of others may stand in the same places,
        so none are moved. Source: the half is Ollama's and llama.cpp's.
        """
        n_keep = max(0, min(self.n_keep, self.n_ctx - 2))  # two more: one goes, one goes on
        n_dropped = (len(self.tokens) - n_keep) // 2
        self.tokens = self.tokens[:n_keep] + self.tokens[n_keep + n_dropped :]
        self.n_shifted += n_dropped
        return n_keep
