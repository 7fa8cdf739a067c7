"""What travels between the daemon and a runner, grouped by receiver. MessagePack through msgspec.

The daemon sends one message a frame. The runner sends one `Outbox` a frame: everything that one
forward, or one turn of its text thread, has to say about all its requests.
"""

from typing import Any

import msgspec
from msgspec import Struct

from localrun.core import Delta, Done, Overflow, Prompt, Question, Reply, SamplingParams
from localrun.memory import Device, Plan, Split
from localrun.spec import LoadSpec, RunnerInfo, RunnerStats, Verdict

# Begins the line on stderr in which a runner says why it is about to end.
LAST_WORDS = "localrun-runner: "

# Before a line on stderr that whoever runs the daemon should read.
WARNING = "localrun-runner warning: "

# ---- read by the runner


class ListDevices(Struct, frozen=True, tag="list_devices"):
    """What is there to compute on, the devices of `rpc_servers` (host:port) included.

    Answered by `DevicesListed`.
    """

    rpc_servers: tuple[str, ...] = ()


class MakePlan(Struct, frozen=True, tag="make_plan"):
    """How would `spec` be loaded now? Other models hold `held` bytes, by device name.

    Answered by `Planned` or `LoadRefused`; may come again until `Load` does.
    """

    spec: LoadSpec
    held: dict[str, int] = {}


class Load(Struct, frozen=True, tag="load"):
    """What to hold, and where; without a split the runner plans by itself.

    Answered by `Loaded` or `LoadRefused`.
    """

    spec: LoadSpec
    split: Split | None = None


class Submit(Struct, frozen=True, tag="submit"):
    """A request. `template` is a Go template, None the model's own; `schema` as in `core.Call`.

    `n_ctx` caps its window; a larger one than the context has makes the runner build a larger
    context. `client` and `scope` are those of `core.Call`.
    """

    id: int
    prompt: Prompt
    sampling: SamplingParams
    n_ctx: int
    overflow: Overflow = Overflow()
    template: str | None = None
    return_context: bool = False
    client: str = ""
    scope: str = ""
    schema: str | None = None


class Ask(Struct, frozen=True, tag="ask"):
    """A question about text; the vocabulary alone answers most. `Answered` or `Failed` follows."""

    id: int
    question: Question


class Cancel(Struct, frozen=True, tag="cancel"):
    """Nobody waits for the request any more; unknown ids are ignored."""

    id: int


class Pace(Struct, frozen=True, tag="pace"):
    """The reader of a request is too far behind, or, when not `is_paused`, no longer so.

    A paused sequence gives up its slot and its cells. Unknown ids are ignored.
    """

    id: int
    is_paused: bool


class Share(Struct, frozen=True, tag="share"):
    """The CPUs are shared: `n_active` runners have requests now, the receiver among them.

    `siblings` are the process ids of all other loaded runners. Sent to active runners only.
    """

    n_active: int
    siblings: tuple[int, ...] = ()


ToRunner = ListDevices | MakePlan | Load | Submit | Ask | Cancel | Pace | Share

# ---- read by the daemon


class Progress(Struct, frozen=True, tag="progress"):
    """A load goes on; `fraction` of the weights is in place."""

    fraction: float


class DevicesListed(Struct, frozen=True, tag="devices_listed"):
    """The devices, the CPU among them; RPC servers that did not answer; flags of the build."""

    devices: tuple[Device, ...]
    unreachable: tuple[str, ...] = ()
    build: str = ""


class Planned(Struct, frozen=True, tag="planned"):
    """How the model would be loaded now; nothing is allocated."""

    plan: Plan
    unreachable: tuple[str, ...] = ()


class Loaded(Struct, frozen=True, tag="loaded"):
    """The model is ready."""

    info: RunnerInfo


class LoadRefused(Struct, frozen=True, tag="load_refused"):
    """The model cannot be loaded; the runner ends after this."""

    problem: str


class Resized(Struct, frozen=True, tag="resized"):
    """The context was built anew around the weights: what it holds now."""

    info: RunnerInfo


class Tested(Struct, frozen=True, tag="tested"):
    """A self-test has ended; the daemon keeps the verdict for the next load of these weights."""

    verdict: Verdict


class Rendering(Struct, frozen=True, tag="rendering"):
    """The request's template runs now: its deadline starts."""

    id: int


class Rendered(Struct, frozen=True, tag="rendered"):
    """The template has come back, and its deadline ends; the text is still being counted."""

    id: int


class Waiting(Struct, frozen=True, tag="waiting"):
    """The request is rendered, has `n_prompt` tokens and waits for a slot.

    Its answer is not held to what `loosened` names: "tool: place in its schema".
    """

    id: int
    n_prompt: int
    loosened: tuple[str, ...] = ()


class Admitted(Struct, frozen=True, tag="admitted"):
    """The request has a slot and is in prefill."""

    id: int


class Progressed(Struct, frozen=True, tag="out"):
    """A piece of the answer, or its end."""

    id: int
    event: Delta | Done


class Answered(Struct, frozen=True, tag="answered"):
    """The answer to an `Ask`."""

    id: int
    reply: Reply


class Failed(Struct, frozen=True, tag="failed"):
    """The request ends with an error of `localrun.errors` (`from_fields`)."""

    id: int
    kind: str
    fields: dict[str, Any]


ToDaemon = (
    Progress
    | DevicesListed
    | Planned
    | Loaded
    | LoadRefused
    | Resized
    | Tested
    | Rendering
    | Rendered
    | Waiting
    | Admitted
    | Progressed
    | Answered
    | Failed
)


class Outbox(Struct, frozen=True):
    """One frame from a runner, in which `n_running` sequences hold a slot.

    `stats` come along now and then, and with the frame after which nothing runs.
    """

    items: tuple[ToDaemon, ...]
    n_running: int = 0
    stats: RunnerStats | None = None


# Integers in arguments and schemas have as many digits as somebody wrote; MessagePack's have 64
# bits. Larger ones travel as an extension of this type.
_LARGE_INTEGER = 1


def _extension(code: int, data: memoryview) -> int:
    if code != _LARGE_INTEGER:
        raise ValueError(f"unknown extension {code}")
    return int.from_bytes(data, "big", signed=True)


def _portable(value: Any) -> Any:
    """The value of builtins with extensions in the place of large integers."""
    match value:
        case dict():
            return {key: _portable(item) for key, item in value.items()}
        case list() | tuple():
            return [_portable(item) for item in value]
        case int() if not -(2**63) <= value < 2**64:
            n_bytes = value.bit_length() // 8 + 1
            data = value.to_bytes(n_bytes, "big", signed=True)
            return msgspec.msgpack.Ext(_LARGE_INTEGER, data)
    return value


_encoder = msgspec.msgpack.Encoder()
_to_runner = msgspec.msgpack.Decoder(ToRunner, ext_hook=_extension)
_to_daemon = msgspec.msgpack.Decoder(Outbox, ext_hook=_extension)


def encode(message: ToRunner | Outbox) -> bytes:
    """The payload of one frame."""
    try:
        return _encoder.encode(message)
    except OverflowError:
        return _encoder.encode(_portable(msgspec.to_builtins(message, builtin_types=(bytes,))))


def decode_for_runner(payload: bytes) -> ToRunner:
    """The daemon's message. Raises msgspec.DecodeError or ValidationError on foreign bytes."""
    return _to_runner.decode(payload)


def decode_for_daemon(payload: bytes) -> Outbox:
    """The runner's frame. Raises msgspec.DecodeError or ValidationError on foreign bytes."""
    return _to_daemon.decode(payload)
