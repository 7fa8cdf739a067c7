"""OpenAI's own Python client and its responses, against a live daemon."""

import asyncio
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Literal

import openai
import pytest
from live import Daemon, wait_until, write_fake_model
from openai.types.responses import Response
from pydantic import BaseModel

OPENAI = f"openai {version('openai')}"

MODEL = "smollm2:135m"
QUESTION = "Name the capital of France."
# With a limit that is not reached: only an answer that has ended counts for its accumulator.
ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": QUESTION,
    "temperature": 0,
    "max_output_tokens": 32,
}


@pytest.fixture
def client(client_daemon: Daemon) -> Iterator[openai.OpenAI]:
    # Strictly: every field of every reply has to be of its type.
    with openai.OpenAI(
        base_url=f"{client_daemon.url}/v1",
        api_key="unused",
        max_retries=0,
        _strict_response_validation=True,
    ) as client:
        yield client


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


class Weather(BaseModel):
    """Tells the weather."""

    city: Literal["Oslo", "Rome"]
    is_now: bool


def tool() -> Any:
    """The tool as the client makes it of a class."""
    return openai.pydantic_function_tool(Weather, name="weather")


FLAT: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather",
    "strict": True,
    "parameters": Weather.model_json_schema() | {"additionalProperties": False},
}


@pytest.mark.client(OPENAI, "responses")
def test_a_response_is_complete(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED, metadata={"a": "b"}, instructions="Be brief.")
    assert "Paris" in response.output_text
    assert (response.status, response.incomplete_details, response.error) == (
        "completed",
        None,
        None,
    )
    assert (response.metadata, response.instructions) == ({"a": "b"}, "Be brief.")
    assert response.usage
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    short = client.responses.create(**ASKED | {"max_output_tokens": 2})
    assert short.status == "incomplete"
    assert short.incomplete_details
    assert short.incomplete_details.reason == "max_output_tokens"


@pytest.mark.client(OPENAI, "responses, streamed")
def test_a_stream_says_what_the_whole_response_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    with client.responses.create(**ASKED, stream=True) as stream:
        events = list(stream)
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert [e.sequence_number for e in events] == list(range(len(events)))
    with client.responses.stream(**ASKED) as accumulated:
        snapshots = [e.snapshot for e in accumulated if e.type == "response.output_text.delta"]
        final = accumulated.get_final_response()
    assert snapshots[-1] == final.output_text == whole.output_text


def test_the_asynchronous_client_asks_several_at_once(client_daemon: Daemon) -> None:
    async def ask() -> list[Response]:
        url = f"{client_daemon.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="unused") as client:
            return await asyncio.gather(*(client.responses.create(**ASKED) for _ in range(4)))

    responses = asyncio.run(ask())
    assert all("Paris" in response.output_text for response in responses)
    assert len({response.id for response in responses}) == 4


@pytest.mark.client(OPENAI, "responses with tools")
def test_a_round_with_a_tool(client: openai.OpenAI) -> None:
    first = client.responses.create(model="caller", input=QUESTION, tools=[FLAT])
    (call,) = (item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    with client.responses.create(
        model="caller", input=QUESTION, tools=[FLAT], stream=True
    ) as stream:
        done = [e for e in stream if e.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == [call.arguments]
    # As programs do that keep no responses: all that was said goes back.
    history: Any = [{"role": "user", "content": QUESTION}, *first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "20 C"})
    again = client.responses.create(model="caller", input=history, tools=[FLAT])
    assert first.usage
    assert again.usage
    assert again.usage.input_tokens > first.usage.input_tokens


@pytest.mark.client(OPENAI, "responses with tools")
@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
    ],
    ids=["required", "one", "allowed"],
)
def test_a_call_is_forced_and_parsed(client: openai.OpenAI, choice: Any) -> None:
    with client.responses.stream(
        model=MODEL, input=QUESTION, tools=[tool()], tool_choice=choice, parallel_tool_calls=False
    ) as stream:
        final = stream.get_final_response()
    (call,) = (item for item in final.output if item.type == "function_call")
    assert isinstance(call.parsed_arguments, Weather)


@pytest.mark.client(OPENAI, "responses of a type")
def test_an_answer_of_a_type_is_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(**ASKED, text_format=Capital)
    assert isinstance(parsed.output_parsed, Capital)
    assert list(json.loads(parsed.output_text)) == ["is_large", "country"]
    with client.responses.stream(**ASKED, text_format=Capital) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


@pytest.mark.client(OPENAI, "responses with thinking")
def test_reasoning_goes_there_and_back(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="thinker", input=QUESTION, include=["reasoning.encrypted_content"]
    )
    reasoning, message = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.summary[0].text.strip() == "It is in France."
    assert reasoning.encrypted_content == reasoning.summary[0].text
    assert message.type == "message"
    assert response.output_text == "Paris."
    history: Any = [{"role": "user", "content": QUESTION}, *response.output]
    history.append({"role": "user", "content": "And Italy?"})
    assert client.responses.create(model="thinker", input=history).output_text == "Paris."
    with client.responses.stream(model="thinker", input=QUESTION) as stream:
        kinds = [event.type for event in stream]
    assert kinds.count("response.reasoning_summary_text.delta") == 2
    with pytest.raises(openai.BadRequestError, match="does not support thinking"):
        client.responses.create(**ASKED, reasoning={"effort": "low"})


@pytest.mark.client(OPENAI, "responses with log-probabilities")
def test_log_probabilities_come_with_the_text(client: openai.OpenAI) -> None:
    response = client.responses.create(
        **ASKED, include=["message.output_text.logprobs"], top_logprobs=2
    )
    (message,) = response.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


def test_what_would_need_a_store_is_refused_by_name(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "background": True,
        "prompt": {"id": "pmpt_1"},
    }
    for name, value in fields.items():
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(**ASKED, **{name: value})
        assert error.value.param == name
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    assert client.responses.create(**ASKED, store=True).to_dict()["store"] is False


def test_a_broken_stream_raises_with_its_message(
    client: openai.OpenAI, client_daemon: Daemon, tmp_path: Any
) -> None:
    script = {"pieces": ["la "], "endless": True, "crash_at_forward": 5}
    client_daemon.create("breaks", write_fake_model(tmp_path / "breaks.gguf", script))
    try:
        kinds: list[str] = []
        with (
            pytest.raises(openai.APIError, match="unexpectedly stopped") as error,
            client.responses.create(model="breaks", input="hi", stream=True) as stream,
        ):
            kinds.extend(event.type for event in stream)
        assert error.value.code == "runner_lost"
        assert kinds[-1] == "response.failed"
        with pytest.raises(openai.InternalServerError):
            client.responses.create(model="breaks", input="hi")
    finally:
        client_daemon.json("DELETE", "/api/delete", {"model": "breaks"})


def test_a_stream_that_is_left_frees_its_slot(client: openai.OpenAI, client_daemon: Daemon) -> None:
    with client.responses.create(model=MODEL, input="Tell me a long story.", stream=True) as stream:
        next(iter(stream))
    wait_until(lambda: client_daemon.n_busy() == 0, "the slot to be free")
