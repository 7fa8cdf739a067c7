"""The seam between the engine and what computes: `llama.py` and, scripted, `fake.py`.

`Vocab` may be used from any thread. Everything of `Model` belongs to the engine thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from localrun.core import SamplingParams
from localrun.memory import Need, Split
from localrun.runner.engine.layout import EmbeddingShape, ModelFacts, Shape
from localrun.spec import RunnerInfo

# Called with the part of the weights that is in place, 0 to 1.
OnProgress = Callable[[float], None]


# A sequence's KV as bytes.
State = bytes | memoryview


class LoadRefused(Exception):
    """The weights cannot be loaded; the text says why, for the user."""


class NoMemory(LoadRefused):
    """There was no memory for the model after all; less of it on the GPUs may do."""


@dataclass(frozen=True, slots=True)
class Berth:
    """Where a model will lie, with which first context, and what was measured of that.

    `needs` are by device, `cell_bytes` those of a token in the KV cache on all of them.
    """

    split: Split
    needs: dict[str, Need]
    shape: Shape | EmbeddingShape
    cell_bytes: int


class Likelihoods(NamedTuple):
    """Log-probabilities at one place: of the token that was taken, and the likeliest, by id."""

    taken: float
    top: tuple[tuple[int, float], ...]


class Wanted(NamedTuple):
    """Asks for the log-probability of `token` in output `row`, and of the `n_top` likeliest."""

    row: int
    token: int
    n_top: int


class Vocab(Protocol):
    """Text ⇄ token ids of one model. Thread-safe."""

    chat_template: str | None
    bos: int  # -1 where there is none
    bos_text: str
    eos_text: str
    # What stands before the prefix, before the gap (at the end), and before the suffix.
    fill_tokens: tuple[int, int, int] | None

    @property
    def n_tokens(self) -> int:
        """Ids run from 0 to this, exclusive."""
        ...

    def tokenize(
        self, text: str, *, is_start: bool = True, parses_control: bool = True
    ) -> list[int]:
        """Ids of `text`, without an EOS at the end.

        At the start of a prompt with a BOS in front if the model wants one and `text` does not
        spell it. What is spelled like a control token is one, unless `parses_control` is off.
        """
        ...

    def whole_text(self, text: str) -> list[int]:
        """Ids of a text for a vector: with what the model wants before and behind one.

        What is spelled like a control token is not one.
        """
        ...

    def pair(self, query: str, text: str) -> list[int]:
        """Ids of a query and what may answer it, as models that rank have been trained on them."""
        ...

    def control_texts(self) -> list[str]:
        """How all control tokens are spelled. Takes a while."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text; empty for control tokens. May split a character."""
        ...

    def token_name(self, token: int) -> bytes:
        """As `token_bytes`, but a control token as the vocabulary writes it."""
        ...

    def is_end(self, token: int) -> bool:
        """True for every end-of-generation token."""
        ...

    def tokens(self) -> Iterator[tuple[bytes, bool]]:
        """(name, whether it is a control token) of every token, by id. Takes a while."""
        ...


class Matcher(Protocol):
    """Follows one answer, token by token, through the language that it has to be of.

    Belongs to whoever holds the sequence; one thread at a time.
    """

    def take(self, token: int) -> bool:
        """Goes on by `token` if it may come next, an end-of-generation token included.

        Else nothing changes.
        """
        ...

    def allowed(self) -> bytes:
        """A bit for each token that may come next, from the lowest bit of the first byte on.

        None is set when there is a `problem`.
        """
        ...

    @property
    def is_finished(self) -> bool:
        """True when nothing may follow."""
        ...

    @property
    def problem(self) -> str:
        """Why it cannot go on, for the client; empty unless it has given up."""
        ...


class Sampler(Protocol):
    """The sampler chain of one sequence."""

    def sample(self, row: int) -> int:
        """The token for output `row` of the last forward; the chain remembers it.

        `errors.NO_TOKEN` when the sequence's matcher allows none.
        """
        ...

    def close(self) -> None:
        """Frees the chain. The sampler must not be used afterwards."""
        ...


class Embeddings(Protocol):
    """A context for vectors. `ids` are numbers of texts within it.

    Engine thread only, but for `forward`: any thread may evaluate while nobody else asks for more.
    """

    shape: EmbeddingShape

    @property
    def n_dims(self) -> int:
        """Numbers of a vector."""
        ...

    def use_threads(self, n: int) -> None:
        """Compute threads of the forwards from now on."""
        ...

    def forward(self, tokens: Sequence[int], positions: Sequence[int], ids: Sequence[int]) -> int:
        """Evaluates equally many tokens, positions and ids; returns llama.cpp's code, 0 for done.

        Raises ValueError for rows that would abort the process.
        """
        ...

    def vector(self, number: int, n_dims: int) -> bytes:
        """What the last forward made of the text with this id, of all its tokens.

        float32, little-endian: the first `n_dims` numbers, all when 0 or more, at length 1; or a
        score. Empty when they are no numbers.
        """
        ...

    def forget(self, number: int) -> None:
        """The id is free for another text."""
        ...


class Model(Protocol):
    """Weights, and one context at a time around them. Engine thread only.

    `kv_id` is llama.cpp's sequence id: whose cells a row reads and writes.
    """

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary; this part may be used from any thread."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """What the weights demand of a context."""
        ...

    @property
    def host_tier_bytes(self) -> int:
        """The most that KV outside the context may take."""
        ...

    @property
    def first_shape(self) -> Shape | None:
        """The context that was planned; None where nothing was."""
        ...

    def free_bytes(self) -> int:
        """Memory that a KV cache could have: what is free, and what the present one takes.

        Where a cache is spread over several devices, all of them together as far as the fullest
        allows.
        """
        ...

    def open(self, shape: Shape) -> None:
        """Makes a context in place of the present one, whose cells are lost.

        Raises LoadRefused without one: then there is none until the next `open`.
        """
        ...

    def embeddings(self, n_ctx: int) -> Embeddings:
        """The context for vectors of texts of `n_ctx` tokens; the same while it is large enough.

        It stands beside the one for text, if there is any. Raises LoadRefused.
        """
        ...

    def side_embeddings(self) -> Embeddings | None:
        """Another one beside that, of `side_shape`, so that two forwards can run at a time.

        Always the same; None where it does not pay or has no room.
        """
        ...

    @property
    def info(self) -> RunnerInfo:
        """What was really allocated for weights and contexts."""
        ...

    @property
    def n_batch(self) -> int:
        """Rows that one forward takes at most."""
        ...

    def use_threads(self, n: int) -> None:
        """Compute threads of the forwards from now on."""
        ...

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        kv_ids: Sequence[int],
        outputs: Sequence[bool],
    ) -> int:
        """Evaluates rows: equally long sequences of token, position, kv id, and "give logits".

        Returns llama.cpp's code: 0 done, 1 no cells free (nothing changed), anything else an
        error. Output rows are numbered from 0 in the order of the rows that asked for one.
        Raises ValueError for rows that would abort the process.
        """
        ...

    def greedy(self) -> list[int]:
        """The likeliest token of every output row of the last forward; -1 where one is NaN."""
        ...

    def likelihoods(self, wanted: Sequence[Wanted]) -> list[Likelihoods]:
        """What the last forward gave, before any sampling; rows without a NaN only."""
        ...

    def sampler(
        self, params: SamplingParams, prompt: Sequence[int], matcher: Matcher | None = None
    ) -> Sampler:
        """A chain for one sequence; penalties look back into `prompt` too.

        With a `matcher` it takes what that allows, and tells it what it has taken.
        """
        ...

    def n_positions(self, kv_id: int) -> int:
        """Tokens of the sequence in the cells."""
        ...

    def trim(self, kv_id: int, n: int) -> bool:
        """Keeps the first `n` tokens, 0 none; False when the model cannot cut there."""
        ...

    def copy(self, source: int, target: int, n: int) -> None:
        """The empty `target` shares the first `n` cells of `source`. Unified layout only."""
        ...

    def state_bytes(self, kv_id: int) -> int:
        """Size of what `save` would return."""
        ...

    def save(self, kv_id: int) -> State:
        """The sequence's KV, for `restore` in a context of the same kind."""
        ...

    def restore(self, kv_id: int, state: State) -> bool:
        """Fills the empty sequence; False, and nothing changed, where the state does not fit."""
        ...
