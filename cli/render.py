"""Values → the text that people read: tables, sizes, ages, durations. Pure.

Source: Ollama's `format` package for sizes and ages, its `list`, `ps` and `run --verbose` for the
columns. Different on purpose: no line ends in spaces, and `ps` has SLOTS, KV and QUEUE.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from cli.replies import ListedModel, LoadedModel, Stats

_GAP = "    "
_HOURS_PER_DAY = 24
_FOREVER_YEARS = 20
# States in which a date says nothing yet, or nothing any more.
_STATES = {"loading": "Loading...", "stopping": "Stopping..."}


def table(rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Left-aligned columns, four spaces apart; every line ends with a newline."""
    cells = [list(row) for row in rows]
    widths = [
        max(len(row[i]) for row in cells if i < len(row)) for i in range(max(map(len, cells)))
    ]
    # Rows may be shorter than the widest one.
    lines = (_GAP.join(map(str.ljust, row, widths)) for row in cells)
    return "".join((indent + line).rstrip() + "\n" for line in lines)


def list_table(models: Iterable[ListedModel], now: datetime) -> str:
    """The table of `list`."""
    rows = [
        (
            model.name,
            model.digest[:12],
            size(model.size),
            age(model.modified_at, now),
            "weights missing or changed" if model.incomplete else "",
        )
        for model in models
    ]
    return table([("NAME", "ID", "SIZE", "MODIFIED"), *rows])


def ps_table(models: Iterable[LoadedModel], now: datetime) -> str:
    """The table of `ps`."""
    rows = [
        (
            model.name,
            model.digest[:12],
            size(model.size) if model.size else "-",
            processor(model.size, model.size_vram) if model.size else "-",
            str(model.context_length) if model.context_length else "-",
            f"{model.slots.busy}/{model.slots.total}" if model.slots else "-",
            f"{model.kv.used}/{model.kv.cells}" if model.kv and model.kv.cells else "-",
            str(model.queued),
            until(model, now),
        )
        for model in models
    ]
    header = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "SLOTS", "KV", "QUEUE", "UNTIL")
    return table([header, *rows])


def parts_table(models: Iterable[LoadedModel]) -> str:
    """Which model has how much on which device."""
    rows = [
        (model.name, part.name, *map(size, (part.size, part.weights, part.kv, part.compute)))
        for model in models
        for part in model.devices
    ]
    return table([("NAME", "DEVICE", "SIZE", "WEIGHTS", "KV", "COMPUTE"), *rows])


def size(n_bytes: int) -> str:
    """Bytes in decimal units: `91 MB`, `1.2 GB`."""
    for exponent, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        value = n_bytes / 1000**exponent
        if value >= 10:
            return f"{int(value)} {unit}"
        if value >= 1:
            return f"{int(value)} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{n_bytes} B"


def processor(size_bytes: int, vram_bytes: int) -> str:
    """How a loaded model is divided between processors."""
    if vram_bytes == 0:
        return "100% CPU"
    if vram_bytes == size_bytes:
        return "100% GPU"
    if vram_bytes > size_bytes:
        return "Unknown"
    cpu = round((size_bytes - vram_bytes) / size_bytes * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def age(moment: datetime | None, now: datetime, *, never: str = "Never") -> str:
    """A moment as seen from `now`: `3 days ago`, `4 minutes from now`, `Forever`."""
    if moment is None or moment.year <= 1:
        return never
    seconds = (now - _aware(moment)).total_seconds()
    if -seconds > _FOREVER_YEARS * 365 * _HOURS_PER_DAY * 3600:
        return "Forever"
    return f"{span(abs(seconds))} {'ago' if seconds >= 0 else 'from now'}"


def span(seconds: float) -> str:
    """A length of time in one rounded unit."""
    hours = int(seconds / 3600 + 0.5)
    days = hours // _HOURS_PER_DAY
    rows = (
        (seconds < 1, "Less than a second"),
        (seconds < 2, "1 second"),
        (seconds < 60, f"{int(seconds)} seconds"),
        (seconds < 120, "About a minute"),
        (seconds < 3600, f"{int(seconds // 60)} minutes"),
        (hours == 1, "About an hour"),
        (hours < 48, f"{hours} hours"),
        (days < 14, f"{days} days"),
        (days < 60, f"{days // 7} weeks"),
        (days < 2 * 365, f"{days // 30} months"),
    )
    return next((text for fits, text in rows if fits), f"{days // 365} years")


def until(model: LoadedModel, now: datetime) -> str:
    """When a loaded model leaves memory. One that is serving stays, whatever its date says."""
    if model.state in _STATES:
        return _STATES[model.state]
    if model.expires_at is not None and _aware(model.expires_at) <= now:
        return "In use" if model.slots and model.slots.busy else "Stopping..."
    return age(model.expires_at, now, never="-")


def stats(numbers: Stats) -> str:
    """The block of `run --verbose`; what the daemon did not measure has no line."""
    rows = [
        ("total duration:", numbers.total_duration and duration(numbers.total_duration)),
        ("load duration:", numbers.load_duration and duration(numbers.load_duration)),
        ("prompt eval count:", _tokens(numbers.prompt_eval_count)),
        ("prompt cached count:", _tokens(numbers.prompt_cached_count)),
        (
            "prompt eval duration:",
            numbers.prompt_eval_duration and duration(numbers.prompt_eval_duration),
        ),
        (
            "prompt eval rate:",
            _rate(
                numbers.prompt_eval_count - numbers.prompt_cached_count,
                numbers.prompt_eval_duration,
            ),
        ),
        ("eval count:", _tokens(numbers.eval_count)),
        ("eval duration:", numbers.eval_duration and duration(numbers.eval_duration)),
        ("eval rate:", _rate(numbers.eval_count, numbers.eval_duration)),
    ]
    return "".join(f"{label:<22}{value}\n" for label, value in rows if value)


def dropped(numbers: Stats) -> str:
    """What to tell about a prompt that the window did not hold; empty when it did."""
    n_tokens = numbers.prompt_dropped_count
    if not n_tokens:
        return ""
    return (
        f"warning: the model has not seen all of this: about {n_tokens} tokens did not fit its "
        "context window and were left out; a larger `num_ctx` helps"
    )


def duration(nanoseconds: int) -> str:
    """`1.234s`, `850.2ms`, `2m5s`."""
    seconds = nanoseconds / 1e9
    if seconds >= 60:
        minutes, rest = divmod(int(seconds + 0.5), 60)
        return f"{minutes}m{rest}s"
    if seconds >= 1:
        return f"{seconds:.3f}s"
    return f"{nanoseconds / 1e6:.1f}ms" if nanoseconds >= 1e6 else f"{nanoseconds / 1e3:.0f}µs"


def _tokens(number: int) -> str:
    return f"{number} token(s)" if number else ""


def _rate(tokens: int, nanoseconds: int) -> str:
    return f"{tokens / nanoseconds * 1e9:.2f} tokens/s" if tokens > 0 and nanoseconds else ""


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
