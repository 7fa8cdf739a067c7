"""Questions that the vocabulary alone can answer: text ⇄ token ids."""

from localrun.core import Question, Text, Tokenize, Tokens
from localrun.errors import BadRequest
from localrun.runner.model import Vocab


def answer(question: Question, vocab: Vocab) -> Tokens | Text:
    """What the vocabulary says. Raises BadRequest for ids that it does not have."""
    if isinstance(question, Tokenize):
        ids = tuple(vocab.tokenize(question.text, is_start=question.adds_special))
        pieces = tuple(map(vocab.token_name, ids)) if question.with_pieces else None
        return Tokens(ids, pieces)
    tokens = question.tokens
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab.n_tokens:
        raise BadRequest("tokens", "holds token ids that the model does not have")
    return Text(b"".join(map(vocab.token_name, tokens)).decode("utf-8", "replace"))
