"""What the answers of one level come to: percentiles, rates, gaps. No I/O."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cli.bench.answers import Answer, Outcome


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds, rates in tokens per second over the wall time of the level.

    None where nothing was measured: TTFT needs an answer, TPOT and gap one of several tokens.
    `n_cached` of `n_prompt` tokens were not computed, as far as the server says so.
    """

    n_done: int
    n_errors: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    gap_max_s: float | None
    n_output: int
    n_prompt: int
    n_cached: int
    output_rate: float
    prompt_rate: float
    wall_s: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """The figures of `outcomes`, all of one level."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    ttfts = [answer.ttft_s for answer in answers]
    tpots = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    n_output = sum(answer.n_tokens for answer in answers)
    n_prompt = sum(answer.n_prompt for answer in answers)
    wall_s = (
        max(answer.ended for answer in answers) - min(answer.began for answer in answers)
        if answers
        else 0.0
    )
    return Figures(
        n_done=len(answers),
        n_errors=len(outcomes) - len(answers),
        ttft_p50_s=_percentile(ttfts, 0.5),
        ttft_p99_s=_percentile(ttfts, 0.99),
        tpot_p50_s=_percentile(tpots, 0.5),
        tpot_p99_s=_percentile(tpots, 0.99),
        gap_max_s=max((gap for answer in answers for gap in answer.gaps_s), default=None),
        n_output=n_output,
        n_prompt=n_prompt,
        n_cached=sum(answer.n_cached for answer in answers),
        output_rate=n_output / wall_s if wall_s else 0.0,
        prompt_rate=n_prompt / wall_s if wall_s else 0.0,
        wall_s=wall_s,
    )


def _percentile(values: Sequence[float], share: float) -> float | None:
    return percentile(values, share) if values else None
