"""What numpy reads in a step's outputs. Pure: rows in; tokens, log-probabilities, vectors out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localrun.runner.model import Likelihoods, Wanted

Logits = NDArray[np.float32]

# JSON has no infinity, which a model gives to tokens that cannot come; OpenAI writes it so.
LEAST_LOGPROB = -9999.0


def likeliest(logits: Logits) -> list[int]:
    """The likeliest token of each row; -1 where one is NaN."""
    tokens: list[int] = logits.argmax(axis=1).tolist()
    for row, token in enumerate(tokens):
        best = logits[row, token]
        if best != best:  # a row with a NaN has its first NaN as maximum
            tokens[row] = -1
    return tokens


def likelihoods(logits: Logits, wanted: Sequence[Wanted]) -> list[Likelihoods]:
    """The log-softmax of the rows that are wanted, where it is wanted; likeliest tokens first."""
    # The copy becomes what a sum of exponentials needs: a second one would be as much again.
    rows = logits[[row for row, _, _ in wanted]]
    peaks = rows.max(axis=1)
    taken = rows[np.arange(len(wanted)), [token for _, token, _ in wanted]]
    tops = [_top(row, n_top) for row, (_, _, n_top) in zip(rows, wanted, strict=True)]
    rows -= peaks[:, None]
    np.exp(rows, out=rows)
    # Tens of thousands of tiny terms lose digits in a sum of 32 bits.
    norms = (peaks + np.log(rows.sum(axis=1, dtype=np.float64))).tolist()
    return [
        Likelihoods(
            _logprob(own, norm), tuple((token, _logprob(logit, norm)) for token, logit in top)
        )
        for own, top, norm in zip(taken.tolist(), tops, norms, strict=True)
    ]


def _top(row: NDArray[np.float32], n: int) -> list[tuple[int, float]]:
    """The `n` largest of a row, by id, in falling order; of equal ones the lower id first."""
    n = min(n, len(row))
    if n == 0:
        return []
    # Equal ones at the border would come in any order: it is drawn by value, not by place.
    border = np.partition(row, len(row) - n)[len(row) - n]
    tokens = np.flatnonzero(row >= border)
    order = np.argsort(-row[tokens], kind="stable")[:n]
    tokens = tokens[order]
    return list(zip(tokens.tolist(), row[tokens].tolist(), strict=True))


def _logprob(logit: float, norm: float) -> float:
    return min(0.0, max(LEAST_LOGPROB, logit - norm))


def finished(data: bytes, n_dims: int, *, is_score: bool) -> bytes:
    """float32 in llama.cpp's memory → a vector or a score; see `model.Embeddings.vector`."""
    numbers = np.frombuffer(data, np.float32)[: n_dims or None].astype(np.float64)
    length = float(np.sqrt(numbers @ numbers))
    if not np.isfinite(length):
        return b""
    return (numbers if is_score or not length else numbers / length).astype("<f4").tobytes()
