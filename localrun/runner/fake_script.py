"""What a scripted model is to do, and its tokens.

The script is JSON in the key `localrun.script` of a GGUF file whose architecture is
`spec.FAKE_ARCHITECTURE`, so that it travels through the store, the daemon and the runner like any
model. A byte of text is a token (ids 0 to 255), piece i of the script is token 256 + i, and END
ends a generation.
"""

from collections.abc import Iterator
from typing import Any

import gguf
import msgspec
from msgspec import Struct

from localrun.runner.engine.layout import Pooling
from localrun.runner.model import LoadRefused

SCRIPT_KEY = "localrun.script"

FIRST_PIECE = 256
END = 50_000
BOS = 50_001
FILL = (50_002, 50_003, 50_004)
# A byte that is said rather than read: where the answer began can be seen from the tokens alone.
ECHO = 60_000


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """What the model does.

    `pieces` are said one a step, then the answer ends, or starts over when `endless`; `echo`
    says the prompt's bytes instead. `load_s` passes in ten reports of progress, or none when
    `load_silent`. `step_s` and `row_s` are seconds per forward and per row of it. The process
    aborts at forward number `crash_at_forward`, or when a prompt holds `crash_on`; forward number
    `fail_at_forward` fails and changes nothing. A context has
    `n_cells_lost` fewer cells than was asked for. `needs_bytes` is what the model says that it
    takes (None the size of its file), `machine_bytes` what there is of memory for all models. It
    has tokens for filling gaps when it `inserts`.
    `logprobs` are those of the pieces, 0 where there is none; the likeliest tokens besides are
    the pieces that follow, each e times less likely than the one before. `pooling` and
    `is_causal` are those of vectors (`fake_embeddings`); a forward for them that has the byte
    `fail_on` fails.
    """

    pieces: tuple[bytes, ...] = ()
    echo: bool = False
    endless: bool = False
    load_s: float = 0.0
    load_silent: bool = False
    refuse: str = ""
    step_s: float = 0.0
    row_s: float = 0.0
    crash_at_forward: int = 0
    fail_at_forward: int = 0
    crash_on: bytes = b""
    crash_on_load: bool = False
    chat_template: str | None = None
    adds_bos: bool = False
    inserts: bool = False
    n_batch: int = 512
    shares_prefixes: bool = True
    n_cells_lost: int = 0
    needs_bytes: int | None = None
    machine_bytes: int = 1 << 40
    logprobs: tuple[float, ...] = ()
    pooling: Pooling = "last"
    is_causal: bool = True
    fail_on: int = -1


class FakeVocab:
    """Bytes and pieces as tokens."""

    bos = BOS
    bos_text = "<bos>"
    eos_text = "<eos>"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.chat_template = script.chat_template
        self.fill_tokens = FILL if script.inserts else None

    n_tokens = ECHO + 256

    def tokenize(
        self, text: str, *, is_start: bool = True, parses_control: bool = True
    ) -> list[int]:
        """One token per UTF-8 byte, one for a leading BOS marker."""
        tokens: list[int] = []
        if parses_control and text.startswith(self.bos_text):
            tokens, text = [BOS], text.removeprefix(self.bos_text)
        elif self._script.adds_bos and is_start:
            tokens = [BOS]
        return tokens + list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        """The byte or the piece; nothing for control tokens."""
        if END <= token < ECHO:
            return b""
        if token < FIRST_PIECE:
            return bytes((token,))
        if token >= ECHO:
            return bytes((token - ECHO,))
        return self._script.pieces[token - FIRST_PIECE]

    def whole_text(self, text: str) -> list[int]:
        """Its bytes, and one token behind them."""
        return [*text.encode(), END]

    def pair(self, query: str, text: str) -> list[int]:
        """The bytes of both, with a token between and behind them."""
        return [*query.encode(), END, *text.encode(), END]

    def control_texts(self) -> list[str]:
        """The only one that is recognised."""
        return [self.bos_text]

    def token_name(self, token: int) -> bytes:
        """As `token_bytes`, but END and BOS have names."""
        names = {END: self.eos_text, BOS: self.bos_text}
        return names[token].encode() if token in names else self.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """True for END."""
        return token == END

    def tokens(self) -> Iterator[tuple[bytes, bool]]:
        """Bytes, pieces and END; the other ids are nothing that an answer may hold."""
        for token in range(self.n_tokens):
            is_text = token < FIRST_PIECE + len(self._script.pieces)
            is_named = is_text or token in (END, BOS)
            yield self.token_name(token) if is_named else b"", token == BOS


def is_said(token: int) -> bool:
    """True for a token of an answer."""
    return FIRST_PIECE <= token < END or token >= ECHO


def read_script(path: str) -> Script:
    """The script in a GGUF file. Raises LoadRefused."""
    field: Any = gguf.GGUFReader(path).fields.get(SCRIPT_KEY)
    if field is None:
        raise LoadRefused(f"the file has no key {SCRIPT_KEY}")
    return msgspec.json.decode(field.contents(), type=Script)
