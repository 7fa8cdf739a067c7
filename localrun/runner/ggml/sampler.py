"""Sampler chains of llama.cpp: biases, penalties, filters, a draw.

A chain knows nothing of the context whose logits it is shown: that is the model's business.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from localrun.core import SamplingParams
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.candidates import Candidates, Ids
from localrun.runner.ggml.logits import Logits

# -100 and 100 stand for never and always. Logits lie within some hundreds of each other, and a high
# temperature divides what is added to them; among several tokens with 100 the model still chooses,
# which takes the digits that a larger number would cost.
_BIAS_LIMIT, _ALWAYS, NEVER = 100.0, 1e3, -1e9


class LlamaSampler:
    """One sequence's sampler chain, in llama.cpp's own order of filters."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        n_ctx: int,
        logits: Callable[[int], Logits],
    ) -> None:
        """`logits` of an output row of the last forward."""
        self.n_vocab = n_vocab
        self._logits = logits
        self._filters = _chain()
        self.draw = (
            lib.llama_sampler_init_greedy()
            if params.temperature <= 0
            else lib.llama_sampler_init_dist(_seed(params.seed))
        )
        # A chain owns what is in it.
        self._chain = _chain()
        lib.llama_sampler_chain_add(self._chain, self._filters)
        lib.llama_sampler_chain_add(self._chain, self.draw)
        self._add_filters(params, n_vocab, n_ctx)

    def _add_filters(self, params: SamplingParams, n_vocab: int, n_ctx: int) -> None:
        if params.logit_bias:
            biases = _biases(params.logit_bias)  # copied by the sampler
            self._add(lib.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
        if params.has_penalties:
            self._add(
                lib.llama_sampler_init_penalties(
                    n_vocab,
                    params.n_lookback(n_ctx),
                    params.repeat_penalty,
                    params.frequency_penalty,
                    params.presence_penalty,
                )
            )
        if params.temperature <= 0:
            return
        if params.top_k > 0:
            self._add(lib.llama_sampler_init_top_k(params.top_k))
        if params.typical_p < 1:
            self._add(lib.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1:
            self._add(lib.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            self._add(lib.llama_sampler_init_min_p(params.min_p, 1))
        self._add(lib.llama_sampler_init_temp(params.temperature))

    def _add(self, sampler: Any) -> None:
        lib.llama_sampler_chain_add(self._filters, sampler)

    def remember(self, tokens: Sequence[int]) -> None:
        """Tells the penalties what came before."""
        for token in tokens:
            lib.llama_sampler_accept(self._chain, token)

    def sample(self, row: int) -> int:
        """The token for output `row`; the chain remembers it."""
        candidates = self.filtered(row)
        candidates.apply(self.draw)
        token, _ = candidates.selected
        self.remember([token])
        return token

    def filtered(self, row: int, ids: Ids | None = None) -> Candidates:
        """What the filters leave of all tokens of output `row`, or of `ids`: `draw` comes next."""
        candidates = Candidates(self._logits(row), ids)
        candidates.apply(self._filters)
        return candidates

    def close(self) -> None:
        """Frees the chain."""
        if self._chain is not None:
            lib.llama_sampler_free(self._chain)
            self._chain = None


def _chain() -> Any:
    return lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())


def _biases(by_token: dict[int, float]) -> Any:
    biases = (lib.llama_logit_bias * len(by_token))()
    for entry, (token, bias) in zip(biases, by_token.items(), strict=True):
        entry.token = token
        entry.bias = {_BIAS_LIMIT: _ALWAYS, -_BIAS_LIMIT: NEVER}.get(bias, bias)
    return biases


def _seed(seed: int) -> int:
    """32 bits for llama.cpp; -1 (and every negative number, as in Ollama) draws them."""
    # The largest of them would make llama.cpp draw one of its own.
    return int.from_bytes(os.urandom(4), "little") if seed < 0 else (seed & 0xFFFFFFFF) % 0xFFFFFFFF
