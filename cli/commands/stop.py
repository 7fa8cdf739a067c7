"""`localrun stop`: takes a model out of memory, or ends the daemon."""

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from cli.client import Client
from cli.commands.serve import is_running, listens
from cli.context import Context
from cli.errors import DaemonUnreachable, Failed, Usage, explaining_missing
from cli.job import Job
from cli.replies import GenerateLine, Version
from localrun.loopback import is_loopback
from modelstore.names import ModelName

# The daemon gives running answers some seconds, and then ends its runners.
DAEMON_END_TIMEOUT_S = 15.0
_POLL_S = 0.05
# Longer than the slowest answer of a daemon that is well.
_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Name of the model, loaded or not."""

    model: str


def stop(
    model: Annotated[str | None, typer.Argument(help="Name of the model.")] = None,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="End the daemon; its answers get some seconds.")
    ] = False,
) -> Job:
    """Take a model out of memory: its answers have 30 s to end. Or end the daemon."""
    if daemon:
        if model is not None:
            raise Usage("give MODEL or --daemon, not both")
        return run_stop_daemon
    if model is None:
        raise Usage("say what to stop: a MODEL, or --daemon")
    ModelName.parse(model)
    return partial(run_stop, StopOptions(model))


def run_stop(options: StopOptions, context: Context) -> int:
    """Never starts a daemon. Raises: ApiError (404: no such model), Failed and `connect`'s."""
    with explaining_missing(options.model):
        unload(context.connect(start=False), options.model)
    return 0


def unload(client: Client, model: str) -> None:
    """Raises: ApiError, with status 404 when there is no such model."""
    client.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False}, GenerateLine)


def run_stop_daemon(context: Context) -> int:
    """Ends the daemon at the settings' address and waits until its process is gone.

    Raises: DaemonUnreachable (there is none), Usage, Failed, BadSetting.
    """
    url = context.settings.url
    version = _daemon_version(url, context.settings.api_key)
    pid = _checked_pid(version, url, context.settings.port)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it was going away already
    except PermissionError:
        raise Failed(
            f"the daemon at {url} (pid {pid}) belongs to another user; only that user may stop it"
        ) from None
    deadline = time.monotonic() + DAEMON_END_TIMEOUT_S
    while is_running(pid):
        if time.monotonic() > deadline:
            raise Failed(
                f"the daemon at {url} (pid {pid}) has not ended in {DAEMON_END_TIMEOUT_S:g} s; "
                f"`kill -9 {pid}` ends it at once"
            )
        time.sleep(_POLL_S)
    context.say(f"stopped localrun {version.localrun} at {url} (pid {pid})")
    return 0


def _daemon_version(url: str, api_key: str) -> Version:
    client = Client(url, api_key=api_key, timeout_s=_PROBE_TIMEOUT_S)
    try:
        if not is_loopback(client.host):
            raise Usage(f"{url} is not on this machine; stop the daemon there")
        version = client.version()
    except DaemonUnreachable as error:
        if error.reason:
            raise
        raise DaemonUnreachable(url, "there is nothing to stop") from error
    finally:
        client.close()
    if not version.localrun:
        raise Failed(
            f"the server at {url} is not localrun but Ollama {version.version}; stop it by its own "
            "means"
        )
    return version


def _checked_pid(version: Version, url: str, port: int) -> int:
    # Loopback may lead into a container or a tunnel, where the same number is another process.
    if version.pid is None or not listens(version.pid, port):
        raise Failed(
            f"the daemon at {url} is not a process of this machine and user; stop it where it runs"
        )
    return version.pid
