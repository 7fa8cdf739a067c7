"""What is asked of a server and what comes of it. Values only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server answers and what its requests carry besides the prompt.

    `path` ends with `/chat/completions`, or with `/completions` for prompts without turns.
    """

    host: str
    port: int
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/v1/chat/completions"
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, answered with at most `n_tokens`; `system` stands before it."""

    prompt: str
    n_tokens: int
    system: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer; times in seconds of `time.perf_counter`, one per piece of text."""

    began: float
    times: tuple[float, ...]
    ended: float
    n_prompt: int
    n_tokens: int
    n_cached: int = 0

    @property
    def ttft_s(self) -> float:
        """From before the connection to the first text."""
        return self.times[0] - self.began

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None for an answer of one token."""
        if self.n_tokens < 2 or len(self.times) < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.n_tokens - 1)

    @property
    def gaps_s(self) -> Iterator[float]:
        """Pauses between one piece of text and the next."""
        return (b - a for a, b in zip(self.times, self.times[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request that got no whole answer; times as in `Answer`."""

    began: float
    ended: float
    reason: str


Outcome = Answer | Unanswered
