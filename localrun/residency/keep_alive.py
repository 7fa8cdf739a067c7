"""How long an idle model stays. Pure; times in seconds of one clock that only rises."""

from collections.abc import Iterable

from localrun.units import FOREVER


def effective_s(requested_s: float | None, current_s: float | None, default_s: float) -> float:
    """The value that holds from now on: the request's, else the loaded model's, else the setting.

    Source: Ollama, where a value sticks to the loaded model until another request brings one.
    """
    if requested_s is not None:
        return requested_s
    return default_s if current_s is None else current_s


def next_expiry_s(deadlines_s: Iterable[float]) -> float:
    """The earliest deadline, or `FOREVER`."""
    return min(deadlines_s, default=FOREVER)
