"""A model's vocabulary in llama.cpp: text ⇄ token ids. Safe beside `llama_decode`."""

import ctypes
import re
from collections.abc import Iterator
from typing import Any

from localrun.runner.ggml.binding import lib

# Attributes of tokens that are not their text.
_CONTROL_KINDS = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN

# In the order of `Vocab.fill_tokens`.
_FILL_TOKENS = (lib.llama_vocab_fim_pre, lib.llama_vocab_fim_mid, lib.llama_vocab_fim_suf)


class LlamaVocab:
    """A model's vocabulary. Thread-safe: llama.cpp only reads it."""

    def __init__(self, model: Any) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self.bos = int(lib.llama_vocab_bos(self._vocab))
        self._eos = int(lib.llama_vocab_eos(self._vocab))
        self._adds_bos = self.bos >= 0 and bool(lib.llama_vocab_get_add_bos(self._vocab))
        self.n_tokens = int(lib.llama_vocab_n_tokens(self._vocab))
        self.bos_text = self._text_of(self.bos)
        self.eos_text = self._text_of(self._eos)
        fill = [int(find(self._vocab)) for find in _FILL_TOKENS]
        self.fill_tokens = (fill[0], fill[1], fill[2]) if min(fill) >= 0 else None
        template = lib.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        pair = lib.llama_model_chat_template(model, b"rerank")
        self._pair_template = pair.decode("utf-8", "replace") if pair else None
        # Filled as tokens come up; one dictionary entry is written at most twice.
        self._bytes: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}

    def _text_of(self, token: int) -> str:
        text = lib.llama_vocab_get_text(self._vocab, token) if token >= 0 else None
        return text.decode("utf-8", "replace") if text else ""

    def tokenize(
        self, text: str, *, is_start: bool = True, parses_control: bool = True
    ) -> list[int]:
        """Ids of `text`; see `Vocab.tokenize`."""
        tokens = self._tokenize(text, parses_control=parses_control)
        if self._adds_bos and is_start and tokens[:1] != [self.bos]:
            # By ourselves: the tokenizer would add one to what begins with it as well.
            tokens.insert(0, self.bos)
        return tokens

    def _tokenize(
        self, text: str, *, adds_special: bool = False, parses_control: bool = False
    ) -> list[int]:
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        while True:
            buffer = (lib.llama_token * room)()
            n = lib.llama_tokenize(
                self._vocab, data, len(data), buffer, room, adds_special, parses_control
            )
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def whole_text(self, text: str) -> list[int]:
        """Ids of a text for a vector; see `Vocab.whole_text`."""
        return self._tokenize(text, adds_special=True)

    def pair(self, query: str, text: str) -> list[int]:
        """Ids of a query and a text; see `Vocab.pair`. Source: llama.cpp's server, /rerank."""
        if self._pair_template is not None:
            parts = re.split(r"(\{query\}|\{document\})", self._pair_template)
            texts = {"{query}": query, "{document}": text}
            return [
                token
                for part in parts
                for token in self._tokenize(texts.get(part, part), parses_control=part not in texts)
            ]
        vocab = self._vocab
        end = self._eos if self._eos >= 0 else int(lib.llama_vocab_sep(vocab))
        ends = [end] if lib.llama_vocab_get_add_eos(vocab) else []
        gap = [int(lib.llama_vocab_sep(vocab))] if lib.llama_vocab_get_add_sep(vocab) else []
        begin = [self.bos] if self._adds_bos else []
        return [*begin, *self._tokenize(query), *ends, *gap, *self._tokenize(text), *ends]

    def control_texts(self) -> list[str]:
        """How all control tokens are spelled: what the tokenizer takes for more than text."""
        return [self._text_of(token) for token in range(self.n_tokens) if self._is_control(token)]

    def _is_control(self, token: int) -> bool:
        return bool(lib.llama_vocab_get_attr(self._vocab, token) & _CONTROL_KINDS)

    def tokens(self) -> Iterator[tuple[bytes, bool]]:
        """(name, whether it is a control token) of every token, by id."""
        for token in range(self.n_tokens):
            yield self._read_piece(token, special=True), self._is_control(token)

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text; control tokens add nothing."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._read_piece(token)
        return known

    def token_name(self, token: int) -> bytes:
        """As `token_bytes`, but a control token as the vocabulary writes it."""
        return self.token_bytes(token) or self._read_piece(token, special=True)

    def _read_piece(self, token: int, *, special: bool = False) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def is_end(self, token: int) -> bool:
        """True for every end-of-generation token."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(lib.llama_vocab_is_eog(self._vocab, token))
        return known
