"""What `localrun bench`'s own client sees of one server, in the figures of the comparisons."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cli.bench.answers import Answer, Endpoint, Outcome, Request
from cli.bench.figures import percentile
from cli.bench.load import closed_loop


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement of one server: the medians or percentiles over its answers."""

    n_tokens: int
    fewest: int
    most: int
    n_prompt: int
    wall_s: float
    decode_rate: float
    whole_rate: float
    total_rate: float
    ttft_p50_s: float
    ttft_p99_s: float
    max_gap_s: float
    client_cpu_s: float


def figures(answers: Sequence[Answer], client_cpu_s: float) -> Figures:
    """What `answers`, all of one measurement, come to."""
    wall_s = max(a.ended for a in answers) - min(a.began for a in answers)
    n_tokens = sum(a.n_tokens for a in answers)
    ttfts = [a.ttft_s for a in answers]
    return Figures(
        n_tokens=n_tokens,
        fewest=min(a.n_tokens for a in answers),
        most=max(a.n_tokens for a in answers),
        n_prompt=sum(a.n_prompt for a in answers),
        wall_s=wall_s,
        decode_rate=statistics.median(_decode_rate(a) for a in answers),
        whole_rate=statistics.median(a.n_tokens / (a.ended - a.began) for a in answers),
        total_rate=n_tokens / wall_s,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        max_gap_s=max(gap for a in answers for gap in a.gaps_s),
        client_cpu_s=client_cpu_s,
    )


def _decode_rate(answer: Answer) -> float:
    """Tokens per second between the first and the last text."""
    return (answer.n_tokens - 1) / (answer.times[-1] - answer.times[0])


def measure(
    endpoint: Endpoint, prompts: Sequence[str], *, n_clients: int, n_tokens: int
) -> Figures:
    """`n_clients` streams at once until every prompt is answered; each takes the next prompt.

    Raises: RuntimeError when one is not answered.
    """
    requests = [Request(prompt, n_tokens) for prompt in prompts]
    cpu_s = time.process_time()
    outcomes: list[Outcome] = []
    asyncio.run(closed_loop(endpoint, requests, n_clients, outcomes.append))
    return figures(answered(outcomes), time.process_time() - cpu_s)


def answered(outcomes: Sequence[Outcome]) -> list[Answer]:
    """`outcomes`, which all have to be answers of several pieces. Raises: RuntimeError."""
    found = []
    for outcome in outcomes:
        if not isinstance(outcome, Answer):
            raise RuntimeError(outcome.reason)
        if len(outcome.times) < 2:
            raise RuntimeError("an answer of one piece")
        found.append(outcome)
    return found
