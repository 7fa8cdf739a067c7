"""`tokenizer.json` → the vocabulary of a GGUF file: byte-level BPE, SentencePiece's BPE, WordPiece.

Owns which tokenizers are understood. A tokenizer that splits text in a way that llama.cpp has no
name for is refused: the model would run, and answer worse for no reason that anybody could see.
Source: Hugging Face `tokenizers` (the file); llama.cpp `src/llama-vocab.cpp` (names of the ways to
split, the marks of words), `convert_hf_to_gguf.py`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from gguf.constants import TokenType

from localrun.runner.convert.config import read_json
from localrun.runner.jobs import Refused

_WORD_MARK = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>")
_MAX_TOKENS = 1 << 21

# How text is split before merges apply: Hugging Face's expression → llama.cpp's name.
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen2",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
}


# What the reader of `gguf` comes to when a file holds other values than it expects.
_DAMAGED = (
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
    IndexError,
    OSError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of their ids, and how text is cut into them."""

    model: str  # llama.cpp's name: gpt2, llama, bert
    tokens: list[str]
    types: list[int]
    pre: str = "default"
    scores: list[float] | None = None
    adds_space: bool | None = None

    def add_to(self, writer: gguf.GGUFWriter, folder: Path) -> None:
        """Writes the vocabulary with its merges, special tokens and chat template.

        Raises Refused for files beside it that are damaged.
        """
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.adds_space is not None:
            writer.add_add_space_prefix(self.adds_space)
        read_json(folder / "tokenizer_config.json")
        try:
            special = gguf.SpecialVocab(
                folder, load_merges=self.model == "gpt2", n_vocab=len(self.tokens)
            )
        except _DAMAGED as error:
            raise Refused("the tokenizer's files are damaged") from error
        special.add_to_gguf(writer, quiet=True)


def read_vocabulary(folder: Path, n_embedded: int) -> Vocabulary:
    """The vocabulary of a model with `n_embedded` rows of embeddings. Raises Refused."""
    document = read_json(folder / "tokenizer.json")
    if document is None:
        raise Refused("there is no `tokenizer.json` beside the safetensors")
    model = document.get("model")
    if not isinstance(model, dict):
        raise Refused("`tokenizer.json` has no model")
    match model.get("type"):
        case "BPE" if model.get("byte_fallback") is True:
            return _sentence_piece(document, model, n_embedded)
        case "BPE":
            tokens, types = _tokens(document, model, n_embedded)
            return Vocabulary("gpt2", tokens, types, _split_name(document))
        case "WordPiece":
            return _word_piece(document, model, n_embedded)
        case kind:
            raise Refused(
                f"the tokenizer is of type `{str(kind)[:40]}`; BPE and WordPiece are supported"
            )


def _tokens(
    document: dict[str, Any], model: dict[str, Any], n_embedded: int
) -> tuple[list[str], list[int]]:
    """Texts and types by id; ids without a token, which only pad the embeddings, are unused."""
    vocab, added = model.get("vocab"), document.get("added_tokens") or []
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise Refused("the vocabulary in `tokenizer.json` is damaged")
    by_id: dict[int, tuple[str, int]] = {}
    for text, number in vocab.items():
        by_id[_id(number)] = (text, TokenType.NORMAL)
    for one in added:
        text = one.get("content") if isinstance(one, dict) else None
        if not isinstance(text, str):
            raise Refused("an added token in `tokenizer.json` is damaged")
        is_special = one.get("special") is True or _LOOKS_SPECIAL.fullmatch(text) is not None
        kind = TokenType.CONTROL if is_special else TokenType.USER_DEFINED
        by_id[_id(one.get("id"))] = (text, kind)
    if max(by_id, default=-1) >= n_embedded:
        raise Refused(
            f"the tokenizer has tokens up to id {max(by_id)}, the model embeddings for {n_embedded}"
        )
    padding = (by_id.get(n, (f"[PAD{n}]", TokenType.UNUSED)) for n in range(n_embedded))
    pairs = list(padding)
    return [text for text, _ in pairs], [int(kind) for _, kind in pairs]


def _id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_TOKENS:
        raise Refused("a token in `tokenizer.json` has an impossible id")
    return value


def _split_name(document: dict[str, Any]) -> str:
    steps = _steps(document.get("pre_tokenizer"), "pretokenizers")
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex") is not False:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits") is True:
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = steps[0].get("pattern")
        expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(expression, str) and expression in _SPLITS:
            return _SPLITS[expression]
    raise Refused(
        "the tokenizer splits text in a way that is not known; known are those of GPT-2, Llama 3, "
        "Mistral, Qwen 2 and SmolLM"
    )


def _steps(value: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer: one, or those of a sequence."""
    if not isinstance(value, dict):
        return []
    if value.get("type") == "Sequence":
        value = value.get(inner)
    steps = value if isinstance(value, list) else [value]
    return [step for step in steps if isinstance(step, dict)]


def _sentence_piece(document: dict[str, Any], model: dict[str, Any], n_embedded: int) -> Vocabulary:
    """llama.cpp merges the pair with the highest score; Hugging Face the one that is listed first.

    A list of merges comes in the order of those scores, so ranks serve as well.
    """
    tokens, types = _tokens(document, model, n_embedded)
    unknown = model.get("unk_token")
    ranks: dict[str, int] = {}
    merges = model.get("merges")
    for rank, merge in enumerate(merges if isinstance(merges, list) else []):
        pair = merge.split(" ", 1) if isinstance(merge, str) else merge
        if not isinstance(pair, list) or not all(isinstance(part, str) for part in pair):
            raise Refused("a merge in `tokenizer.json` is damaged")
        ranks.setdefault("".join(pair), rank)
    for number, text in enumerate(tokens):
        if _BYTE.fullmatch(text):
            types[number] = int(TokenType.BYTE)
        elif text == unknown:
            types[number] = int(TokenType.UNKNOWN)
    scores = [-float(ranks[text]) if text in ranks else -float(_MAX_TOKENS) for text in tokens]
    return Vocabulary("llama", tokens, types, scores=scores, adds_space=_adds_space(document))


def _adds_space(document: dict[str, Any]) -> bool:
    if any(
        step.get("type") == "Prepend" for step in _steps(document.get("normalizer"), "normalizers")
    ):
        return True
    steps = _steps(document.get("pre_tokenizer"), "pretokenizers")
    spaces = [step for step in steps if step.get("type") == "Metaspace"]
    return any(
        step.get("prepend_scheme", "always" if step.get("add_prefix_space") else "never") != "never"
        for step in spaces
    )


def _word_piece(document: dict[str, Any], model: dict[str, Any], n_embedded: int) -> Vocabulary:
    """llama.cpp marks the beginnings of words, WordPiece what continues one."""
    prefix = model.get("continuing_subword_prefix")
    if prefix not in (None, "##"):
        raise Refused("the WordPiece tokenizer marks the parts of words in an unknown way")
    tokens, types = _tokens(document, model, n_embedded)
    marked = [
        text if kind == TokenType.CONTROL else _marked(text)
        for text, kind in zip(tokens, types, strict=True)
    ]
    return Vocabulary("bert", marked, types)


def _marked(text: str) -> str:
    return text[2:] if text.startswith("##") else _WORD_MARK + text
