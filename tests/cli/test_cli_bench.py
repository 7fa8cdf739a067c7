"""`bench` as a command: what it asks, prints and writes, against a scripted server."""

import json
import re
from pathlib import Path

import pytest
from bench_stub import CHAT, bodies, rows, widen, with_model
from cli_stub import Reply, Shell, Stub, completed
from test_cli_parsing import options

from cli.bench.lengths import Length
from cli.bench.plan import Level, Plan
from cli.bench.target import Daemon
from cli.client import Client
from cli.commands.bench import BenchOptions
from cli.errors import Usage
from cli.main import parse


@pytest.fixture
def server(stub: Stub) -> Stub:
    return with_model(stub)


# ---- the command line


def test_the_usual_plan() -> None:
    assert options("bench", "m") == BenchOptions(
        "m", Plan(levels=tuple(Level(n) for n in (1, 2, 4, 8, 16)))
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--max-concurrency 3", Plan(levels=(Level(1), Level(2), Level(3)), most_users=3)),
        ("--concurrency 4,1", Plan(levels=(Level(4), Level(1)))),
        ("--rate 0.5,2", Plan(levels=(Level(rate=0.5), Level(rate=2.0)))),
        (
            "--scenario long-prompt --long-tokens 9",
            Plan(scenario="long-prompt", levels=(Level(4),), long_tokens=9),
        ),
        (
            "--concurrency 2 --prompt-tokens 5 --output-tokens 6 --duration 2m --requests 3",
            Plan(
                levels=(Level(2),),
                lengths=(Length(5, 6),),
                duration_s=120,
                n_requests=3,
                most_users=3,
            ),
        ),
        (
            "--scenario long-prompt --max-concurrency 1",
            Plan(scenario="long-prompt", levels=(Level(1),), most_users=1),
        ),
        ("--requests 2", Plan(levels=(Level(1), Level(2)), n_requests=2, most_users=2)),
        ("--concurrency 1 --lengths chat --seed 7", Plan(levels=(Level(1),), lengths=(), seed=7)),
    ],
)
def test_plans(line: str, expected: Plan) -> None:
    assert options("bench", "m", *line.split()).plan == expected


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "say what to measure"),
        ("m --policy static --url http://x", "--policy changes how the daemon loads MODEL"),
        ("m --policy fast", "`fast` is none of continuous, static, dynamic"),
        ("m --model n", "--model names the model at --url"),
        ("m --concurrency 1,x", "--concurrency: `x` is not a whole number above zero"),
        ("m --concurrency 0", "`0` is not"),
        ("m --rate nan", "`nan` is not"),
        ("m --rate 1 --concurrency 1", "not both"),
        ("m --rate 1 --scenario long-prompt", "--rate is for the scenario chat"),
        ("m --duration soon", "--duration: `soon` is not a duration"),
        ("m --duration -1", "--duration has to be above zero"),
        ("m --slo ttft_p95=2s", "--slo: `ttft_p95` in `ttft_p95=2s` is none of"),
        ("m --slo ttft_p99=2s --rate 1", "--slo chooses"),
        ("m --slo ttft_p99=2s --scenario long-prompt", "--slo is for"),
        ("m --lengths short", "--lengths takes `chat`, not `short`"),
        ("m --lengths chat --lengths-file f", "not both"),
        ("m --scenario other", "other"),
        ("m --max-concurrency 0", "not in the range"),
        ("m --concurrency 99999", "99999 users at once need as many requests, and --requests or"),
        ("m --concurrency 3 --requests 2", "--max-requests allows 2"),
        ("m --max-concurrency 5 --max-requests 4", "--max-concurrency: 5 users"),
        ("m --concurrency 3 --requests 2 --scenario long-prompt", "allows 2"),
    ],
)
def test_wrong_usage(line: str, part: str) -> None:
    with pytest.raises(Usage, match=re.escape(part)):
        parse(["bench", *line.split()])


# ---- a sweep of the daemon


def test_a_sweep_loads_the_model_and_prints_a_line_for_each_level(
    server: Stub, shell: Shell
) -> None:
    run = shell("bench", "m", "--concurrency", "1,3", "--requests", "4", "--output-tokens", "9")
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith("m (localrun 0.1.0): prompts of about 200 tokens, answers of at most")
    found = rows(run)
    assert [row[:4] for row in found] == [["m", "1", "4", "0"], ["m", "3", "4", "0"]]
    assert [row[-2:] for row in found] == [["25%", "25%"]] * 2
    (load,) = server.asked("/api/generate")
    assert load.json == {"model": "m", "stream": False}
    asked = bodies(server)
    assert len(asked) == 8
    assert {body["max_tokens"] for body in asked} == {9}
    assert asked[0]["stream_options"] == {"include_usage": True}
    texts = [body["messages"][0]["content"] for body in asked]
    assert len({text.split(".")[0] for text in texts}) == 8


def test_without_a_field_for_the_kv_cache_there_is_a_dash(server: Stub, shell: Shell) -> None:
    server.on("GET", "/api/ps", Reply(body={"models": [{"name": "m:latest"}]}))
    run = shell("bench", "m", "--concurrency", "1", "--requests", "1")
    assert rows(run)[0][-1] == "–"


def test_prompts_get_the_wanted_length_by_two_requests_of_known_words(
    server: Stub, shell: Shell
) -> None:
    # 30 tokens around the words, two tokens a word
    short, long = completed("a", "b", n_prompt=110), completed("a", "b", n_prompt=510)
    server.on("POST", CHAT, short, long, completed("a", "b"))
    shell("bench", "m", "--concurrency", "1", "--requests", "1", "--prompt-tokens", "230")
    words = [
        len(r.json["messages"][0]["content"].splitlines()[0].split()) for r in server.asked(CHAT)
    ]
    assert words == [41, 241, 101]


def test_a_file_of_lengths_is_used_in_turn(server: Stub, shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "lengths"
    file.write_text("50 5\n50 6\n")
    line = ("bench", "m", "--concurrency", "1", "--requests", "3", "--lengths-file", str(file))
    assert shell(*line).code == 0
    assert [body["max_tokens"] for body in bodies(server)] == [5, 6, 5]
    file.write_text("50")
    run = shell(*line)
    assert run.code == 2
    assert "line 1, `50`, is not two numbers of tokens" in run.err


def test_lengths_of_chats_are_cut_to_the_window_of_the_model(server: Stub, shell: Shell) -> None:
    line = ("--concurrency", "1", "--requests", "30", "--lengths", "chat")
    assert shell("bench", "m", *line).code == 0
    found = [body["max_tokens"] for body in bodies(server)]
    assert len(set(found)) > 10
    assert max(found) == 256


def test_no_more_requests_than_allowed(server: Stub, shell: Shell) -> None:
    run = shell("bench", "m", "--concurrency", "2,4", "--max-requests", "5", "--requests", "4")
    assert [row[2] for row in rows(run)] == ["4", "1"]
    assert len(bodies(server)) == 5
    assert run.err == "stopped after 5 requests (--max-requests)\n"


def test_no_request_begins_after_the_duration(server: Stub, shell: Shell) -> None:
    run = shell("bench", "m", "--concurrency", "2", "--requests", "50", "--duration", "1ns")
    assert rows(run)[0][2] == "2"


def test_arrivals_at_a_rate(server: Stub, shell: Shell) -> None:
    run = shell("bench", "m", "--rate", "200", "--duration", "100ms", "--requests", "5")
    assert run.code == 0
    assert "RATE" in run.out
    assert rows(run)[0][:4] == ["m", "200/s", "5", "0"]


def test_requests_with_a_shared_prefix_come_at_once(server: Stub, shell: Shell) -> None:
    line = ("--scenario", "shared-prefix", "--shared-tokens", "300", "--concurrency", "3,2")
    assert shell("bench", "m", *line).code == 0
    systems = [body["messages"][0]["content"] for body in bodies(server)]
    assert [body["messages"][0]["role"] for body in bodies(server)] == ["system"] * 5
    assert len(set(systems[:3])) == 1
    assert len(set(systems)) == 2  # another one for each level
    assert len(systems[0].split()) > 100


def test_a_long_prompt_beside_streams(server: Stub, shell: Shell) -> None:
    widen(server)
    line = ("--scenario", "long-prompt", "--concurrency", "2", "--output-tokens", "50")
    run = shell("bench", "m", *line, "--long-tokens", "900")
    assert run.code == 0
    assert "LONG TTFT" in run.out
    sizes = [len(body["messages"][0]["content"].split()) for body in bodies(server)]
    assert sum(size > 400 for size in sizes) == 1
    assert sizes.index(max(sizes)) >= 2


def test_policies_are_loaded_one_after_the_other_and_not_left_behind(
    server: Stub, shell: Shell
) -> None:
    line = ("--policy", "static", "--policy", "continuous", "--concurrency", "1")
    run = shell("bench", "m", *line, "--requests", "1")
    assert run.code == 0
    assert [row[0] for row in rows(run)] == ["static", "continuous"]
    assert "RATIO TO static" in run.out
    assert [request.json for request in server.asked("/api/generate")] == [
        {"model": "m", "stream": False, "options": {"admission": "static"}},
        {"model": "m", "stream": False, "options": {"admission": "continuous"}},
        {"model": "m", "stream": False, "keep_alive": 0},
    ]
    server.on("GET", "/api/version", Reply(body={"version": "0.30.0"}))
    assert "--policy needs a localrun daemon" in shell("bench", "m", *line).err


def test_the_most_users_within_an_objective(server: Stub, shell: Shell) -> None:
    line = ("bench", "m", "--requests", "4", "--max-concurrency", "4")
    run = shell(*line, "--slo", "ttft_p99=5m")
    assert (run.code, [row[1] for row in rows(run)]) == (0, ["1", "2", "4"])
    assert run.out.splitlines()[-1].startswith(
        "this machine carries at least 4 users of m within ttft_p99 ≤ 5m"
    )
    run = shell(*line, "--slo", "ttft_p99=1ns")
    assert (run.code, [row[1] for row in rows(run)]) == (0, ["1"])
    assert "fewer than 1 user of m within ttft_p99 ≤ 1ns" in run.out


# ---- other servers


def test_a_server_at_a_url(server: Stub, shell: Shell) -> None:
    url = f"http://127.0.0.1:{server.port}"
    line = ("--concurrency", "1", "--requests", "1")
    assert rows(shell("bench", "--url", f"{url}/v1/", *line))[0][0] == url
    assert [request.json["model"] for request in server.asked(CHAT)] == ["first"] * 3
    assert server.asked("/api/generate") == []
    shell("bench", "--url", url, "--model", "x", "--ignore-end", *line)
    assert server.asked(CHAT)[-1].json["model"] == "x"
    assert server.asked(CHAT)[-1].json["ignore_eos"] is True


def test_prompts_without_turns(server: Stub, shell: Shell) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    events = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, {"usage": usage}]
    server.on("POST", "/v1/completions", Reply(lines=events, is_sse=True))
    url = f"http://127.0.0.1:{server.port}"
    run = shell("bench", "--url", url, "--api", "completions", "--concurrency", "1")
    assert (run.code, run.err) == (0, "")
    assert set(server.asked("/v1/completions")[0].json) >= {"prompt", "max_tokens"}


def test_the_daemon_and_other_servers_are_measured_in_turns(server: Stub, shell: Shell) -> None:
    url = f"http://127.0.0.1:{server.port}"
    line = ("--url", url, "--url", url, "--concurrency", "1,2", "--requests", "2")
    run = shell("bench", "m", *line)
    names = [line.split("  ")[0] for line in run.out.split("\n\n")[1].splitlines()[1:]]
    assert names == ["m", url, f"{url} #2", url, f"{url} #2", "m"]
    assert "RATIO TO m" in run.out


@pytest.mark.parametrize("url", ["https://x", "x:80", "http://", "http://x:99999", "http://x:y"])
def test_a_url_of_another_form_is_refused(url: str, shell: Shell) -> None:
    run = shell("bench", "--url", url)
    assert (run.code, run.err.partition(":")[0]) == (2, "Error")
    assert "is not of the form http://host:port" in run.err


def test_nobody_at_the_url(shell: Shell, free_port: int) -> None:
    run = shell("bench", "--url", f"http://127.0.0.1:{free_port}")
    assert run.code == 3
    assert run.err == f"Error: no server at http://127.0.0.1:{free_port}: connection refused\n"


def test_a_daemon_on_another_machine_has_to_be_named_by_its_url() -> None:
    with pytest.raises(Usage, match="not on this machine; if its load is yours"):
        Daemon(Client("http://192.0.2.1:11434"), "m", "/chat/completions", {})


# ---- files


def test_json_and_plot(server: Stub, shell: Shell, tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.svg"
    line = ("bench", "m", "--concurrency", "1,2", "--requests", "2")
    assert shell(*line, "--json", str(out), "--plot", str(plot)).code == 0
    document = json.loads(out.read_text())
    assert [level["n_users"] for level in document["levels"]] == [1, 2]
    assert len(document["levels"][0]["requests"][0]["times_s"]) == 3
    assert "<svg" in plot.read_text()
    run = shell(*line, "--json", "-")
    assert json.loads(run.out)["localrun"]
    assert "TTFT p50" in run.err


def test_a_folder_that_is_missing_is_seen_before_anything_is_measured(
    server: Stub, shell: Shell, tmp_path: Path
) -> None:
    run = shell("bench", "m", "--plot", str(tmp_path / "none" / "a.svg"))
    assert run.code == 2
    assert server.requests == []


def test_a_terminal_sees_a_bar_on_standard_error_only(server: Stub, shell: Shell) -> None:
    line = ("bench", "m", "--concurrency", "1", "--requests", "1")
    run = shell(*line, is_terminal=True)
    assert "\x1b[" in run.err
    assert "\x1b[" not in run.out
    assert shell(*line).err == ""
