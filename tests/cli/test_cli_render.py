"""Tables byte for byte; sizes, ages and rates."""

from datetime import UTC, datetime, timedelta

import pytest

from cli.render import (
    age,
    duration,
    list_table,
    processor,
    ps_table,
    size,
    span,
    stats,
)
from cli.replies import Kv, ListedModel, LoadedModel, Slots, Stats

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4


def test_list_table() -> None:
    models = [
        ListedModel("smollm2:135m", DIGEST, 98_362_432, NOW - timedelta(minutes=3)),
        ListedModel("a:latest", "f" * 64, 1_250_000_000, NOW - timedelta(days=3)),
    ]
    assert list_table(models, NOW) == (
        "NAME            ID              SIZE      MODIFIED\n"
        "smollm2:135m    0123456789ab    98 MB     3 minutes ago\n"
        "a:latest        ffffffffffff    1.2 GB    3 days ago\n"
    )


def test_empty_tables_have_a_header() -> None:
    assert list_table([], NOW) == "NAME    ID    SIZE    MODIFIED\n"
    assert ps_table([], NOW) == (
        "NAME    ID    SIZE    PROCESSOR    CONTEXT    SLOTS    KV    QUEUE    UNTIL\n"
    )


def test_ps_table() -> None:
    models = [
        LoadedModel(
            "m:latest",
            DIGEST,
            size=300_000_000,
            size_vram=100_000_000,
            context_length=4096,
            expires_at=NOW + timedelta(minutes=4, seconds=30),
            slots=Slots(busy=3, total=8),
            kv=Kv(cells=32768, used=1234),
            queued=2,
        ),
        LoadedModel("old", DIGEST, size=1000, expires_at=NOW - timedelta(seconds=1)),
    ]
    assert ps_table(models, NOW) == (
        "NAME        ID              SIZE      PROCESSOR          "
        "CONTEXT    SLOTS    KV            QUEUE    UNTIL\n"
        "m:latest    0123456789ab    300 MB    67%/33% CPU/GPU    "
        "4096       3/8      1234/32768    2        4 minutes from now\n"
        "old         0123456789ab    1 KB      100% CPU           "
        "-          -        -             0        Stopping...\n"
    )


def test_a_busy_model_is_not_said_to_stop() -> None:
    model = LoadedModel("m", expires_at=NOW - timedelta(hours=1), slots=Slots(1, 8))
    assert ps_table([model], NOW).splitlines()[1].endswith("In use")


def test_a_state_says_more_than_a_date() -> None:
    later = NOW + timedelta(hours=1)
    for state, text in (("loading", "Loading..."), ("stopping", "Stopping..."), ("ready", "now")):
        model = LoadedModel("m", expires_at=later, slots=Slots(1, 8), state=state)
        assert ps_table([model], NOW).splitlines()[1].endswith(text)


def test_a_model_whose_size_is_not_known_yet_is_on_no_processor() -> None:
    row = ps_table([LoadedModel("m", DIGEST, state="loading")], NOW).splitlines()[1].split()
    assert row == ["m", DIGEST[:12], "-", "-", "-", "-", "-", "0", "Loading..."]


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1500, "1.5 KB"),
        (999_999, "999 KB"),
        (91_999_999, "91 MB"),
        (1_000_000_000, "1 GB"),
        (1_234_567_890, "1.2 GB"),
        (25_000_000_000_000, "25 TB"),
    ],
)
def test_size(n_bytes: int, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "Less than a second"),
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "About a minute"),
        (125, "2 minutes"),
        (3600, "About an hour"),
        (3600 * 47, "47 hours"),
        (86400 * 13, "13 days"),
        (86400 * 15, "2 weeks"),
        (86400 * 61, "2 months"),
        (86400 * 800, "2 years"),
    ],
)
def test_span(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_age() -> None:
    assert age(None, NOW) == "Never"
    assert age(NOW - timedelta(minutes=5), NOW) == "5 minutes ago"
    assert age(NOW + timedelta(hours=5), NOW) == "5 hours from now"
    assert age(datetime(2318, 1, 1, tzinfo=UTC), NOW) == "Forever"
    assert age(datetime(2026, 1, 2, 3, 0, 5), NOW) == "4 minutes ago"


@pytest.mark.parametrize(
    ("vram", "text"),
    [(0, "100% CPU"), (100, "100% GPU"), (150, "Unknown"), (52, "48%/52% CPU/GPU")],
)
def test_processor(vram: int, text: str) -> None:
    assert processor(100, vram) == text


def test_stats_leave_out_what_was_not_measured() -> None:
    numbers = Stats(
        total_duration=1_234_567_890,
        prompt_eval_count=42,
        prompt_cached_count=32,
        prompt_eval_duration=100_000_000,
        eval_count=7,
        eval_duration=350_000_000,
    )
    assert stats(numbers) == (
        "total duration:       1.235s\n"
        "prompt eval count:    42 token(s)\n"
        "prompt cached count:  32 token(s)\n"
        "prompt eval duration: 100.0ms\n"
        "prompt eval rate:     100.00 tokens/s\n"
        "eval count:           7 token(s)\n"
        "eval duration:        350.0ms\n"
        "eval rate:            20.00 tokens/s\n"
    )
    assert stats(Stats()) == ""


def test_duration() -> None:
    assert [duration(n) for n in (1_500, 2_500_000, 61_000_000_000)] == ["2µs", "2.5ms", "1m1s"]
