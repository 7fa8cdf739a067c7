"""The runner's one-shot jobs, in the form in which the store is given them. Runs in threads."""

import sys
import tempfile

from modelstore.errors import InvalidTemplate, JobFailed, UnsupportedFormat
from modelstore.jobs import Command, run_job

JOB_COMMAND: Command = (sys.executable, "-m", "localrun.runner")

# The process starts in half a second and a template compiles in milliseconds, or never.
_TEMPLATE_LIMIT_S = 20.0


def check_template(source: str) -> None:
    """Compiles a TEMPLATE where templates run. Raises InvalidTemplate."""
    with tempfile.NamedTemporaryFile(prefix="localrun-") as file:
        file.write(source.encode("utf-8", "replace"))
        file.flush()
        arguments = ["check-template", file.name]
        try:
            for _ in run_job(
                JOB_COMMAND, "check the template", arguments, limit_s=_TEMPLATE_LIMIT_S
            ):
                pass
        except (UnsupportedFormat, JobFailed) as error:
            raise InvalidTemplate(error.problem) from error
