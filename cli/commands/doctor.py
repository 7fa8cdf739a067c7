"""`localrun doctor`: what this machine offers to models, and what is in the way.

A daemon is asked for what it sees, since it may run as another user or with other settings. Where
there is none, a runner is started that only looks; no daemon is.
"""

from dataclasses import dataclass
from pathlib import Path

from cli.accelerators import advice, seen
from cli.client import Client
from cli.context import Context
from cli.diagnosis import examine, has_gpu, text
from cli.errors import UNWELL, ApiError, CliError, DaemonUnreachable
from cli.job import Job
from cli.replies import Machine


def doctor() -> Job:
    """Show devices, memory and settings of this machine, and what is broken."""
    return run_doctor


@dataclass(frozen=True, slots=True)
class _Daemon:
    """`client` when it is one of ours; `words` about it, and `problem` if it is one."""

    words: str
    problem: str = ""
    client: Client | None = None


def run_doctor(context: Context) -> int:
    """Prints what it found; the code says whether anything is broken. Raises: BadSetting."""
    daemon = _find_daemon(context)
    machine = _ask(daemon.client) or _look(context)
    hints: list[str] = []
    if machine.gpu_backends is not None:
        hints = advice(
            seen(), machine.gpu_backends, has_gpu=has_gpu(machine), installer=_installer()
        )
    findings = examine(machine, daemon.problem, hints)
    context.emit(text(machine, daemon.words, findings))
    return UNWELL if findings.problems else 0


def _find_daemon(context: Context) -> _Daemon:
    url = context.settings.url
    try:
        client = context.connect(start=False)
        version = client.version()
    except DaemonUnreachable as error:
        if not error.reason:
            return _Daemon(f"none at {url}; commands that need one start it")
        return _Daemon("none", str(error))
    except CliError as error:
        return _Daemon("none that answers", f"the daemon at {url} refuses: {error}")
    if not version.localrun:
        found = f"Ollama {version.version} at {url}"
        return _Daemon(f"none; {found}", f"{found} is where localrun's daemon would listen")
    process = f", pid {version.pid}" if version.pid is not None else ""
    return _Daemon(f"localrun {version.localrun} at {url}{process}", client=client)


def _ask(client: Client | None) -> Machine | None:
    """What the daemon sees; None without one, or when it is too old to say."""
    if client is None:
        return None
    try:
        return client.get("/api/devices", Machine)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _look(context: Context) -> Machine:
    """What this process sees, with the settings of its environment."""
    import asyncio

    import msgspec

    from localrun.diagnosis import diagnose
    from localrun.supervisor.devices import list_devices

    settings = context.settings
    found = asyncio.run(diagnose(settings, lambda: list_devices(settings.rpc_servers)))
    return msgspec.convert(found, Machine, from_attributes=True)


def _installer() -> str:
    """The command that installs what runs here."""
    script = Path(__file__).parents[2] / "install.sh"
    # A copy in an environment of its own does not know where its checkout was.
    return f"{script} --dev" if script.exists() else "./install.sh"
