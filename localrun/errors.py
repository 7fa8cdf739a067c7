"""The one exception tree of the daemon and its runners.

    LocalrunError
    ├── BadRequest          a field of the request is wrong; says which
    ├── Unsupported         the model cannot do what is asked
    ├── NotRemembered       the request counts on one before it
    ├── ContextOverflow     the prompt does not fit the window
    ├── WindowTooLarge      the window does not fit the memory; says which one would
    ├── TemplateFailed      the model's chat template refused the conversation
    ├── TemplateTimeout     the template ran past its limit
    ├── QueueFull           too many requests wait; says when to come back
    ├── ShuttingDown        the daemon is going away
    ├── LoadFailed          the model could not be loaded
    ├── NotEnoughMemory     the model needs more memory than there is, even alone
    ├── EngineFailed        llama.cpp could not evaluate a step
    ├── FormatFailed        an answer cannot go on in the format that was asked for
    ├── ModelStopped        somebody stopped the model, and the answer took too long to end
    └── RunnerLost          the runner process died

Classes carry fields; `str()` builds one sentence from them. Nobody decides by reading the text:
`localrun.http.errors` maps the class to a status, `cli.errors` to an exit code. Errors of the
store are a tree of their own (`modelstore.errors`), in the same tables.
Errors cross the process border as (`kind`, `fields`): see `to_fields` and `from_fields`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

# Where a request stood when its runner died; decides whether it may be tried again.
Phase = Literal["waiting", "rendering", "prefill", "decode"]


class LocalrunError(Exception):
    """Root of the tree. Subclasses are dataclasses and define `__str__`."""


@dataclass(eq=False)
class BadRequest(LocalrunError):
    """`path` is the JSON path of the field, or empty when the body as a whole is wrong."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


@dataclass(eq=False)
class Unsupported(LocalrunError):
    """`model` lacks `capability` (Ollama's words: generate, chat, tools, insert, …).

    `path` is the JSON path of the field that needs it, or empty.
    """

    model: str
    capability: str
    path: str = ""

    def __str__(self) -> str:
        return f'"{self.model}" does not support {self.capability}'


@dataclass(eq=False)
class NotRemembered(LocalrunError):
    """The field at `path` would have the server keep a conversation, or go on with one."""

    path: str

    def __str__(self) -> str:
        return (
            f"{self.path}: this server keeps no conversation between two requests; leave the "
            "field out and send all of the conversation"
        )


@dataclass(eq=False)
class ContextOverflow(LocalrunError):
    """A prompt of `n_tokens` leaves no room for an answer in a window of `n_ctx` tokens.

    `is_at_least` when the prompt was too long to be worth counting.
    """

    n_tokens: int
    n_ctx: int
    is_at_least: bool = False

    def __str__(self) -> str:
        return f"{self._problem}; shorten it, or raise num_ctx or LOCALRUN_CONTEXT_LENGTH"

    def without_options(self) -> str:
        """The sentence for whoever has no `num_ctx` to set."""
        return f"{self._problem}; shorten it, or raise LOCALRUN_CONTEXT_LENGTH"

    @property
    def _problem(self) -> str:
        at_least = "at least " if self.is_at_least else ""
        return (
            f"the prompt has {at_least}{self.n_tokens} tokens and exceeds the context length of "
            f"{self.n_ctx}"
        )


@dataclass(eq=False)
class WindowTooLarge(LocalrunError):
    """Memory cannot hold a window of `n_ctx` tokens; the largest that it can has `n_ctx_max`."""

    n_ctx: int
    n_ctx_max: int

    # Wherever the number came from, this is where a request can put a smaller one.
    path: ClassVar[str] = "options.num_ctx"

    def __str__(self) -> str:
        return f"{self.path}: {self._problem}; set num_ctx to {self.n_ctx_max} or less"

    def without_options(self) -> str:
        """The sentence for whoever has no `num_ctx` to set."""
        return f"{self._problem}; set LOCALRUN_CONTEXT_LENGTH to {self.n_ctx_max} or less"

    @property
    def _problem(self) -> str:
        return (
            f"a context window of {self.n_ctx} tokens does not fit in memory, the largest that "
            f"fits has {self.n_ctx_max}"
        )


@dataclass(eq=False)
class TemplateFailed(LocalrunError):
    """The chat template raised; `problem` is what it said."""

    problem: str

    def __str__(self) -> str:
        return f"the model's chat template refused this conversation: {self.problem}"


@dataclass(eq=False)
class TemplateTimeout(LocalrunError):
    """The template was still running after `limit_s` seconds, so its runner was ended."""

    limit_s: float

    def __str__(self) -> str:
        return f"the model's chat template did not finish within {self.limit_s:g} s"


@dataclass(eq=False)
class QueueFull(LocalrunError):
    """`limit` requests already wait; another attempt is sensible after `retry_after_s`."""

    limit: int
    retry_after_s: int

    def __str__(self) -> str:
        # The first sentence, with its two spaces, is Ollama's: programs compare it.
        return "server busy, please try again.  maximum pending requests exceeded"


class ShuttingDown(LocalrunError):
    """The daemon has been told to stop."""

    def __str__(self) -> str:
        return "the server is shutting down"


@dataclass(eq=False)
class LoadFailed(LocalrunError):
    """`problem` says why; `log_tail` holds the engine's last lines, possibly none."""

    problem: str
    log_tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        tail = "; ".join(self.log_tail)
        return f"the model could not be loaded: {self.problem}" + (f" ({tail})" if tail else "")


@dataclass(eq=False)
class NotEnoughMemory(LocalrunError):
    """A model does not fit, not even with all others gone: bytes by device name.

    `available` is what it could have at most, on the devices where it would take something.
    """

    needed: dict[str, int]
    available: dict[str, int]

    def __str__(self) -> str:
        return self._advising("num_ctx")

    def without_options(self) -> str:
        """The sentence for whoever has no `num_ctx` to set."""
        return self._advising("LOCALRUN_CONTEXT_LENGTH")

    def _advising(self, setting: str) -> str:
        sizes = ", ".join(
            f"{_size(n_bytes)} of {_memory(name)} (available: {_size(self.available.get(name, 0))})"
            for name, n_bytes in self.needed.items()
        )
        return (
            f"the model needs more memory than there is: {sizes}; use a smaller {setting}, or a "
            "model that is smaller or quantized further"
        )


def _memory(device: str) -> str:
    return "RAM" if device == "CPU" else f"{device}'s memory"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


# Not one of llama.cpp's: the forward went well, and its logits are not numbers.
BROKEN_LOGITS = -100


@dataclass(eq=False)
class EngineFailed(LocalrunError):
    """A forward of the request's rows returned `code` of `llama_decode`, or `BROKEN_LOGITS`."""

    code: int

    def __str__(self) -> str:
        if self.code == BROKEN_LOGITS:
            return "the model's output is not a number; the file may be damaged"
        return f"an error was encountered while running the model: llama_decode gave {self.code}"


# As a code of a row: nothing may follow there. Not one of llama.cpp's either.
NO_TOKEN = -101


@dataclass(eq=False)
class FormatFailed(LocalrunError):
    """An answer stands where no token may follow; `problem` says why, empty for no more than that.

    A ban on tokens that the format needs leads there, and so may a schema of great complexity.
    """

    problem: str = ""

    def __str__(self) -> str:
        why = self.problem or "every token that may come next is banned"
        return f"the answer cannot be finished in the format that was asked for: {why}"


@dataclass(eq=False)
class ModelStopped(LocalrunError):
    """Somebody stopped the model, and the answer had not ended `grace_s` seconds later."""

    model: str
    grace_s: float

    def __str__(self) -> str:
        return (
            f"model '{self.model}' was stopped; its answers had {self.grace_s:g} s to end, and "
            "this one took longer"
        )


@dataclass(eq=False)
class RunnerLost(LocalrunError):
    """The runner process ended while a request stood in `phase`."""

    phase: Phase
    problem: str

    def __str__(self) -> str:
        return (
            "model runner has unexpectedly stopped, this may be due to resource limitations "
            f"or an internal error: {self.problem}"
        )


def leaves() -> dict[str, type[LocalrunError]]:
    """Every concrete error by class name."""
    return {cls.__name__: cls for cls in LocalrunError.__subclasses__()}


def to_fields(error: LocalrunError) -> tuple[str, dict[str, Any]]:
    """(kind, fields) that `from_fields` turns back into such an error."""
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(error):
        fields = {f.name: getattr(error, f.name) for f in dataclasses.fields(error)}
    return type(error).__name__, fields


def from_fields(kind: str, fields: dict[str, Any]) -> LocalrunError:
    """The error that `to_fields` took apart; what is none becomes `RunnerLost`."""
    try:
        return leaves()[kind](**fields)
    except (KeyError, TypeError):
        return RunnerLost("decode", f"it reported an unknown error `{kind}`")
