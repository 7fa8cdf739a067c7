"""Runs a plan against targets and keeps what it measured.

Owns the order: levels in turn, targets within a level in rotating order, so that whatever else the
machine does hits all of them alike; with an objective, one target's search after the other.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from cli.bench.answers import Answer, Endpoint, Outcome, Request, Unanswered
from cli.bench.client import ask
from cli.bench.figures import Figures, figures
from cli.bench.lengths import clipped
from cli.bench.load import Take, beside_long, closed_loop, open_loop, poisson_arrivals_s
from cli.bench.plan import LONG_OUTPUT_TOKENS, Level, Plan
from cli.bench.prompts import FIT_WORDS, Fit, Prompter, fit
from cli.bench.slo import Verdict, next_level
from cli.errors import Failed, Usage

# For a server that does not say: what chat-shaped lengths are commonly cut to.
_USUAL_WINDOW = 2048
# Enough that a first token without text, such as half a character, is followed by some.
_FIT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class KvUse:
    """Cells of the KV cache in all, and the most that were in use since the load."""

    n_cells: int
    n_used_max: int

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.n_used_max / self.n_cells if self.n_cells else 0.0


def _no_kv() -> KvUse | None:
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure. `who` carries the users, `about` says what runs there.

    `window` is 0 when it is not known.
    """

    name: str
    model: str
    endpoint: Endpoint
    window: int
    who: str = "this machine"
    about: str = ""
    read_kv: Callable[[], KvUse | None] = _no_kv


@dataclass(slots=True)
class Measured:
    """One level on one target, as far as it came; `long` is the long prompt's own outcome."""

    target: str
    level: Level
    outcomes: list[Outcome] = field(default_factory=list)
    long: Outcome | None = None
    kv: KvUse | None = None
    is_whole: bool = False

    @property
    def figures(self) -> Figures:
        """Of all requests but the long one, whose failure is an error of the level as well."""
        failed = [self.long] if isinstance(self.long, Unanswered) else []
        return figures([*self.outcomes, *failed])

    @property
    def reasons(self) -> list[str]:
        """Why requests failed, one entry each."""
        everything = [*self.outcomes, self.long]
        return [outcome.reason for outcome in everything if isinstance(outcome, Unanswered)]


# (target, level, requests done, requests in all or None)
Notify = Callable[[str, Level, int, int | None], None]
# What is done with a level once it is over.
OnLevel = Callable[[Measured], None]


def _say_nothing(*_: object) -> None:
    return


class Bench:
    """One run of `plan`: `measured` and `verdicts` grow while it goes on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.measured: list[Measured] = []
        self.verdicts: dict[str, Verdict] = {}
        self._notify: Notify = _say_nothing
        self._on_level: OnLevel = _say_nothing
        self._fits: dict[str, Fit] = {}
        self._n_left = plan.max_requests

    @property
    def is_exhausted(self) -> bool:
        """True when `max_requests` have been made."""
        return self._n_left <= 0

    async def run(
        self,
        targets: Sequence[Target],
        notify: Notify = _say_nothing,
        on_level: OnLevel = _say_nothing,
    ) -> None:
        """Measures `targets`, whose models are loaded. Raises: Usage, Failed, `on_level`'s."""
        self._notify, self._on_level = notify, on_level
        for target in targets:
            check_fits(self.plan, target)
        for target in targets:
            self._fits[target.name] = await calibrate(target.endpoint, target.name)
        if self.plan.slo is not None:
            for target in targets:
                await self._search(target)
            return
        for number, level in enumerate(self.plan.levels):
            first = number % len(targets)
            for target in (*targets[first:], *targets[:first]):
                if self.is_exhausted:
                    return
                await self._measure(target, level)

    async def _search(self, target: Target) -> None:
        assert self.plan.slo is not None
        met: dict[int, bool] = {}
        while not self.is_exhausted:
            step = next_level(met, self.plan.most_users)
            if isinstance(step, Verdict):
                self.verdicts[target.name] = step
                return
            measured = await self._measure(target, Level(n_users=step))
            met[step] = not self.plan.slo.broken(measured.figures)

    async def _measure(self, target: Target, level: Level) -> Measured:
        n_requests = self.plan.requests_at(level)
        measured = Measured(target.name, level)
        self.measured.append(measured)

        def take(outcome: Outcome) -> None:
            measured.outcomes.append(outcome)
            self._notify(target.name, level, len(measured.outcomes), n_requests)

        self._notify(target.name, level, 0, n_requests)
        requests = self._counted(self._requests(target), n_requests)
        await self._load(target, measured, requests, take)
        measured.kv = target.read_kv()
        measured.is_whole = True
        self._on_level(measured)
        if problem := unmeasured(measured):
            unit = "users" if level.n_users else "arrivals"
            raise Failed(f"{target.name}, {level} {unit}: {problem}")
        return measured

    async def _load(
        self, target: Target, measured: Measured, requests: Iterator[Request], take: Take
    ) -> None:
        plan, level, endpoint = self.plan, measured.level, target.endpoint
        if level.rate:
            arrivals_s = poisson_arrivals_s(level.rate, plan.duration_s, plan.seed)
            await open_loop(endpoint, arrivals_s, requests, take)
        elif plan.scenario == "long-prompt":
            n_words = self._fits[target.name].n_words(plan.long_tokens)
            text = self._prompter().prompt(n_words)
            long = Request(text, LONG_OUTPUT_TOKENS)
            measured.long = await beside_long(endpoint, requests, level.n_users, long, take)
        else:
            await closed_loop(endpoint, requests, level.n_users, take, duration_s=plan.duration_s)

    def _requests(self, target: Target) -> Iterator[Request]:
        """Requests without end: the same lengths and words each time, other numbers."""
        words = self._fits[target.name]
        prompter = self._prompter()
        system = ""
        if self.plan.scenario == "shared-prefix":
            system = prompter.text(words.n_words(self.plan.shared_tokens))
        for length in self.plan.draw_lengths():
            if not self.plan.lengths:
                length = clipped(length, target.window or _USUAL_WINDOW)
            prompt = prompter.prompt(words.n_words(length.n_prompt))
            yield Request(prompt, length.n_output, system)

    def _prompter(self) -> Prompter:
        return Prompter(self.plan.seed, secrets.randbelow(1_000_000))

    def _counted(self, requests: Iterator[Request], most: int | None) -> Iterator[Request]:
        """At most `most` of `requests`, and no more than the run still has."""
        for number in count():
            if self._n_left <= 0 or number == most:
                return
            self._n_left -= 1
            yield next(requests)


def unmeasured(measured: Measured) -> str:
    """Why a level that is over says nothing about what it was for; empty when it does."""
    if isinstance(measured.long, Unanswered):
        return f"the long prompt failed: {measured.long.reason}"
    if measured.figures.n_done:
        return ""
    if measured.reasons:
        return f"every request failed: {measured.reasons[0]}"
    return "no request came within --duration"


def check_fits(plan: Plan, target: Target) -> None:
    """Refuses prompts beyond the window of `target`, which would be cut. Raises: Usage."""
    for options, n_tokens in plan.prompts.items():
        # One token at least is for the answer.
        if 0 < target.window <= n_tokens:
            raise Usage(
                f"a prompt of {n_tokens} tokens does not fit the window of {target.model}, "
                f"{target.window} tokens with an answer; shorten it ({options}), or widen the "
                "window with the daemon's setting LOCALRUN_CONTEXT_LENGTH"
            )


async def calibrate(endpoint: Endpoint, name: str) -> Fit:
    """Two short requests: they warm the server up and tell how many tokens a word has.

    Raises: Failed, with the server's `name`.
    """
    prompter = Prompter(0, secrets.randbelow(1_000_000))
    pairs = []
    for n_words in FIT_WORDS:
        outcome = await ask(endpoint, Request(prompter.prompt(n_words), _FIT_TOKENS))
        if not isinstance(outcome, Answer):
            raise Failed(f"{name} does not answer: {outcome.reason}")
        pairs.append((n_words, outcome.n_prompt))
    return fit(pairs[0], pairs[1])
