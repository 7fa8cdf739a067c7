"""More requests than may wait: who is refused, in which words, and that clients come back."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
from live import Daemon, chat_body, wait_until

Start = Callable[..., Daemon]
Fake = Callable[..., Path]

HI = [{"role": "user", "content": "hi"}]
# Three tokens of a model that would never end by itself.
ROUTES: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": HI, "options": {"num_predict": 3}},
    "/api/generate": {"prompt": "hi", "options": {"num_predict": 3}},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 3, "n": 2},
    "/v1/completions": {"prompt": ["hi", "ho"], "max_tokens": 3},
}
each_route = pytest.mark.parametrize("path", ROUTES)
each_way = pytest.mark.parametrize("stream", [True, False])


@pytest.fixture
def singer(start_daemon: Start, fake_model: Fake) -> Daemon:
    """A daemon with one slot and two places in the queue, and the endless model `sing`."""
    daemon = start_daemon(NUM_PARALLEL=1, MAX_QUEUE=2, CONTEXT_LENGTH=100_000)
    daemon.create("sing", fake_model(pieces=["la "], endless=True, step_s=0.005))
    return daemon


@contextmanager
def taken_slot(daemon: Daemon, *, n_waiting: int = 0) -> Iterator[None]:
    """While an endless answer has the slot and `n_waiting` others wait for it."""
    body = chat_body("sing", "hi")
    with ExitStack() as stack:
        # The headers of a stream come when it has its place.
        for _ in range(1 + n_waiting):
            stack.enter_context(daemon.open("POST", "/api/chat", body))
        wait_until(lambda: daemon.n_busy() == 1, "the slot to be taken")
        yield


def is_refused(daemon: Daemon, path: str) -> bool:
    """True when a request to `path` has got its 503."""
    return any("503" in line and path in line for line in daemon.log().splitlines())


@each_way
@each_route
def test_one_runs_two_wait_and_the_others_are_refused_at_once(
    singer: Daemon, path: str, stream: bool
) -> None:
    body = {"model": "sing", "stream": stream, **ROUTES[path]}
    with ThreadPoolExecutor() as pool:
        with taken_slot(singer):
            asked = [pool.submit(singer.request, "POST", path, body) for _ in range(7)]
            refused = [future for _, future in zip(range(5), as_completed(asked), strict=False)]
            assert [future.result()[0] for future in refused] == [503] * 5
            waiting = [future for future in asked if future not in refused]
            assert not any(future.done() for future in waiting)
        for future in waiting:
            status, data = future.result()
            assert status == 200
            assert b"la" in data
            assert b"error" not in data


@each_way
@each_route
def test_a_refusal_says_when_to_come_back_and_keeps_the_connection(
    singer: Daemon, path: str, stream: bool
) -> None:
    body = json.dumps({"model": "sing", "stream": stream, **ROUTES[path]})
    with taken_slot(singer, n_waiting=2):
        connection = singer.connect()
        connection.request("POST", path, body)
        sock = connection.sock
        with connection.getresponse() as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert response.headers["Content-Type"].startswith("application/json")
            error = json.loads(response.read())["error"]
        if path.startswith("/v1"):
            assert (error["type"], error["code"]) == ("api_error", "queue_full")
            error = error["message"]
        assert error.startswith("server busy, please try again.")
        connection.request("GET", "/health")
        assert connection.sock is sock
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()


@each_way
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_openai_client_comes_back_by_itself(singer: Daemon, path: str, stream: bool) -> None:
    def ask(client: openai.OpenAI) -> str:
        if "chat" in path:
            chat = client.chat.completions.create(
                model="sing", messages=HI, max_tokens=3, stream=stream
            )
            if stream:
                return "".join(chunk.choices[0].delta.content or "" for chunk in chat)
            return str(chat.choices[0].message.content)
        text = client.completions.create(model="sing", prompt="hi", max_tokens=3, stream=stream)
        return "".join(part.choices[0].text for part in (text if stream else [text]))

    with (
        openai.OpenAI(base_url=f"{singer.url}/v1", api_key="unused", max_retries=5) as client,
        ThreadPoolExecutor() as pool,
    ):
        with taken_slot(singer, n_waiting=2):
            answer = pool.submit(ask, client)
            wait_until(lambda: is_refused(singer, path), "the first attempt to be refused")
        assert answer.result() == "la la la "


@each_way
def test_the_ollama_client_says_503_and_succeeds_later(singer: Daemon, stream: bool) -> None:
    client = ollama.Client(host=singer.url)

    def ask() -> str:
        answer = client.chat("sing", HI, options={"num_predict": 3}, stream=stream)
        return "".join(part.message.content or "" for part in (answer if stream else [answer]))

    with taken_slot(singer, n_waiting=2), pytest.raises(ollama.ResponseError) as error:
        ask()
    assert error.value.status_code == 503
    wait_until(lambda: singer.ps()[0]["queued"] == 0, "the queue to be empty")
    assert ask() == "la la la "
    client._client.close()
