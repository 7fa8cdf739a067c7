"""What the next forward will cost, learned from the last ones. Pure.

Running means of the recent past: the next step resembles the last one in everything that decides
its time (sequences, context, what else the machine does), so they follow what a model of the
hardware would have to guess.
"""

from dataclasses import dataclass

# Weight of the newest observation: a handful of steps after a change the estimate has followed.
_WEIGHT = 0.3

# Before anything was seen: slow enough that the first chunk beside running streams is small.
_ROW_S = 0.002
_SAVE_S, _RESTORE_S = 10e-6, 3e-6

# Four tokens a second is what people read; a step that decodes may take so long for the sake of
# prompts, or this many times what its decodes take, whichever is more. While a crowd waits for its
# first token, more than stream, it may take twice as long: larger chunks are cheaper by the row.
_TARGET_S, _FILLING_S = 0.25, 0.5
_STRETCH = 1.5

# So many prompts are no crowd yet: a few streams that begin together and end together shall not
# notice the long prompt that comes meanwhile.
_FEW = 4

# Fewest prompt rows, so that a prompt always goes on; and llama.cpp's attention has a faster way
# for tiles of so many rows (322 against 269 rows a second for chunks of 64 and 63).
_ROWS_MIN, _TILE = 16, 64

# A little over the target for a whole tile is still the better step, and so is one that ends a
# prompt.
_NEARLY, _ENDING = 0.75, 1.25


@dataclass(slots=True)
class CostModel:
    """Seconds: of a decode forward, of one prefill row, and of moving one token's KV."""

    decode_s: float = 0.0
    row_s: float = _ROW_S
    save_s: float = _SAVE_S
    restore_s: float = _RESTORE_S

    def saw_decode(self, seconds: float) -> None:
        """A forward of decodes took so long."""
        self.decode_s = _mean(self.decode_s, seconds)

    def saw_prefill(self, n_rows: int, seconds: float) -> None:
        """A forward of `n_rows` prompt rows took so long. A few rows say little about many."""
        weight = _WEIGHT * min(1.0, n_rows / _TILE)
        self.row_s += weight * (seconds / n_rows - self.row_s)

    def saw_save(self, n_tokens: int, seconds: float) -> None:
        """The KV of `n_tokens` was read out."""
        self.save_s = _mean(self.save_s, seconds / max(1, n_tokens))

    def saw_restore(self, n_tokens: int, seconds: float) -> None:
        """The KV of `n_tokens` was written back."""
        self.restore_s = _mean(self.restore_s, seconds / max(1, n_tokens))

    def swap_s(self, n_tokens: int) -> float:
        """Moving a sequence's KV out and back."""
        return n_tokens * (self.save_s + self.restore_s)

    def recompute_s(self, n_tokens: int) -> float:
        """Evaluating so many rows again."""
        return n_tokens * self.row_s

    def rows_beside(
        self, target_s: float | None, *, limit: int, n_prompts: int = 1, n_streams: int = 1
    ) -> tuple[int, int]:
        """Prompt rows for a step that decodes as well, and for one that ends a prompt by them.

        At most `limit`, never none.

        `target_s` bounds the step; None leaves it to what people read, what decodes take, and how
        many wait for a prompt beside how many streams.
        """
        if target_s is None:
            least_s = _FILLING_S if n_prompts > max(n_streams, _FEW) else _TARGET_S
            target_s = max(least_s, _STRETCH * self.decode_s)
        n = max(_ROWS_MIN, int((target_s - self.decode_s) / self.row_s))
        # Of the rows before they are rounded: a step that is late for two reasons is too late.
        n_ending = int(_ENDING * n)
        if _NEARLY * _TILE <= n < _TILE:
            n = _TILE
        return min(n, limit), min(max(n, n_ending), limit)


def _mean(old: float, new: float) -> float:
    return new if old == 0 else old + _WEIGHT * (new - old)
