"""`localrun --version`: our version, and the daemon's where it differs. Never starts one."""

from cli.client import Client
from cli.context import Context
from cli.errors import CliError
from localrun import __version__
from localrun.settings import BadSetting

_PROBE_TIMEOUT_S = 0.3


def run_version(context: Context) -> int:
    """Prints our version and waits 0.3 s for a daemon's; the exit code is always 0."""
    context.say(f"localrun {__version__}")
    try:
        settings = context.settings
    except BadSetting as error:
        context.note(f"Warning: {error}")
        return 0
    url = settings.url
    client = Client(url, api_key=settings.api_key, timeout_s=_PROBE_TIMEOUT_S)
    try:
        version = client.version()
    except CliError:
        return 0
    finally:
        client.close()
    if not version.localrun:
        context.say(f"the server at {url} is not localrun but Ollama {version.version}")
    elif version.localrun != __version__:
        context.say(f"the daemon at {url} is localrun {version.localrun}")
    return 0
