"""What the daemon answers, as far as the command line reads it.

Values only. Unknown fields are ignored and missing ones have defaults, so that a newer or older
daemon, or another server of the same API, can still be read.
Source: Ollama's native API; `localrun`, `pid`, `slots`, `kv`, `queued`, `state`, `devices`
and the whole of `Machine` are ours.
"""

from datetime import datetime
from typing import Any

from msgspec import Struct, field


class Failure(Struct):
    """The body of every refusal, and the last line of a stream that failed.

    `code` is ours, and names the kind of a failure in the middle of a long operation.
    """

    error: str = ""
    code: str = ""


class Version(Struct):
    """`version` is the API level that clients of Ollama look at; `localrun` is empty elsewhere."""

    version: str = ""
    localrun: str = ""
    pid: int | None = None


class ListedModel(Struct):
    """A row of `/api/tags`; `size` is bytes, `digest` the manifest's SHA-256 in hex.

    `incomplete`: it cannot run, since weights are missing or changed.
    """

    name: str
    digest: str = ""
    size: int = 0
    modified_at: datetime | None = None
    incomplete: bool = False


class Tags(Struct):
    """The answer of `/api/tags`: every model in the store."""

    models: list[ListedModel] = field(default_factory=list)


class Slots(Struct):
    """How many sequences the model is serving, and how many it can serve at once."""

    busy: int = 0
    total: int = 0


class Kv(Struct):
    """Cells of the KV cache: one token each, for all sequences together."""

    cells: int = 0
    used: int = 0


class DevicePart(Struct):
    """What a model has on one device, in bytes: `size` is the other three together."""

    name: str
    size: int = 0
    weights: int = 0
    kv: int = 0
    compute: int = 0


class LoadedModel(Struct):
    """Sizes are bytes; `queued` counts requests without a slot.

    `state` is `loading`, `ready` or `stopping`, and empty elsewhere.
    """

    name: str
    digest: str = ""
    size: int = 0
    size_vram: int = 0
    context_length: int = 0
    expires_at: datetime | None = None
    slots: Slots | None = None
    kv: Kv | None = None
    queued: int = 0
    state: str = ""
    devices: tuple[DevicePart, ...] = ()


class Loaded(Struct):
    """The answer of `/api/ps`: every model in memory."""

    models: list[LoadedModel] = field(default_factory=list)


class Device(Struct):
    """A place for layers; sizes are bytes, free as of now. `endpoint` is its RPC server."""

    name: str
    kind: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    description: str = ""
    endpoint: str = ""


class Machine(Struct):
    """The answer of `/api/devices`; see `localrun.diagnosis.Diagnosis` for what it says."""

    devices: tuple[Device, ...] = ()
    devices_problem: str = ""
    unreachable: tuple[str, ...] = ()
    build: str = ""
    gpu_backends: tuple[str, ...] | None = None
    gpu_overhead_bytes: dict[str, int] = field(default_factory=dict)
    cpu_model: str = ""
    n_threads: int = 0
    cpu_reason: str = ""
    models_folder: str = ""
    models_problem: str = ""
    disk_free_bytes: int = 0


class Stats(Struct):
    """Counts are tokens, durations nanoseconds; zero means that the daemon did not say."""

    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_cached_count: int = 0
    prompt_dropped_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class GenerateLine(Stats):
    """One line of `/api/generate`, or its whole answer; the numbers come with `done`."""

    response: str = ""
    thinking: str = ""
    done: bool = False
    done_reason: str = ""

    @property
    def text(self) -> str:
        """The piece of the answer in this line."""
        return self.response


class ChatMessage(Struct):
    """The message of a `ChatLine`, as far as a terminal shows it."""

    content: str = ""
    thinking: str = ""


class ChatLine(Stats):
    """One line of `/api/chat`; the numbers come with `done`."""

    message: ChatMessage = field(default_factory=ChatMessage)
    done: bool = False
    done_reason: str = ""

    @property
    def text(self) -> str:
        """The piece of the answer in this line."""
        return self.message.content

    @property
    def thinking(self) -> str:
        """The piece of what the model thinks in this line."""
        return self.message.thinking


class Progress(Struct):
    """One line of a long task; `total` and `completed` are bytes."""

    status: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0


class Details(Struct):
    """Labels such as `134.52M` and `Q4_1`; empty when the daemon does not know."""

    parameter_size: str = ""
    quantization_level: str = ""


class Tensor(Struct):
    """One tensor of the GGUF file; `shape` counts elements, the fastest dimension first."""

    name: str
    type: str = ""
    shape: list[int] = field(default_factory=list)


class Shown(Struct):
    """The answer of `/api/show`; `model_info` holds the header of the GGUF file."""

    license: str = ""
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    system: str = ""
    details: Details = field(default_factory=Details)
    model_info: dict[str, Any] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    capabilities: list[str] = field(default_factory=list)
    template_origin: str = ""
    projector_info: dict[str, Any] = field(default_factory=dict)
    requires: str = ""
    problem: str = ""


class EmbedReply(Struct):
    """Of /api/embed: a vector for each text; so many tokens of them were left out."""

    embeddings: list[list[float]] = field(default_factory=list)
    prompt_dropped_count: int = 0
