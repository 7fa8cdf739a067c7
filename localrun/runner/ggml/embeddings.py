"""A context for vectors, on weights that are loaded: in one for text, pooled outputs abort.

The pooled outputs of all sequences of a forward are there until the next one.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from localrun.memory import Need
from localrun.runner.engine.layout import EmbeddingShape
from localrun.runner.ggml.batch import Batch
from localrun.runner.ggml.binding import lib
from localrun.runner.ggml.logits import finished
from localrun.runner.ggml.threadpool import Threadpool


class LlamaEmbeddings:
    """See `model.Embeddings`."""

    def __init__(
        self,
        ctx: Any,
        weights: Any,
        shape: EmbeddingShape,
        needs: dict[str, Need],
        rest_others: Callable[[], None],
    ) -> None:
        """Owns `ctx`; `needs` are those of the weights and of it.

        Before a forward `rest_others` keeps the threads of another context from spinning.
        """
        self._ctx = ctx
        # Forwards are long, and the daemon has much to do beside them: nobody waits in a spin.
        self._threadpool = Threadpool(ctx, polls=False)
        self._rest_others = rest_others
        self.shape = shape
        self.needs = needs
        is_rank = shape.pooling == "rank"
        size = lib.llama_model_n_cls_out if is_rank else lib.llama_model_n_embd_out
        self.n_dims = int(size(weights))
        self._memory = lib.llama_get_memory(ctx)  # models that see ahead have none
        self._batch = Batch(shape.n_rows)

    def close(self) -> None:
        """Frees the context. Nothing else may be called afterwards."""
        lib.llama_free(self._ctx)
        self._threadpool.close()

    def use_threads(self, n: int) -> None:
        """Compute threads; see `Embeddings.use_threads`."""
        self._threadpool.use(n)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], ids: Sequence[int]) -> int:
        """Evaluates rows; see `Embeddings.forward`."""
        if not 0 < len(tokens) <= self.shape.n_rows:
            raise ValueError(f"{len(tokens)} rows do not fit a batch of {self.shape.n_rows}")
        if min(ids) < 0 or max(ids) >= self.shape.n_ids:
            raise ValueError(f"ids {ids} are not all below {self.shape.n_ids}")
        self._batch.fill(tokens, positions, ids, [True] * len(tokens))
        self._rest_others()
        code = int(lib.llama_decode(self._ctx, self._batch.struct))
        lib.llama_synchronize(self._ctx)  # so that whoever measures the call measures the work
        if code == 0:
            self._threadpool.has_evaluated()
        return code

    def vector(self, number: int, n_dims: int) -> bytes:
        """The pooled output of a sequence; see `Embeddings.vector`."""
        found = lib.llama_get_embeddings_seq(self._ctx, number)
        if not found:
            raise ValueError(f"the last forward had no sequence {number}")
        data = ctypes.string_at(found, self.n_dims * ctypes.sizeof(ctypes.c_float))
        return finished(data, n_dims, is_score=self.shape.pooling == "rank")

    def forget(self, number: int) -> None:
        """Frees the cells of a sequence; see `Embeddings.forget`."""
        if self._memory:
            lib.llama_memory_seq_rm(self._memory, number, -1, -1)
