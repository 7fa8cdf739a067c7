"""The runner process: `python -m localrun.runner --fd N --parent PID --cpus N,…`.

The supervisor starts it.

With the name of a job in place of that it does the job and ends: see `jobs`.

    main thread    reads frames; end of file means that the daemon is gone: exit at once
    engine thread  makes plans, loads the model, then steps for ever
    prompt thread  templates and tokens
    text thread    answers; writes frames (a token that is alone, the engine thread)

Exit codes: 0 the daemon closed the socket, 3 the model was refused, 70 a bug.
This process reads no environment variables of ours and speaks no HTTP.
"""

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue

from localrun.ipc.messages import (
    WARNING,
    Ask,
    Cancel,
    ListDevices,
    Load,
    Loaded,
    LoadRefused,
    MakePlan,
    Outbox,
    Pace,
    Share,
    Submit,
)
from localrun.processors import run_on
from localrun.runner.engine.embedding_engine import EmbeddingEngine
from localrun.runner.engine.engine import Engine
from localrun.runner.engine.layout import embedding_shape, window_of
from localrun.runner.io import Channel
from localrun.runner.jobs import JOBS, run
from localrun.runner.loading import Question, answer_until_loaded
from localrun.runner.model import LoadRefused as Refused
from localrun.runner.model import Model
from localrun.runner.prompt.prepare import PromptThread
from localrun.runner.prompt.questions import Questions
from localrun.runner.text import TextMessage, TextThread
from localrun.spec import LoadSpec

EXIT_REFUSED = 3
EXIT_BUG = 70

# With Python's default of 5 ms a busy text thread adds as much to every return from a C call
# (2.2 → 7.2 ms a step measured); with this it adds 0.2 ms.
_SWITCH_INTERVAL_S = 0.0002

# Allocations between two looks of the collector: some thousand steps instead of Python's dozens.
_GC_THRESHOLD = 100_000

# Twice what `schemas.totals.MAX_LEVELS` was measured with; only what is used takes memory.
_PROMPT_STACK_BYTES = 16 << 20

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Runs until the daemon closes the socket, or to the end of a job."""
    if sys.argv[1:2] and sys.argv[1] in JOBS:
        # Without the way through the interpreter's end: a library's threads may still run.
        code = run(sys.argv[1], sys.argv[2:])
        sys.stderr.flush()
        os._exit(code)
    parser = argparse.ArgumentParser(prog="localrun-runner")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--cpus", default="")
    arguments = parser.parse_args()
    _die_with_parent(arguments.parent)
    if arguments.cpus:
        # Not those of the daemon's loop, which keeps off some for the sake of other runners.
        run_on([int(cpu) for cpu in arguments.cpus.split(",")])
    logging.basicConfig(format=f"{WARNING}%(message)s", level=logging.WARNING)
    # Ctrl-C in a terminal reaches the whole group; the daemon decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    channel = Channel(socket.socket(fileno=arguments.fd))
    _guarded(_receive, channel)
    os._exit(0)


class Inboxes:
    """One queue for each thread that the reader feeds."""

    def __init__(self) -> None:
        self.load: SimpleQueue[Question] = SimpleQueue()
        self.prompt: SimpleQueue[Submit | Ask | Cancel] = SimpleQueue()
        self.text: SimpleQueue[TextMessage] = SimpleQueue()


def _receive(channel: Channel) -> None:
    """The reader: hands on the daemon's messages until it closes the socket or dies."""
    inboxes = Inboxes()
    _start(_serve, channel, inboxes)
    for message in channel.messages():
        match message:
            case ListDevices() | MakePlan() | Load():
                inboxes.load.put(message)
            case Submit() | Ask():
                inboxes.prompt.put(message)
            case Share() | Pace():
                # On the way of what it is about: the sequences reach the engine there too.
                inboxes.text.put(message)
            case Cancel():
                # In this order: the prompt thread's `Settled` must reach the text thread later.
                inboxes.text.put(message)
                inboxes.prompt.put(message)


def _start(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=_guarded, args=(target, *arguments), daemon=True).start()


def _die_with_parent(parent_pid: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(0)


def _guarded(target: Callable[..., None], *arguments: object) -> None:
    """Runs a thread's function; any escape ends the process, since a half-dead runner hangs."""
    try:
        target(*arguments)
    except BaseException:  # noqa: BLE001 - the last line of defence of a thread
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(EXIT_BUG)


def _serve(channel: Channel, inboxes: Inboxes) -> None:
    """The engine thread: loads, starts the other two, then steps for ever."""

    def start(spec: LoadSpec, model: Model) -> tuple[LoadSpec, Model, Engine | EmbeddingEngine]:
        make = EmbeddingEngine if spec.embeds else Engine
        # The text thread comes later: it tells the engine things too.
        return spec, model, make(model, spec, lambda output: text.tell(output))

    try:
        spec, model, engine = answer_until_loaded(inboxes.load.get, channel.send, start)
    except Refused as error:
        channel.send(Outbox((LoadRefused(str(error)),)))
        os._exit(EXIT_REFUSED)
    # What is alive now stays alive: keep the collector from walking it in the middle of a step.
    # What a step makes dies with it and has no cycles, so it need not look often either.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    text = TextThread(model.vocab, inboxes.text, engine.inbox.put, channel.send)

    def window(n_ctx: int) -> int:
        # What a device has free is only asked when the present context is too small: a driver
        # takes its time, and an RPC server answers between two forwards.
        if n_ctx <= model.info.n_ctx:
            return n_ctx
        return window_of(spec, model.facts, model.free_bytes(), n_ctx)

    def longest_text(n_ctx: int) -> int:
        return embedding_shape(spec, model.facts, n_ctx).n_ctx

    questions = Questions(model.vocab, model.facts.pooling, longest_text)
    prompts = PromptThread(model.vocab, inboxes.prompt, inboxes.text.put, window, questions)
    channel.send(Outbox((Loaded(model.info),)))
    _start(text.run)
    # The engine for grammars goes down a schema by recursion: what a thread gets by itself is less
    # on some systems, and with some settings of a shell.
    threading.stack_size(_PROMPT_STACK_BYTES)
    _start(prompts.run)
    threading.stack_size(0)
    engine.run()


if __name__ == "__main__":
    main()
