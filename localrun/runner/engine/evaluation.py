"""A plan → rows in the model → tokens. What a forward costs and counts is learned here.

Tokens leave as soon as they are sampled, and the books follow: what reads the tokens runs beside
the books then, on a core that would be idle, and not beside the next forward, which needs them all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from localrun.errors import BROKEN_LOGITS, NO_TOKEN
from localrun.runner.engine.cache import KvCache
from localrun.runner.engine.cost_model import CostModel
from localrun.runner.engine.meter import Meter
from localrun.runner.engine.sampling import SamplerPool
from localrun.runner.engine.scheduler import StepPlan
from localrun.runner.engine.sequence import Sequence
from localrun.runner.engine.threads import Governor
from localrun.runner.model import Likelihoods, Model, Wanted

# llama.cpp's code for a forward that found too few cells.
NO_CELLS = 1

Piece = tuple[Sequence, int]


@dataclass(slots=True)
class Evaluated:
    """What came of a call: tokens, and sequences whose forward failed, with its code.

    `likelihoods` has the sequences that got a token and want to know how likely it was.

    Those with `NO_CELLS` lost nothing and can be planned again when there are cells.
    """

    tokens: list[tuple[Sequence, int]] = field(default_factory=list)
    failed: list[tuple[Sequence, int]] = field(default_factory=list)
    likelihoods: dict[Sequence, Likelihoods] = field(default_factory=dict)
    forward_ns: int = 0


class Evaluator:
    """Runs forwards. Engine thread only."""

    def __init__(
        self,
        model: Model,
        costs: CostModel,
        meter: Meter,
        samplers: SamplerPool,
        governor: Governor,
        clock_ns: Callable[[], int],
    ) -> None:
        self._model = model
        self._costs = costs
        self._meter = meter
        self._samplers = samplers
        self._governor = governor
        self._clock_ns = clock_ns

    def evaluate(self, plan: StepPlan, cache: KvCache, *, merges_rows: bool) -> Iterator[Evaluated]:
        """Carries out the plan, call by call. The books of a call are made when the next begins.

        Until then its sequences must keep their cells.
        """
        n_threads = self._governor.look(self._clock_ns() / 1e9)
        is_pool = cache.ledger.is_unified
        failed: set[Sequence] = set()
        for pieces in calls(plan, self._model.n_batch, is_pool=is_pool, merges_rows=merges_rows):
            # A prompt may come twice, and its first row may have failed.
            if going_on := [piece for piece in pieces if piece[0] not in failed]:
                self._model.use_threads(self._n_threads(going_on[0], n_threads))
                for done in self._forward(going_on, cache):
                    yield done
                    if done.failed:
                        failed.update(sequence for sequence, _ in done.failed)

    def _n_threads(self, piece: Piece, n_threads: int) -> int:
        """Threads of a call: `n_threads`, but always as many for a deterministic sequence's row.

        Flash attention splits the sums of a row that is alone among the threads, which moves its
        last bits. Always all of them would stand still for seconds, and all others with them,
        whenever somebody else computes.
        """
        sequence, n_rows = piece
        is_fixed = sequence.sampling.deterministic and n_rows == 1
        if is_fixed and self._model.info.flash_attention:
            return -(-self._governor.n_max // 2)
        return n_threads

    def _forward(self, pieces: list[Piece], cache: KvCache) -> Iterator[Evaluated]:
        """Evaluates the next rows of each sequence and samples those that reached their end."""
        if not cache.make_room(sum(n for _, n in pieces)):
            yield Evaluated(failed=[(sequence, NO_CELLS) for sequence, _ in pieces])
            return
        began_ns = self._clock_ns()
        code = self._model.forward(*_rows(pieces))
        elapsed_ns = self._clock_ns() - began_ns
        done = Evaluated(forward_ns=elapsed_ns)
        if code != 0:
            yield from self._after_failure(pieces, cache, done, code)
            return
        if ready := [sequence for sequence, n in pieces if n == sequence.n_pending]:
            self._sample(ready, done)
        yield done
        self._learn(pieces, elapsed_ns / 1e9)
        for sequence, n_rows in pieces:
            if not cache.wrote(sequence, n_rows):
                self._meter.count("ledger_drift_total")
                cache.rewind(sequence)

    def _after_failure(
        self, pieces: list[Piece], cache: KvCache, done: Evaluated, code: int
    ) -> Iterator[Evaluated]:
        """Nobody pays for another one's failure: what failed together is tried one by one."""
        self._meter.count("forward_errors_total")
        n_before = [sequence.n_done for sequence, _ in pieces]
        for sequence, _ in pieces:
            cache.rewind(sequence)
        is_final = code == NO_CELLS or len(pieces) == 1
        if is_final:
            done.failed += [(sequence, code) for sequence, _ in pieces]
        yield done
        if is_final:
            return
        for piece, n in zip(pieces, n_before, strict=True):
            if piece[0].n_done == n:  # else it starts over, and is planned again
                yield from self._forward([piece], cache)

    def _learn(self, pieces: list[Piece], elapsed_s: float) -> None:
        meter = self._meter
        n_rows = n_prefill = 0
        for sequence, n in pieces:
            n_rows += n
            if n > 1:
                n_prefill += n
            n_again = min(n, sequence.n_evaluated - sequence.n_done)
            if n_again > 0:
                meter.count("recomputed_tokens_total", n_again)
            if n_again < n:
                sequence.n_evaluated = sequence.n_done + n
        if n_prefill:
            others_s = self._costs.decode_s if n_prefill < n_rows else 0.0
            self._costs.saw_prefill(n_prefill, max(elapsed_s / 2, elapsed_s - others_s))
            meter.count("prefill_tokens_total", n_prefill)
            meter.observe("prefill_seconds", elapsed_s)
        else:
            self._costs.saw_decode(elapsed_s)
            meter.observe("decode_seconds", elapsed_s)
        meter.count("decode_tokens_total", n_rows - n_prefill)

    def _sample(self, sequences: list[Sequence], done: Evaluated) -> None:
        """Takes a token for each sequence; they stand in the order of the output rows."""
        tokens = self._model.greedy()
        jobs = [
            (sequence.sampler, row)
            for row, sequence in enumerate(sequences)
            if sequence.sampler is not None and tokens[row] >= 0
        ]
        if jobs:
            for (_, row), token in zip(jobs, self._samplers.sample(jobs), strict=True):
                tokens[row] = token
        wanted: dict[Sequence, Wanted] = {}
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            if token < 0:
                code = NO_TOKEN if token == NO_TOKEN else BROKEN_LOGITS
                done.failed.append((sequence, code))
                continue
            done.tokens.append((sequence, token))
            n_top = sequence.sampling.top_logprobs
            if n_top is not None:
                wanted[sequence] = Wanted(row, token, n_top)
        if wanted:
            found = self._model.likelihoods(list(wanted.values()))
            done.likelihoods.update(zip(wanted, found, strict=True))


def calls(
    plan: StepPlan, n_batch: int, *, is_pool: bool, merges_rows: bool
) -> Iterator[list[Piece]]:
    """What goes into which forward. Pure.

    Decodes come first, in a call of their own unless a self-test found one call for all faster.
    Prompts gain from a common call: llama.cpp cuts it into graphs of equally long pieces with
    consecutive ids, which are never more than the prompts. For the decodes' sake, in the split
    layout, a row of each prompt that stands between two of them closes the gap. Deterministic
    sequences share with nobody.
    """
    if len(plan.decode) == 1 and not plan.prefill:
        # Most steps of most machines: there is nothing to decide.
        yield [(plan.decode[0], 1)]
        return
    decode = [(s, 1) for s in plan.decode if not s.sampling.deterministic]
    prompts = [(s, n) for s, n in plan.prefill if not s.sampling.deterministic]
    # llama.cpp cuts a batch at gaps and steps back in the ids, so the rows go by id.
    decode.sort(key=_by_kv_id)
    prompts.sort(key=_by_kv_id)
    if merges_rows and len(decode) + sum(n for _, n in prompts) <= n_batch:
        groups = [decode + prompts]
    else:
        groups = [decode, prompts] if is_pool else list(_fill_gaps(decode, prompts))
    yield from (group for group in groups if group)
    for sequence in plan.decode:
        if sequence.sampling.deterministic:
            yield [(sequence, 1)]
    for sequence, n in plan.prefill:
        if sequence.sampling.deterministic:
            yield [(sequence, n)]


def _fill_gaps(decode: list[Piece], prompts: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Adds a row of each prompt that stands between two decodes to them; both by id.

    The prompt keeps its rows, and so its whole tiles, as long as it has more of them.
    """
    if not decode:
        return decode, prompts
    low, high = decode[0][0].kv_id, decode[-1][0].kv_id
    within = [(s, n) for s, n in prompts if low < s.kv_id < high]
    filled = sorted(decode + [(s, 1) for s, _ in within], key=_by_kv_id)
    rest = [piece if piece not in within else _behind_first(*piece) for piece in prompts]
    return filled, [piece for piece in rest if piece[1]]


def _behind_first(sequence: Sequence, n_rows: int) -> Piece:
    return sequence, 0 if n_rows == 1 else min(n_rows, sequence.n_pending - 1)


def _rows(pieces: list[Piece]) -> tuple[list[int], list[int], list[int], list[bool]]:
    """(tokens, positions, ids, wants logits) of every row."""
    tokens: list[int] = []
    positions: list[int] = []
    kv_ids: list[int] = []
    outputs: list[bool] = []
    for sequence, n_rows in pieces:
        start = sequence.n_done
        if n_rows == 1:
            tokens.append(sequence.tokens[start])
            positions.append(start)
            kv_ids.append(sequence.kv_id)
            outputs.append(start + 1 == len(sequence.tokens))
            continue
        end = start + n_rows
        tokens += sequence.tokens[start:end]
        positions += range(start, end)
        kv_ids += [sequence.kv_id] * n_rows
        outputs += [False] * (n_rows - 1)
        outputs.append(end == len(sequence.tokens))
    return tokens, positions, kv_ids, outputs


def _by_kv_id(piece: Piece) -> int:
    return piece[0].kv_id
