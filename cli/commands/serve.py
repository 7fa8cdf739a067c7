"""`localrun serve`: the daemon in the foreground.

The only command that imports the daemon, and only when it runs.
"""

from cli.client import Client
from cli.context import Context
from cli.errors import AlreadyRunning, CliError, Failed, PortTaken, Usage
from cli.job import Job
from cli.render import table
from localrun.settings import SETTINGS, Settings

_PROBE_TIMEOUT_S = 1.5


def serve() -> Job:
    """Run the daemon in the foreground until it is told to stop (also: start)."""
    return run_serve  # no options: environment variables set everything


def settings_help() -> str:
    """The table of variables, for the end of `serve --help`."""
    rows = [(f"LOCALRUN_{row.name}", f"{row.help} [{row.default or 'none'}]") for row in SETTINGS]
    return "\b\nEnvironment variables:\n" + table(rows, indent="  ")


def run_serve(context: Context) -> int:
    """Returns when the daemon has ended. Raises: AlreadyRunning, PortTaken, Usage, Failed."""
    settings = context.settings
    from localrun.app import AddressInUse, InsecureAddress, serve

    try:
        return serve(settings)
    except AddressInUse as error:
        raise occupant(settings) from error
    except InsecureAddress as error:
        raise Usage(str(error)) from error
    except OSError as error:
        address = f"{settings.host}:{settings.port}"
        raise Failed(f"cannot listen on {address}: {error.strerror or error}") from error


def occupant(settings: Settings) -> CliError:
    """Who holds the address that we wanted, found out within two seconds."""
    client = Client(settings.url, timeout_s=_PROBE_TIMEOUT_S)
    try:
        version = client.version()
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
