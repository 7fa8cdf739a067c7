"""`localrun serve`: the daemon in the foreground.

The only command that imports the daemon, and only when it runs. Also owns every look at the
processes of this machine.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.client import Client
from cli.context import Context
from cli.errors import AlreadyRunning, ApiError, CliError, Failed, PortTaken, Usage
from cli.job import Job
from cli.render import table
from localrun.settings import SETTINGS, BadSetting, Settings, models_folder
from modelstore.errors import StoreNotWritable

_PROBE_TIMEOUT_S = 1.5


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """`log_file` None logs to standard error. Environment variables set everything else."""

    log_file: Path | None = None


def serve(
    log_file: Annotated[
        Path | None, typer.Option("--log-file", help="Log into this file, which is rotated.")
    ] = None,
) -> Job:
    """Run the daemon in the foreground (also: start).

    Ctrl-C ends it, and so does `localrun stop --daemon`, also when it runs in the background.
    """
    return partial(run_serve, ServeOptions(log_file))


def settings_help() -> str:
    """The table of variables, for the end of `serve --help`."""
    rows = [(f"LOCALRUN_{row.name}", f"{row.help} [{row.default or 'none'}]") for row in SETTINGS]
    return "\b\nEnvironment variables:\n" + table(rows, indent="  ")


def run_serve(options: ServeOptions, context: Context) -> int:
    """Returns when the daemon has ended.

    Raises: AlreadyRunning, PortTaken, Usage, BadSetting, Failed.
    """
    settings = context.settings
    _check_log(options.log_file)
    from localrun.app import serve
    from localrun.server import AddressInUse, InsecureAddress

    try:
        return serve(settings, options.log_file)
    except StoreNotWritable as error:
        raise BadSetting(
            "LOCALRUN_MODELS",
            f"user {error.user} cannot keep models in {models_folder(settings)}: "
            f"{error.problem}; name another folder",
        ) from error
    except AddressInUse as error:
        raise occupant(settings) from error
    except InsecureAddress as error:
        raise Usage(str(error)) from error
    except OSError as error:
        address = f"{settings.host}:{settings.port}"
        raise Failed(f"cannot listen on {address}: {error.strerror or error}") from error


def occupant(settings: Settings) -> CliError:
    """Who holds the address that we wanted, found out within two seconds."""
    client = Client(settings.url, api_key=settings.api_key, timeout_s=_PROBE_TIMEOUT_S)
    try:
        version = client.version()
    except ApiError as error:
        who = "a server with another API key" if error.status == 401 else "another program"
        return PortTaken(settings.url, who)
    except CliError:
        return PortTaken(settings.url, "another program")
    finally:
        client.close()
    if version.localrun:
        pid = version.pid if version.pid is not None else _listener(settings.port)
        return AlreadyRunning(version.localrun, settings.url, pid)
    if version.version:
        return PortTaken(settings.url, f"Ollama {version.version}")
    return PortTaken(settings.url, "another program")


def _check_log(path: Path | None) -> None:
    # Here, because later it could not be told from an address that cannot be used.
    if path is None:
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise Usage(f"--log-file: `{path}` cannot be written: {error.strerror}") from error


def listens(pid: int, port: int) -> bool:
    """True when `pid` is a process of this machine, open to our eyes, that listens on `port`."""
    import psutil

    try:
        sockets = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, ValueError):  # no such process, or one of another user
        return False
    return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets)


def is_running(pid: int) -> bool:
    """False once the process has ended, even when its parent has not noticed yet."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _listener(port: int) -> int | None:
    # Only root may ask macOS for other processes' sockets; then the message does without the pid.
    import psutil

    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    pids = [
        s.pid
        for s in sockets
        if s.status == psutil.CONN_LISTEN and s.laddr and s.laddr.port == port
    ]
    return pids[0] if pids else None
