"""What requests share and what they do not, seen from outside: prefixes, pauses, seeds, figures."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from live import Daemon, chat_body

from localrun.metrics import METRICS

SMOLLM2 = "smollm2:135m"
Start = Callable[..., Daemon]
Fake = Callable[..., Path]

# About 700 tokens.
LONG = "You answer questions about ships, harbours and the weather at sea. " * 50


def turn(daemon: Daemon, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
    body = {"model": SMOLLM2, "messages": messages, "stream": False}
    body["options"] = {"num_predict": 8, "temperature": 0, **options}
    answer: dict[str, Any] = daemon.json("POST", "/api/chat", body)
    messages.append(answer["message"])
    return answer


@pytest.fixture(params=["unified", "split"])
def sharing(request: Any, start_daemon: Start, smollm2_path: Path) -> Daemon:
    daemon = start_daemon(NUM_PARALLEL=2, KV_LAYOUT=request.param, CONTEXT_LENGTH=2048)
    daemon.create(SMOLLM2, smollm2_path)
    return daemon


def test_each_turn_of_two_chats_in_turns_evaluates_only_what_is_new(sharing: Daemon) -> None:
    chats = [[{"role": "system", "content": f"{number}. {LONG}"}] for number in range(2)]
    for number in range(4):
        for chat in chats:
            chat.append({"role": "user", "content": f"And what about number {number}?"})
            answer = turn(sharing, chat)
            n_new = answer["prompt_eval_count"] - answer.get("prompt_cached_count", 0)
            if number == 0:
                assert n_new > 500
            else:
                # The question, the template around it, and the last token of the answer.
                assert n_new < 40


def test_clients_with_one_system_prompt_evaluate_it_once(sharing: Daemon) -> None:
    def ask(number: int) -> dict[str, Any]:
        question = {"role": "user", "content": f"What is {number} knots?"}
        return turn(sharing, [{"role": "system", "content": LONG}, question])

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    n_new = [a["prompt_eval_count"] - a.get("prompt_cached_count", 0) for a in answers]
    assert sum(n > 500 for n in n_new) == 1
    assert sum(n < 40 for n in n_new) == 5


def test_choices_of_one_prompt_evaluate_it_once(sharing: Daemon) -> None:
    body = {
        "model": SMOLLM2,
        "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "Hi"}],
        "n": 4,
        "max_tokens": 4,
    }
    sharing.json("POST", "/v1/chat/completions", body)
    values = metrics(sharing)
    n_prompt = values["prompt_tokens_total"] / 4
    assert values["prefix_hit_tokens_total"] == 3 * (n_prompt - 1)


def test_an_answer_goes_on_beside_a_long_prompt(sharing: Daemon) -> None:
    story = {"num_predict": 400, "temperature": 0}
    running = sharing.stream("/api/generate", raw("Once upon a time", **story))
    next(running)
    with ThreadPoolExecutor() as pool:
        long = pool.submit(sharing.json, "POST", "/api/generate", raw("x " * 1500, num_predict=1))
        n_pieces = 0
        while not long.done():
            next(running)
            n_pieces += 1
    running.close()
    # The prompt has 1,500 rows; in steps of at most 512 that all decode, it would be three.
    assert n_pieces >= 5


def raw(text: str, **options: Any) -> dict[str, Any]:
    stream = options.get("num_predict", 0) > 1
    return {"model": SMOLLM2, "prompt": text, "raw": True, "stream": stream, "options": options}


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_seed_gives_one_text_whatever_came_before(sharing: Daemon, temperature: float) -> None:
    def ask(**options: Any) -> str:
        options = {"seed": 7, "temperature": temperature, "num_predict": 24, **options}
        answer = sharing.chat(SMOLLM2, "Tell me about the sea.", **options)
        return str(answer["message"]["content"])

    texts = {ask() for _ in range(5)}
    sharing.chat(SMOLLM2, "Tell me about the mountains.", num_predict=4)
    texts |= {ask() for _ in range(5)}
    assert len(texts) == 1
    strict = {ask(deterministic=True)}
    with ThreadPoolExecutor() as pool:
        others = [
            pool.submit(sharing.chat, SMOLLM2, f"Count from {n} to 99.", num_predict=60)
            for n in range(3)
        ]
        strict |= {ask(deterministic=True) for _ in range(5)}
        for other in others:
            other.result()
    assert len(strict) == 1


def test_a_full_cache_makes_requests_pause_and_none_fail(
    start_daemon: Start, fake_model: Fake
) -> None:
    daemon = start_daemon(NUM_PARALLEL=6, KV_LAYOUT="unified", KV_POOL=160, CONTEXT_LENGTH=128)
    daemon.create("m", fake_model(echo=True))
    texts = [f"{number}" * 45 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: daemon.chat("m", text, num_predict=45), texts))
    assert [answer["message"]["content"] for answer in answers] == texts
    values = metrics(daemon)
    assert values["preemptions_swap_total"] + values["preemptions_recompute_total"] > 0
    assert values["requests_failed_total"] == values["ledger_drift_total"] == 0


def metrics(daemon: Daemon) -> dict[str, float]:
    """Counters and gauges of the one model in memory."""
    status, data = daemon.request("GET", "/metrics")
    assert status == 200
    found = re.findall(r'^localrun_(\w+)\{model="[^"]+"\} (\S+)$', data.decode(), re.MULTILINE)
    return {name: float(value) for name, value in found if name in METRICS}


def test_metrics_tell_what_a_request_did(start_daemon: Start, fake_model: Fake) -> None:
    daemon = start_daemon(KV_LAYOUT="unified")
    daemon.create("m", fake_model(echo=True))
    daemon.chat("m", "twenty letters or so")
    values = metrics(daemon)
    assert values["requests_finished_total"] == 1
    assert values["prompt_tokens_total"] == values["prefill_tokens_total"] == 20
    assert values["decode_tokens_total"] == 20
    assert values["running"] == values["waiting"] == 0
    assert values["kv_cells_used"] == values["kv_cells_retained"] == 40
    assert values["kv_cells"] == values["kv_cells_free"] + 40
    kv = daemon.ps()[0]["kv"]
    assert (kv["used"], kv["retained"], kv["used_max"]) == (40, 40, 40)


def test_a_larger_window_goes_on_with_what_was_there(sharing: Daemon) -> None:
    chat = [{"role": "system", "content": LONG}, {"role": "user", "content": "Where are we?"}]
    turn(sharing, chat)
    pids = [runner.pid for runner in sharing.runners()]
    chat.append({"role": "user", "content": "And now?"})
    answer = turn(sharing, chat, num_ctx=4096)
    assert answer.get("prompt_cached_count", 0) > 500
    assert [runner.pid for runner in sharing.runners()] == pids
    assert sharing.ps()[0]["context_length"] in (2048, 4096)


def test_the_body_of_a_chat_is_what_others_see(sharing: Daemon) -> None:
    """A prefix is not shared with what only looks alike: the roles count."""
    body = chat_body(SMOLLM2, LONG, stream=False, num_predict=1)
    sharing.json("POST", "/api/chat", body)
    answer = turn(sharing, [{"role": "system", "content": LONG}, {"role": "user", "content": "?"}])
    assert answer.get("prompt_cached_count", 0) < 100
