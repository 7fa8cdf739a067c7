"""`pull`, and `run` of a model that is not here: what is sent, shown and said."""

import threading

import pytest
from cli_stub import Reply, Shell, Stream, Stub, generated

from cli.bars import Rate, bar_line, time_left
from cli.commands import pull as command
from cli.progress import TransferLines

DIGEST = "sha256:" + "a" * 64
STEPS = [
    {"status": "pulling manifest"},
    *(
        {"status": "pulling aaa", "digest": DIGEST, "total": 1000, "completed": done}
        for done in (10, 90, 110, 150, 1000, 1000)
    ),
    {"status": "verifying sha256 digest"},
    {"status": "success"},
]


def test_a_log_gets_every_step_once_and_every_tenth(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/pull", Reply(lines=STEPS))
    result = shell("pull", "m", "--insecure")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines() == [
        "pulling manifest",
        "pulling aaa: 0%",
        "pulling aaa: 10%",
        "pulling aaa: 100%",
        "verifying sha256 digest",
        "success",
    ]
    (request,) = stub.asked("/api/pull")
    assert request.json == {"model": "m", "insecure": True, "stream": True}


def test_a_terminal_gets_a_bar_for_each_layer(stub: Stub, shell: Shell) -> None:
    stub.on("POST", "/api/pull", Reply(lines=STEPS))
    shown = shell("pull", "m", is_terminal=True).err
    assert "pulling aaa:  15%" in shown
    assert "150 B/1 KB" in shown
    last = [line.rpartition("\x1b[K")[2] for line in shown.split("\n")]
    assert last[0] == "pulling manifest"
    assert last[1].startswith("pulling aaa: 100% ▕████")
    assert last[2:] == ["verifying sha256 digest", "success", ""]


@pytest.mark.parametrize("name", ["a//b", "https://u:secret@host/x.gguf", "gpt-oss:20b-cloud"])
def test_a_name_that_is_none_goes_nowhere(stub: Stub, shell: Shell, name: str) -> None:
    result = shell("pull", name)
    assert result.code == 2
    assert "secret" not in result.err
    assert stub.requests == []


def test_a_failure_in_the_middle_is_the_last_line(stub: Stub, shell: Shell) -> None:
    refusal = {"error": "pull model manifest: file does not exist: x not found"}
    stub.on("POST", "/api/pull", Reply(lines=[STEPS[0], refusal]))
    result = shell("pull", "m")
    assert result.code == 1
    assert result.err == f"pulling manifest\nError: {refusal['error']}\n"


@pytest.mark.parametrize("command", ["pull", "push"])
def test_a_model_that_is_not_there_has_its_own_code(stub: Stub, shell: Shell, command: str) -> None:
    refusal = {"error": "there is none", "code": "model_not_found"}
    stub.on("POST", f"/api/{command}", Reply(lines=[STEPS[0], refusal]))
    assert shell(command, "m").code == 4


def test_ctrl_c_says_that_the_pull_can_go_on(
    stub: Stub, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.TransferLines, "show", interrupted)
    gate = threading.Event()
    stub.on("POST", "/api/pull", Reply(lines=STEPS, gate=gate))
    result = shell("pull", "m")
    gate.set()
    assert result.code == 130
    assert "`localrun pull m`" in result.err
    assert stub.gone.wait(30)


def test_run_pulls_a_model_that_is_not_here(stub: Stub, shell: Shell) -> None:
    missing = Reply(404, {"error": "model 'm' not found"})
    stub.on("POST", "/api/generate", missing, Reply(lines=generated("hello")))
    stub.on("POST", "/api/pull", Reply(lines=STEPS))
    result = shell("run", "m", "hi")
    assert (result.code, result.out) == (0, "hello\n")
    assert "success" in result.err
    assert stub.asked("/api/pull")[0].json["insecure"] is False


def test_what_is_waited_for_is_shown_in_the_same_line() -> None:
    stream = Stream(is_terminal=True)
    with TransferLines(stream, lambda: 0.0) as lines:
        lines.show("pulling aaa", DIGEST, 10, 1000)
        lines.show("pulling aaa: try 2 of 6", DIGEST, 10, 1000)
        lines.show("pulling aaa", DIGEST, 1000, 1000)
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("completed", "total", "rate", "width", "head", "n_full", "tail"),
    [
        (0, 1000, 0, 40, "x:   0%", 0, "0 B/1 KB"),
        (500, 1000, 0, 40, "x:  50%", 9, "500 B/1 KB"),
        (1000, 1000, 9, 40, "x: 100%", 25, "1 KB"),
        (500, 1000, 100, 50, "x:  50%", 8, "500 B/1 KB  100 B/s  5s"),
        (500, 1000, 100, 200, "x:  50%", 20, "500 B/1 KB  100 B/s  5s"),
        (500, 1000, 100, 33, "x:  50%", 0, "500 B/1 KB  100 B/s  5s"),
        (0, 0, 0, 40, "x: 100%", 26, "0 B"),
    ],
)
def test_a_bar_takes_the_room_that_there_is(
    completed: int, total: int, rate: float, width: int, head: str, n_full: int, tail: str
) -> None:
    made = bar_line("x", completed, total, rate, width=width)
    assert made.startswith(head)
    assert made.endswith(tail)
    assert made.count("█") == n_full
    assert len(made) <= width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59, "59s"), (123, "2m3s"), (3660, "1h1m"), (99 * 3600 + 1, "99h+")],
)
def test_the_time_left_has_two_units(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.bytes_per_s(0, 0) == 0
    for second in range(30):
        rate.add(second, second * (100 if second < 15 else 200))
    assert rate.bytes_per_s(29, 29 * 200) == pytest.approx(200, rel=0.01)
