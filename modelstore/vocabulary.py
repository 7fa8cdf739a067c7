"""What a vocabulary gives away about its model: how turns are marked, and whether gaps are filled.

Reads one array of the header, the tokens, which takes some tenths of a second, and remembers the
little that came of it. Knows no templates.
Source: the spellings are those that llama.cpp looks for (`src/llama-vocab.cpp`) and that the
publishers of the model families use.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from modelstore.errors import StoreError
from modelstore.gguf import read_model_header
from modelstore.header import Header

_log = logging.getLogger(__name__)

_TOKENS = "tokenizer.ggml.tokens"
# The tokens after which a model that was trained for chats stops.
_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))

# Where the header itself says which tokens stand around a gap; the second spelling is older.
_FILL_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
)
_FILL_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
)

# What `Vocabulary.has` can be asked for.
TURN_MARKS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`marks` are those of `TURN_MARKS` that are tokens, `ends` the texts of tokens that end an
    answer. `fills_gaps`: there are tokens for what stands before and behind a gap, and for it."""

    marks: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    fills_gaps: bool = False

    def has(self, *marks: str) -> bool:
        """Whether all of these are tokens."""
        return self.marks.issuperset(marks)


def vocabulary_of(paths: Sequence[Path]) -> Vocabulary:
    """That of a model's files; an empty one when they cannot be read."""
    try:
        stamps = tuple((found.st_size, found.st_mtime_ns) for found in map(Path.stat, paths))
        return _read(tuple(paths), stamps) if paths else Vocabulary()
    except (StoreError, OSError) as error:
        _log.warning("a model's vocabulary cannot be read: %s", error)
        return Vocabulary()


@lru_cache(maxsize=256)  # a few hundred bytes each
def _read(paths: tuple[Path, ...], _stamps: tuple[tuple[int, int], ...]) -> Vocabulary:
    return vocabulary(read_model_header(paths, wanted={_TOKENS}))


def vocabulary(header: Header) -> Vocabulary:
    """What a header says that was read with its tokens; without them, what the other keys say."""
    tokens = header.get(_TOKENS)
    texts = tokens if isinstance(tokens, tuple) else ()
    known = frozenset(texts)
    ids = (header.get(key) for key in _END_KEYS)
    ends = {texts[i] for i in ids if isinstance(i, int) and 0 <= i < len(texts)}
    by_key = all(any(isinstance(header.get(key), int) for key in keys) for keys in _FILL_KEYS)
    by_text = any(known.issuperset(spellings) for spellings in _FILL_TEXTS)
    return Vocabulary(known.intersection(TURN_MARKS), frozenset(ends), by_key or by_text)
