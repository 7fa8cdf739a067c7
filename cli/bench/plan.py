"""What is to be measured: levels of load, how many requests, of which lengths. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cli.bench.lengths import Length, chat_lengths, repeated
from cli.bench.slo import Slo

Scenario = Literal["chat", "shared-prefix", "long-prompt"]

# Answers of the long prompt itself: only its first token matters.
LONG_OUTPUT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Level:
    """One strength of load: `n_users` in a closed loop, else `rate` arrivals a second."""

    n_users: int = 0
    rate: float = 0.0

    @property
    def strength(self) -> float:
        """The number that a plot has on its axis."""
        return self.n_users or self.rate

    def __str__(self) -> str:
        return str(self.n_users) if self.n_users else f"{self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `lengths` empty means chat-shaped; `levels` are unused with an `slo`.

    `n_requests` a level, None leaves it to the level. No request begins after `duration_s` of a
    level, nor after `max_requests` of the run. `most_users` bounds the search for the `slo`.
    """

    scenario: Scenario = "chat"
    levels: tuple[Level, ...] = ()
    lengths: tuple[Length, ...] = (Length(200, 100),)
    shared_tokens: int = 800
    long_tokens: int = 2600
    n_requests: int | None = None
    duration_s: float = 60.0
    max_requests: int = 2000
    seed: int = 0
    slo: Slo | None = None
    most_users: int = 16

    @property
    def has_rates(self) -> bool:
        """True when arrivals, not users, are what the levels differ in."""
        return any(level.rate for level in self.levels) and self.slo is None

    @property
    def prompts(self) -> dict[str, int]:
        """Tokens of the longest prompts, by the options that ask for them.

        Those that are shaped like chats are cut to the window, and count as nothing.
        """
        longest = max((length.n_prompt for length in self.lengths), default=0)
        found = {"--prompt-tokens or --lengths-file": longest}
        if self.scenario == "shared-prefix":
            found["--shared-tokens"] = self.shared_tokens + longest
        if self.scenario == "long-prompt":
            found["--long-tokens"] = self.long_tokens
        return found

    def requests_at(self, level: Level) -> int | None:
        """How many requests a level has; None where the time alone decides."""
        if level.rate or self.scenario == "long-prompt":
            return self.n_requests
        if self.scenario == "shared-prefix":  # all at once, then it is over
            return self.n_requests or level.n_users
        return self.n_requests or max(8, 2 * level.n_users)

    def draw_lengths(self) -> Iterator[Length]:
        """Without end, and the same for every level and target."""
        return repeated(self.lengths) if self.lengths else chat_lengths(self.seed)


def described(plan: Plan) -> str:
    """What the requests of `plan` are like, in words."""
    match plan.lengths:
        case ():
            lengths = "lengths as in chats"
        case (length,):
            lengths = f"prompts of about {length.n_prompt} tokens, answers of at most "
            lengths += str(length.n_output)
        case _:
            lengths = f"{len(plan.lengths)} different lengths"
    return (
        lengths
        + {
            "chat": "",
            "shared-prefix": f", all at once with one system prompt of {plan.shared_tokens}",
            "long-prompt": f", and one prompt of {plan.long_tokens} beside them",
        }[plan.scenario]
    )


def doubling(most: int) -> tuple[Level, ...]:
    """1, 2, 4, … users, and `most`."""
    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return tuple(Level(n_users=n) for n in (*counts, most))
