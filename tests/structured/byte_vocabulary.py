"""A vocabulary whose tokens are bytes, and answers that are drawn from it without a model."""

import random
from collections.abc import Iterator

from localrun.runner.model import Matcher
from localrun.runner.structured.compiler import Compiler
from localrun.runner.structured.constraint import Constraint, json_grammar

END, OPEN, CLOSE = 256, 257, 258
_NAMES = {END: b"<end>", OPEN: b"<think>", CLOSE: b"</think>"}


class ByteVocabulary:
    """Bytes, an end, and two control tokens for the edges of thinking."""

    n_tokens = 259

    def tokens(self) -> Iterator[tuple[bytes, bool]]:
        for token in range(self.n_tokens):
            yield self.token_name(token), token > END

    def token_name(self, token: int) -> bytes:
        return bytes((token,)) if token < END else _NAMES[token]

    def token_bytes(self, token: int) -> bytes:
        return b"" if token > END else self.token_name(token)

    def is_end(self, token: int) -> bool:
        return token == END


COMPILER = Compiler(ByteVocabulary())  # type: ignore[arg-type]


def matcher(schema: str) -> Matcher:
    """Follows JSON that matches the schema."""
    return COMPILER.matcher(Constraint(json_grammar(schema)))


def allowed(one: Matcher) -> list[int]:
    """The tokens that may come next."""
    bits = int.from_bytes(one.allowed(), "little")
    return [token for token in range(bits.bit_length()) if bits >> token & 1]


def takes(one: Matcher, text: str | bytes) -> bool:
    """Whether all of the text may come, byte after byte."""
    data = text.encode() if isinstance(text, str) else text
    return all(one.take(byte) for byte in data)


def matches(schema: str, text: str) -> bool:
    """Whether the text is a whole answer."""
    one = matcher(schema)
    return takes(one, text) and (one.is_finished or one.take(END))


_PLAIN = frozenset(b"abc019 ")
_CLOSERS = frozenset((*b'"}]', END))


def drawn(one: Matcher, seed: int, *, n_free: int = 80, n_most: int = 2000) -> str | None:
    """A random answer that hurries to its end after `n_free` tokens; None if it gets to none."""
    chance = random.Random(seed)
    data = bytearray()
    for n in range(n_most):
        choice = allowed(one)
        if not choice:
            return None
        plain = [token for token in choice if token in _PLAIN]
        hurry = [token for token in choice if token in _CLOSERS]
        if n > n_free and hurry:
            choice = hurry
        elif plain and chance.random() < 0.5:
            choice = plain
        token = chance.choice(choice)
        assert one.take(token)
        if token == END:
            break
        data.append(token)
        if one.is_finished:
            break
    else:
        return None
    return data.decode()
