"""What a runner says between answers reaches whoever asks: its window, counters and verdicts."""

import asyncio
from typing import Any

import pytest

from localrun.core import Done, RawPrompt, SamplingParams, Tokenize, Tokens, Usage
from localrun.errors import BadRequest, ModelStopped, RunnerLost, WindowTooLarge, to_fields
from localrun.ipc import messages
from localrun.ipc.messages import Failed, Outbox, Progressed, Resized, Submit, ToRunner
from localrun.spec import RunnerInfo, RunnerStats, Verdict
from localrun.supervisor.client import RunnerClient

SMALL, LARGE = RunnerInfo(512, 4), RunnerInfo(8192, 4, n_cells=8192, layout="unified")


class ScriptedProcess:
    """Stands for the process and its connection at once; keeps what is sent."""

    pid = 7
    log_tail = ()

    def __init__(self) -> None:
        self.connection = self
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent: list[ToRunner] = []
        self.receive: Any = None

    def send(self, message: ToRunner) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    async def wait(self) -> str:
        return "it exited with code 0"

    async def close(self) -> None:
        self.kill()


def with_client(story: Any) -> list[Verdict]:
    """Runs `story(client, process)`; returns the verdicts that were reported."""
    verdicts: list[Verdict] = []

    async def run() -> None:
        process: Any = ScriptedProcess()
        client = RunnerClient(process, SMALL, 60.0, verdicts.append)
        await story(client, process)
        await client.close()

    asyncio.run(run())
    return verdicts


def test_a_rebuilt_context_shows_in_its_info() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        assert client.info == SMALL
        process.receive(Outbox((Resized(LARGE),)))
        assert client.info == LARGE

    assert with_client(story) == []


def test_the_latest_stats_stay_when_a_frame_has_none() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        assert client.stats is None
        process.receive(Outbox((), stats=RunnerStats({"kv_cells_used": 5})))
        process.receive(Outbox((), n_running=1))
        assert client.stats == RunnerStats({"kv_cells_used": 5})

    with_client(story)


def test_a_verdict_is_handed_on() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        process.receive(Outbox((messages.Tested(Verdict("split", flash_attention=True)),)))

    assert with_client(story) == [Verdict("split", flash_attention=True)]


def test_a_submit_carries_the_window_the_client_and_the_scope() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        client.submit(
            Submit(0, RawPrompt("x"), SamplingParams(), 8192, client="192.0.2.7", scope="key")
        )
        assert process.sent == [
            Submit(1, RawPrompt("x"), SamplingParams(), 8192, client="192.0.2.7", scope="key")
        ]

    with_client(story)


def test_a_window_that_memory_cannot_hold_is_refused_before_the_request_is_accepted() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        stream = client.submit(Submit(0, RawPrompt("x"), SamplingParams(), 10**6))
        kind, fields = to_fields(WindowTooLarge(10**6, 20_480))
        process.receive(Outbox((Failed(stream.id, kind, fields),)))
        with pytest.raises(WindowTooLarge, match="20480"):
            await stream.accepted()

    with_client(story)


def test_a_runner_is_active_from_its_first_request_to_the_end_of_the_last() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        seen: list[bool] = []
        client.on_activity = lambda: seen.append(client.is_active)
        first, second = (
            client.submit(Submit(0, RawPrompt("x"), SamplingParams(), 10)) for _ in range(2)
        )
        assert seen == [True, True]
        process.receive(Outbox((Progressed(first.id, Done("stop", Usage())),)))
        assert client.is_active
        second.close()
        assert seen[-1] is False
        client.submit(Submit(0, RawPrompt("x"), SamplingParams(), 10))
        process.kill()
        await client.wait_lost()
        assert seen[-1] is False

    with_client(story)


def test_it_is_told_who_else_computes() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        client.share(2, (8, 9))
        assert process.sent == [messages.Share(2, (8, 9))]

    with_client(story)


def test_requests_that_run_when_it_is_closed_hear_why() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        stream = client.submit(Submit(0, RawPrompt("x"), SamplingParams(), 10))
        await client.close(ModelStopped("m", 30.0))
        with pytest.raises(ModelStopped):
            await stream.accepted()

    with_client(story)


def test_a_question_is_answered_refused_or_lost() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        first, second, third = (
            asyncio.create_task(client.ask(Tokenize(text))) for text in ("a", "b", "c")
        )
        await asyncio.sleep(0)
        asked = [message.id for message in process.sent]
        assert process.sent == [
            messages.Ask(number, Tokenize(text)) for number, text in zip(asked, "abc", strict=True)
        ]
        reply = messages.Answered(asked[0], Tokens((1, 2)))
        process.receive(Outbox((reply, Failed(asked[1], *to_fields(BadRequest("tokens", "no"))))))
        assert await first == Tokens((1, 2))
        with pytest.raises(BadRequest, match="no"):
            await second
        process.kill()
        with pytest.raises(RunnerLost):
            await third
        with pytest.raises(RunnerLost):
            await client.ask(Tokenize("d"))

    with_client(story)


def test_the_answer_to_who_has_left_is_dropped() -> None:
    async def story(client: RunnerClient, process: Any) -> None:
        question = asyncio.create_task(client.ask(Tokenize("a")))
        await asyncio.sleep(0)
        question.cancel()
        await asyncio.gather(question, return_exceptions=True)
        process.receive(Outbox((messages.Answered(process.sent[0].id, Tokens(())),)))

    with_client(story)
