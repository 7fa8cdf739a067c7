"""Questions about text: ids of a text, text of ids, and what is to become a vector."""

from collections.abc import Callable

from localrun.core import Detokenize, EmbedTexts, Text, Tokenize, Tokens
from localrun.errors import BadRequest, Unsupported
from localrun.runner.engine.embedder import EmbedJob
from localrun.runner.engine.layout import Pooling
from localrun.runner.model import Vocab
from localrun.runner.prompt.fit import MAX_TOKEN_CHARS


class Questions:
    """Answers what the vocabulary of a model knows, and prepares what its engine has to do."""

    def __init__(
        self,
        vocab: Vocab,
        pooling: Pooling = "last",
        longest_text: Callable[[int], int] = lambda n_ctx: n_ctx,
    ) -> None:
        """`longest_text` bounds the tokens of a text that becomes a vector."""
        self._vocab = vocab
        self._is_rank = pooling == "rank"
        self._longest_text = longest_text

    def answer(self, question: Tokenize | Detokenize) -> Tokens | Text:
        """What the vocabulary says. Raises BadRequest for ids that it does not have."""
        vocab = self._vocab
        if isinstance(question, Tokenize):
            ids = tuple(vocab.tokenize(question.text, is_start=question.adds_special))
            pieces = tuple(map(vocab.token_name, ids)) if question.with_pieces else None
            return Tokens(ids, pieces)
        tokens = question.tokens
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab.n_tokens:
            raise BadRequest("tokens", "holds token ids that the model does not have")
        return Text(b"".join(map(vocab.token_name, tokens)).decode("utf-8", "replace"))

    def job(self, number: int, wanted: EmbedTexts) -> EmbedJob:
        """What the engine is to do for a request. Raises BadRequest, Unsupported."""
        if self._is_rank != (wanted.query is not None):
            raise Unsupported("", "embedding" if self._is_rank else "rerank")
        n_ctx = self._longest_text(wanted.n_ctx)
        if wanted.query is not None and len(self._all_tokens("", wanted.query)) >= n_ctx:
            problem = f"leaves no room for a document in a context length of {n_ctx}; shorten it"
            raise BadRequest("query", problem)
        if wanted.cuts and wanted.query is None:
            # What is left of a text has to be one: its first token among the model's own.
            n_ctx = max(n_ctx, 1 + len(self._vocab.whole_text("")))
        known: dict[str, int] = {}
        texts: list[list[int]] = []
        places: list[int] = []
        dropped: list[int] = []  # tokens of each text
        for place, text in enumerate(wanted.texts):
            # Equal texts have one vector, to the last bit.
            if text not in known:
                known[text] = len(texts)
                tokens, n_over = self._tokens(text, wanted, n_ctx, wanted.first + place)
                texts.append(tokens)
                dropped.append(n_over)
            places.append(known[text])
        n_dropped = sum(dropped[text] for text in places)
        return EmbedJob(number, texts, places, n_ctx, wanted.n_dims, n_dropped)

    def _tokens(
        self, text: str, wanted: EmbedTexts, n_ctx: int, place: int
    ) -> tuple[list[int], int]:
        """(the text's tokens, how many of it were left out)."""
        tokens = self._start(text, wanted.query, n_ctx)
        n_over = len(tokens) - n_ctx
        if n_over <= 0:
            return tokens, 0
        if not wanted.cuts:
            name = "input" if wanted.query is None else "documents"
            problem = f"the input length of {len(tokens)} tokens exceeds the context length of"
            raise BadRequest(f"{name}[{place}]", f"{problem} {n_ctx}; shorten it")
        # What the model wants behind a text stays there.
        end = self._all_tokens("", wanted.query)[-1:]
        n_end = 1 if end and tokens[-1:] == end else 0
        return tokens[: n_ctx - n_end] + tokens[len(tokens) - n_end :], n_over

    def _start(self, text: str, query: str | None, n_ctx: int) -> list[int]:
        """All tokens of the text, or more than `n_ctx` of them."""
        # What cannot fit need not be tokenized to its end.
        n_chars = n_ctx * MAX_TOKEN_CHARS
        while True:
            tokens = self._all_tokens(text[:n_chars], query)
            if len(tokens) > n_ctx or n_chars >= len(text):
                return tokens
            # Blanks have no tokens for some models: the words are still to come.
            n_chars *= 4

    def _all_tokens(self, text: str, query: str | None) -> list[int]:
        if query is not None:
            return self._vocab.pair(query, text)
        # A forward needs a token; an empty text of a model without special ones has none.
        return self._vocab.whole_text(text) or self._vocab.tokenize(" ")
