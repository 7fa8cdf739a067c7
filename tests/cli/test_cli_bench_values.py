"""The pure parts of `bench`: percentiles, lengths, prompts, objectives, arrivals, tables, plots."""

import json
import random
import xml.etree.ElementTree as ET
from itertools import islice

import pytest

from cli.bench.answers import Answer, Outcome, Unanswered
from cli.bench.figures import figures, percentile
from cli.bench.lengths import (
    CHAT_OUTPUT,
    CHAT_PROMPT,
    Length,
    chat_lengths,
    clipped,
    parse_lengths,
)
from cli.bench.load import poisson_arrivals_s
from cli.bench.machine import Machine, this_machine
from cli.bench.plan import Level, Plan, doubling
from cli.bench.plot import Axis, Point, Series, svg
from cli.bench.prompts import Fit, Prompter, fit
from cli.bench.report import Result, Table, as_json, duration, heading, notes, series
from cli.bench.slo import Slo, Verdict, next_level, parse_slo, sentence
from cli.bench.sse import EventReader, error_text
from cli.bench.sweep import KvUse, Measured

# ---- figures


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7], 0.99, 7),
        ([1, 2], 0.5, 1),
        ([3, 1, 2], 0.5, 2),
        (range(1, 101), 0.5, 50),
        (range(1, 101), 0.99, 99),
        (range(1, 102), 0.99, 100),
        (range(1, 17), 0.99, 16),
    ],
)
def test_percentiles_are_nearest_ranks(values: list[float], share: float, expected: float) -> None:
    shuffled = list(values)
    random.Random(1).shuffle(shuffled)
    assert percentile(shuffled, share) == expected


def answer(began: float, *times: float, n_tokens: int | None = None, n_cached: int = 0) -> Answer:
    n = len(times) if n_tokens is None else n_tokens
    return Answer(began, times, times[-1] + 0.5, n_prompt=10, n_tokens=n, n_cached=n_cached)


def test_figures_of_a_level() -> None:
    outcomes: list[Outcome] = [
        answer(0.0, 1.0, 1.5, 2.5),
        answer(1.0, 1.5, 2.5, n_tokens=5, n_cached=5),
        answer(1.0, 4.5),
        Unanswered(0.0, 9.0, "status 500"),
    ]
    found = figures(outcomes)
    assert (found.n_done, found.n_errors) == (3, 1)
    assert (found.ttft_p50_s, found.ttft_p99_s) == (1.0, 3.5)
    # (2.5 - 1) / 2 and (2.5 - 1.5) / 4; an answer of one token has none
    assert (found.tpot_p50_s, found.tpot_p99_s) == (0.25, 0.75)
    assert found.gap_max_s == 1.0
    assert (found.n_prompt, found.n_cached, found.n_output) == (30, 5, 9)
    assert found.wall_s == 5.0
    assert found.output_rate == pytest.approx(9 / 5)
    assert found.prompt_rate == pytest.approx(30 / 5)


def test_figures_of_failures_only() -> None:
    found = figures([Unanswered(0.0, 1.0, "x")])
    assert (found.n_done, found.n_errors, found.ttft_p50_s, found.output_rate) == (0, 1, None, 0)


# ---- lengths and prompts


def test_chat_lengths_have_the_published_means_and_depend_on_the_seed_alone() -> None:
    many = list(islice(chat_lengths(3), 20_000))
    assert many == list(islice(chat_lengths(3), 20_000))
    assert many[:5] != list(islice(chat_lengths(4), 5))
    assert sum(length.n_prompt for length in many) / len(many) == pytest.approx(161, rel=0.1)
    assert sum(length.n_output for length in many) / len(many) == pytest.approx(338, rel=0.1)
    assert CHAT_PROMPT.sigma > CHAT_OUTPUT.sigma


@pytest.mark.parametrize(
    ("length", "window", "expected"),
    [
        (Length(200, 100), 4096, Length(200, 100)),
        (Length(5000, 100), 4096, Length(3484, 100)),
        (Length(100, 5000), 4096, Length(100, 2048)),
        (Length(9000, 9000), 1000, Length(375, 500)),
        (Length(9, 9), 1, Length(1, 1)),
    ],
)
def test_lengths_are_clipped_to_the_window(length: Length, window: int, expected: Length) -> None:
    assert clipped(length, window) == expected


def test_a_file_of_lengths() -> None:
    text = '# prompt output\n200 100\n\n 30\t5 \n{"prompt": 7, "output": 8, "id": 1}\n'
    assert parse_lengths(text) == [Length(200, 100), Length(30, 5), Length(7, 8)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no line"),
        ("# only this", "no line"),
        ("1 2\n3", "line 2, `3`"),
        ("1 2 3", "line 1"),
        ("0 5", "line 1"),
        ('{"prompt": 1}', "line 1"),
        ('{"prompt": "a", "output": 1}', "line 1"),
    ],
)
def test_a_wrong_file_of_lengths_is_refused_with_its_line(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_lengths(text)


def test_prompts_share_no_beginning_and_keep_their_words() -> None:
    first, second = Prompter(seed=1, nonce=5), Prompter(seed=1, nonce=900)
    ours = [first.prompt(20) for _ in range(500)]
    theirs = [second.prompt(20) for _ in range(500)]
    numbers = {prompt.split(".")[0] for prompt in (*ours, *theirs)}
    assert len(numbers) == 1000
    assert [p.split(".", 1)[1] for p in ours] == [p.split(".", 1)[1] for p in theirs]
    assert ours[0].partition("\n")[0].split()[1:] != ours[1].partition("\n")[0].split()[1:]
    assert len(first.text(20).split()) == 21


def test_the_fit_finds_overhead_and_tokens_per_word() -> None:
    found = fit((40, 112), (240, 412))
    assert found == Fit(per_word=1.5, overhead=52)
    assert [found.n_words(n) for n in (10, 52, 202, 352)] == [0, 0, 100, 200]
    assert fit((40, 10), (240, 10)) == Fit()


def test_arrivals_are_seeded_and_come_at_the_rate() -> None:
    found = list(poisson_arrivals_s(20, 100, seed=1))
    assert found == list(poisson_arrivals_s(20, 100, seed=1))
    assert found != list(poisson_arrivals_s(20, 100, seed=2))
    assert found == sorted(found)
    assert 0 < found[0] < found[-1] < 100
    assert len(found) == pytest.approx(2000, rel=0.1)


# ---- levels and objectives


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_levels_double(most: int, expected: list[int]) -> None:
    assert [level.n_users for level in doubling(most)] == expected


@pytest.mark.parametrize(
    ("plan", "level", "expected"),
    [
        (Plan(), Level(1), 8),
        (Plan(), Level(16), 32),
        (Plan(n_requests=5), Level(16), 5),
        (Plan(), Level(rate=2.0), None),
        (Plan(scenario="shared-prefix"), Level(16), 16),
        (Plan(scenario="long-prompt"), Level(4), None),
    ],
)
def test_requests_of_a_level(plan: Plan, level: Level, expected: int | None) -> None:
    assert plan.requests_at(level) == expected


def test_objectives() -> None:
    slo = parse_slo("ttft_p99=2s, tpot_p99=50ms,gap_max=1m")
    assert slo.limits_s == {"ttft_p99": 2.0, "tpot_p99": 0.05, "gap_max": 60.0}
    assert str(slo) == "ttft_p99 ≤ 2s, tpot_p99 ≤ 50ms, gap_max ≤ 1m"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "``"),
        ("ttft_p99", "`ttft_p99` is not of the form"),
        ("ttft_p99=2s,", "`` is not of the form"),
        ("ttft_p95=2s", "`ttft_p95` in `ttft_p95=2s` is none of ttft_p50"),
        ("ttft_p99=2s,tpot_p99=soon", "`tpot_p99=soon`: `soon` is not a duration"),
        ("tpot_p99=50", "`tpot_p99=50` has no unit; write tpot_p99=50ms"),
        ("gap_max=-1s", "`gap_max=-1s` has to be above zero"),
        ("gap_max=0s", "above zero"),
        ("gap_max=1s,gap_max=2s", "`gap_max` is there twice"),
    ],
)
def test_wrong_objectives_are_refused_with_the_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_slo(text)


def test_what_breaks_an_objective() -> None:
    slo = Slo({"ttft_p99": 1.0, "tpot_p99": 0.5}, "")
    good = [answer(0.0, 1.0, 1.5)]
    assert slo.broken(figures(good)) == []
    assert slo.broken(figures([answer(0.0, 1.01, 1.2)])) == ["ttft_p99"]
    assert slo.broken(figures([answer(0.0, 1.0, 2.0)])) == ["tpot_p99"]
    assert slo.broken(figures([answer(0.0, 0.5)])) == []  # one token: no time per further token
    assert slo.broken(figures([*good, Unanswered(0.0, 1.0, "x")])) == ["errors"]
    assert slo.broken(figures([])) == ["errors"]


@pytest.mark.parametrize(
    ("met", "most", "expected"),
    [
        ({}, 16, 1),
        ({1: False}, 16, Verdict(0)),
        ({1: True}, 16, 2),
        ({1: True}, 1, Verdict(1, is_at_least=True)),
        ({1: True, 2: True, 4: True}, 6, 6),
        ({1: True, 2: True, 4: True, 6: True}, 6, Verdict(6, is_at_least=True)),
        ({1: True, 2: False}, 16, Verdict(1)),
        ({1: True, 2: True, 4: False}, 16, 3),
        ({1: True, 2: True, 4: False, 3: True}, 16, Verdict(3)),
        ({1: True, 2: True, 4: True, 8: False}, 16, 6),
        ({1: True, 2: True, 4: True, 8: False, 6: True}, 16, 7),
        ({1: True, 2: True, 4: True, 8: False, 6: False}, 16, 5),
        ({1: True, 2: False, 4: True}, 16, Verdict(1)),  # noise above the first bad one
    ],
)
def test_the_search(met: dict[int, bool], most: int, expected: int | Verdict) -> None:
    assert next_level(met, most) == expected


@pytest.mark.parametrize("carried", [0, 1, 2, 5, 8, 11, 31, 32])
def test_the_search_ends_at_what_the_machine_carries(carried: int) -> None:
    met: dict[int, bool] = {}
    while not isinstance(step := next_level(met, 32), Verdict):
        assert step not in met
        met[step] = step <= carried
    assert step == Verdict(carried, is_at_least=carried == 32)
    assert len(met) <= 10


def test_the_verdict_in_words() -> None:
    slo = parse_slo("ttft_p99=2s")
    who = "this machine"
    assert sentence(Verdict(11), who, "m", slo) == (
        "this machine carries 11 users of m within ttft_p99 ≤ 2s"
    )
    assert sentence(Verdict(1), who, "m", slo).startswith("this machine carries 1 user of m")
    assert sentence(Verdict(0), who, "m", slo).startswith("this machine carries fewer than 1 user")
    assert "at least 16 users" in sentence(Verdict(16, is_at_least=True), who, "m", slo)


# ---- the bytes of a response

SSE = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: {}\n\r\nb\r\n\ndata: [DON"
    b"\r\n4\r\nE]\n\n\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, len(SSE)])
def test_events_are_read_however_the_bytes_are_cut(size: int) -> None:
    reader = EventReader()
    pieces = [SSE[at : at + size] for at in range(0, len(SSE), size)]
    assert [event for piece in pieces for event in reader.feed(piece)] == [b"{}", b"[DONE]"]
    assert (reader.status, reader.is_over) == (200, True)


def test_a_refusal_is_kept() -> None:
    reader = EventReader()
    body = b'{"error": {"message": "no room"}}'
    reader.feed(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert (reader.feed(body[:5]), reader.is_over) == ([], False)
    assert (reader.feed(body[5:]), reader.is_over) == ([], True)
    assert reader.refusal() == "status 503: no room"


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = EventReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\ndata:x\r\n\r\n") == [b"x"]
    assert not reader.is_over


def test_an_error_in_a_field_of_its_own_is_an_event() -> None:
    reader = EventReader()
    event = b'error: {"message": "too long"}\n\n'
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\n" + event) == [b'{"error":{"message": "too long"}}']


@pytest.mark.parametrize("head", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 x\r\n\r\n"])
def test_what_is_not_http_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match="HTTP"):
        EventReader().feed(head)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error": "plain"}', "plain"),
        (b'{"error": {"message": "nested", "code": 5}}', "nested"),
        (b'{"detail": "other"}', '{"detail": "other"}'),
        (b" text \n", "text"),
        (b"x" * 300, "x" * 200 + "…"),
        (b"", ""),
    ],
)
def test_the_sentence_in_an_error(body: bytes, expected: str) -> None:
    assert error_text(body) == expected


# ---- what people get


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "–"),
        (0.0042, "4.2 ms"),
        (0.00996, "10 ms"),
        (0.123, "123 ms"),
        (0.9996, "1.00 s"),
        (1.234, "1.23 s"),
        (12.34, "12.3 s"),
    ],
)
def test_durations(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


def measured(target: str, n_users: int, *, ttft_s: float = 1.0, whole: bool = True) -> Measured:
    outcomes: list[Outcome] = [answer(5.0, 5.0 + ttft_s, 5.5 + ttft_s, n_cached=5)]
    kv = KvUse(n_cells=100, n_used_max=30)
    return Measured(target, Level(n_users), outcomes, kv=kv, is_whole=whole)


def result(*levels: Measured, plan: Plan | None = None) -> Result:
    machine = Machine("CPU", 2, 3 << 30, "Linux")
    return Result(plan or Plan(), machine, "0.1.0", [], levels, {})


def table(found: Result) -> list[str]:
    """The lines of a table and of what stands below it."""
    of_levels = Table(found.plan, [one.target for one in found.measured])
    rows = [of_levels.row(one) for one in found.measured]
    return [of_levels.head, *rows, *notes(found).splitlines()]


def test_the_table() -> None:
    broken = measured("m", 2, whole=False)
    broken.outcomes.append(Unanswered(5.0, 6.0, "status 500"))
    lines = table(result(measured("m", 1), broken))
    assert lines[0].split("  ")[0] == "SERVER"
    row = "m 1 1 0 1.00 s 1.00 s 500 ms 500 ms 500 ms 1.0 5 50% 30%"
    assert " ".join(lines[1].split()) == row
    assert lines[2].split()[:4] == ["m", "2*", "1", "1"]
    assert lines[3:] == ["", "* not finished", "", "m, 2: 1 failed: status 500"]


def test_further_targets_are_shown_as_ratios_to_the_first() -> None:
    levels = [measured("a", 1), measured("b", 1, ttft_s=0.5), measured("b", 2)]
    lines = table(result(*levels))
    assert lines[4] == ""
    assert lines[5].startswith("RATIO TO a")
    assert lines[-1].split() == ["b", "1", "0.50", "0.50", "1.00", "1.00", "1.00", "1.33"]


def test_the_long_prompt_has_a_column_and_its_failure_is_an_error() -> None:
    plan = Plan(scenario="long-prompt")
    good, bad = measured("a", 4), measured("b", 4)
    good.long, bad.long = answer(0.0, 2.5), Unanswered(0.0, 1.0, "too long")
    lines = table(result(good, bad, plan=plan))
    assert "LONG TTFT" in lines[0]
    assert "2.50 s" in lines[1]
    assert bad.figures.n_errors == 1
    assert lines[-1] == "b, 4: 1 failed: too long"


def test_the_json_holds_each_request_with_its_times() -> None:
    one = measured("m", 1)
    one.outcomes.append(Unanswered(6.0, 7.0, "gone"))
    document = json.loads(as_json(result(one, plan=Plan(slo=parse_slo("gap_max=1s")))))
    (level,) = document["levels"]
    assert level["requests"][0]["times_s"] == [1.0, 1.5]
    assert level["requests"][1] == {"began_s": 1.0, "ended_s": 2.0, "error": "gone"}
    assert level["kv"] == {"n_cells": 100, "n_used_max": 30}
    assert document["plan"]["slo"]["limits_s"] == {"gap_max": 1.0}
    assert document["machine"]["n_cores"] == 2


def test_this_machine_is_described_without_its_name() -> None:
    machine = this_machine()
    assert machine.cpu
    assert machine.n_cores >= 1
    assert machine.memory_bytes > 0
    assert str(Machine("CPU", 2, 3 << 30, "Linux")) == "CPU, 2 cores, 3 GiB; Linux"
    assert heading(result()).endswith("\nCPU, 2 cores, 3 GiB; Linux")


# ---- the plot


@pytest.mark.parametrize(
    ("values", "is_log", "ticks"),
    [
        ([1, 16], True, [1, 2, 4, 8, 16]),
        ([1, 4], False, [0, 1, 2, 3, 4]),
        ([0, 100], False, [0, 20, 40, 60, 80, 100]),
        ([0.01, 90.0], True, [0.01, 0.1, 1, 10]),
        ([3], False, [0, 0.5, 1, 1.5, 2, 2.5, 3]),
        ([], False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_axes(values: list[float], is_log: bool, ticks: list[float]) -> None:
    axis = Axis(values, 0, 100)
    assert axis.is_log is is_log
    assert axis.ticks() == pytest.approx(ticks)
    if values:
        assert axis.place(max(values)) == pytest.approx(100)
    assert axis.place(ticks[0]) == pytest.approx(0)


def test_the_plot_is_well_formed_and_shows_every_series() -> None:
    levels = [measured("<a> & b", n, ttft_s=n / 10) for n in (8, 1, 2)] + [measured("c", 1)]
    shown = series(result(*levels))
    assert shown[0] == Series(
        "<a> & b",
        tuple(Point(n, pytest.approx(n / 10), pytest.approx(n / 10)) for n in (1, 2, 8)),
    )
    root = ET.fromstring(svg(shown, title="m: <x>", x_label="users at once"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"m: <x>", "<a> & b", "c", "users at once", "p50", "p99"} <= set(texts)
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len(line.get("points", "").split()) for line in lines] == [3, 3, 1, 1]


def test_a_plot_of_nothing_is_well_formed() -> None:
    root = ET.fromstring(svg([Series("a", ())], title="", x_label="users"))
    assert "nothing was measured" in "".join(root.itertext())
