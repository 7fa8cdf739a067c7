"""What a transfer's line on a terminal says: share, bar, sizes, rate and time left. Pure.

Source: Ollama's bars (the percentage in three columns, a rate over the last ten seconds, no rate
and no time once it is complete).
"""

from collections import deque

from cli.render import size

_WINDOW_S = 10.0  # short enough to follow a change, long enough not to jump
_SAMPLE_S = 1.0
_MAX_BAR = 40
_LONGEST_S = 99 * 3600


class Rate:
    """Bytes a second over the last seconds, from a counter that is looked at now and then."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, completed: int) -> None:
        """The counter stood at `completed` bytes at `now_s`."""
        samples = self._samples
        if samples and now_s - samples[-1][0] < _SAMPLE_S:
            return
        samples.append((now_s, completed))
        while now_s - samples[0][0] > _WINDOW_S:
            samples.popleft()

    def bytes_per_s(self, now_s: float, completed: int) -> float:
        """Zero while nothing can be said."""
        if not self._samples or now_s <= self._samples[0][0]:
            return 0.0
        began_s, began = self._samples[0]
        return max(0.0, (completed - began) / (now_s - began_s))


def bar_line(
    label: str, completed: int, total: int, bytes_per_s: float = 0.0, *, width: int = 80
) -> str:
    """One line of at most `width` characters; the bar takes what the words leave."""
    share = completed * 100 // total if total else 100
    head = f"{label}: {share:3d}%"
    if completed >= total:
        tail = size(total)
    else:
        tail = f"{size(completed)}/{size(total)}"
        if bytes_per_s > 0:
            left_s = (total - completed) / bytes_per_s
            tail += f"  {size(int(bytes_per_s))}/s  {time_left(left_s)}"
    n_bar = min(_MAX_BAR, width - len(head) - len(tail) - 4)
    if n_bar < 5:
        return f"{head} {tail}"[:width]
    n_full = n_bar * share // 100
    return f"{head} ▕{'█' * n_full}{' ' * (n_bar - n_full)}▏ {tail}"


def time_left(seconds: float) -> str:
    """At most two units: `5s`, `2m3s`, `1h4m`, `99h+`."""
    if seconds > _LONGEST_S:
        return "99h+"
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"
