"""A scripted model behind the same seam as llama.py: exact bytes, delays, endless text, crashes.

The script is JSON in the key `localrun.script` of a GGUF file whose architecture is
`core.FAKE_ARCHITECTURE`, so that it travels through the store, the daemon and the runner like any
model. Tests use it; no weights are involved. A byte of text is a token (ids 0 to 255), piece i of
the script is token 256 + i, and END ends a generation.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import gguf
import msgspec
from msgspec import Struct

from localrun.core import LoadSpec, RunnerInfo, SamplingParams
from localrun.runner.model import LoadRefused, OnProgress

SCRIPT_KEY = "localrun.script"

_FIRST_PIECE = 256
_END = 1_000_000
_BOS = 1_000_001


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """What the model does.

    `pieces` are said one a step, then the answer ends, or starts over when `endless`; `echo`
    says the prompt's bytes instead. `load_s` passes in ten reports of progress, or none when
    `load_silent`. `step_s` and `row_s` are seconds per forward and per row of it. The process
    aborts at forward number `crash_at_forward`, or when a prompt holds `crash_on`.
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
    crash_on: bytes = b""
    crash_on_load: bool = False
    chat_template: str | None = None
    adds_bos: bool = False
    n_batch: int = 512


class FakeVocab:
    """Bytes and pieces as tokens."""

    bos_text = "<bos>"
    eos_text = "<eos>"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.chat_template = script.chat_template

    n_tokens = _BOS + 1

    def tokenize(self, text: str, *, is_start: bool = True) -> list[int]:
        """One token per UTF-8 byte, one for a leading BOS marker."""
        tokens: list[int] = []
        if text.startswith(self.bos_text):
            tokens, text = [_BOS], text.removeprefix(self.bos_text)
        elif self._script.adds_bos and is_start:
            tokens = [_BOS]
        return tokens + list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        """The byte or the piece; nothing for control tokens."""
        if token in (_END, _BOS):
            return b""
        if token < _FIRST_PIECE:
            return bytes((token,))
        return self._script.pieces[token - _FIRST_PIECE]

    def is_end(self, token: int) -> bool:
        """True for END."""
        return token == _END


class FakeSampler:
    """Takes the scripted token, whatever the parameters."""

    def __init__(self, model: "FakeModel") -> None:
        self._model = model

    def sample(self, row: int) -> int:
        """The scripted token for output `row`."""
        return self._model.next_token(row)

    def close(self) -> None:
        """Nothing to free."""


class FakeModel:
    """Plays the script and checks what the engine must never do."""

    def __init__(self, spec: LoadSpec, on_progress: OnProgress) -> None:
        self._script = script = _read_script(spec.weights_path)
        for tenth in range(10):
            time.sleep(script.load_s / 10)
            if not script.load_silent:
                on_progress((tenth + 1) / 10)
        if script.crash_on_load:
            os.abort()
        if script.refuse:
            raise LoadRefused(script.refuse)
        self.vocab = FakeVocab(script)
        self.n_batch = script.n_batch
        n_weights_bytes = os.path.getsize(spec.weights_path)
        self.info = RunnerInfo(
            n_ctx=spec.n_ctx,
            n_slots=spec.n_parallel,
            device_bytes={"CPU": n_weights_bytes},
            size_bytes=n_weights_bytes,
        )
        self._cells: dict[int, list[int]] = {}  # slot → tokens in its cells
        self._n_prompt: dict[int, int] = {}  # slot → tokens that stood there before the answer
        self._outputs: list[int] = []  # slots of the last forward's output rows
        self._n_forwards = 0

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[bool],
    ) -> int:
        """Writes the rows into their slots; see `Model.forward`."""
        if not 0 < len(tokens) <= self.n_batch:
            raise ValueError(f"{len(tokens)} rows do not fit a batch of {self.n_batch}")
        self._n_forwards += 1
        time.sleep(self._script.step_s + self._script.row_s * len(tokens))
        for token, position, slot in zip(tokens, positions, slots, strict=True):
            cells = self._cells.setdefault(slot, [])
            if position != len(cells) or not 0 <= slot < self.info.n_slots:
                raise ValueError(f"row at position {position} of slot {slot} leaves a gap")
            if position >= self.info.n_ctx:
                return 1
            cells.append(token)
        self._outputs = [slot for slot, wanted in zip(slots, outputs, strict=True) if wanted]
        for slot in self._outputs:
            self._n_prompt.setdefault(slot, len(self._cells[slot]))
        self._crash_if_due()
        return 0

    def _crash_if_due(self) -> None:
        script = self._script
        poisoned = script.crash_on and any(
            script.crash_on in bytes(token for token in cells if token < _FIRST_PIECE)
            for cells in self._cells.values()
        )
        if poisoned or self._n_forwards == script.crash_at_forward:
            os.abort()

    def greedy(self) -> list[int]:
        """The scripted token of every output row."""
        return [self.next_token(row) for row in range(len(self._outputs))]

    def next_token(self, row: int) -> int:
        """The scripted token of one output row."""
        slot = self._outputs[row]
        n_prompt = self._n_prompt[slot]
        cells = self._cells[slot]
        pieces: Sequence[int] = range(_FIRST_PIECE, _FIRST_PIECE + len(self._script.pieces))
        if self._script.echo:
            pieces = [token for token in cells[:n_prompt] if token != _BOS]
        index = len(cells) - n_prompt
        if self._script.endless and pieces:
            return pieces[index % len(pieces)]
        return pieces[index] if index < len(pieces) else _END

    def sampler(self, params: SamplingParams, prompt: Sequence[int]) -> FakeSampler:
        """A sampler without choices."""
        return FakeSampler(self)

    def free(self, slot: int) -> None:
        """Empties the slot."""
        self._cells.pop(slot, None)
        self._n_prompt.pop(slot, None)


def _read_script(path: str) -> Script:
    field: Any = gguf.GGUFReader(path).fields.get(SCRIPT_KEY)
    if field is None:
        raise LoadRefused(f"the file has no key {SCRIPT_KEY}")
    return msgspec.json.decode(field.contents(), type=Script)
