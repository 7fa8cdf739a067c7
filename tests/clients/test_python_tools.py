"""The official Python clients of Ollama and OpenAI: tools, answers of a given form, thinking."""

import json
from importlib.metadata import version
from typing import Any, Literal

import ollama
import openai
import pytest
from pydantic import BaseModel

OLLAMA = f"ollama {version('ollama')}"
OPENAI = f"openai {version('openai')}"

MODEL = "smollm2:135m"
QUESTION = [{"role": "user", "content": "Name the capital of France."}]


class Capital(BaseModel):
    """A capital: keys are not in the order of the alphabet, and no value can go on for ever."""

    is_large: bool
    country: Literal["France", "Italy"]


def weather(city: str, unit: str | int = "C") -> str:
    """Tells the weather.

    Args:
        city: where
        unit: of the temperature
    """
    return f"sunny in {city}, 20 {unit}"


# ---- ollama


@pytest.mark.client(OLLAMA, "tools")
@pytest.mark.client(OLLAMA, "tools, streamed")
def test_ollama_calls_python_functions(client: ollama.Client) -> None:
    whole = client.chat("caller", QUESTION, tools=[weather]).message
    assert whole.tool_calls
    (call,) = whole.tool_calls
    assert (call.function.name, dict(call.function.arguments)) == ("weather", {"city": "Oslo"})
    assert (whole.content or "").strip() == "Let me look."
    parts = list(client.chat("caller", QUESTION, tools=[weather], stream=True))
    streamed = [call for part in parts for call in part.message.tool_calls or ()]
    assert streamed == [call]
    assert "".join(part.message.content or "" for part in parts) == whole.content
    assert [part.done_reason for part in parts if part.done] == ["stop"]
    # This client drops ids: only the name says which call a result belongs to.
    said = weather(**call.function.arguments)
    history = [*QUESTION, whole, {"role": "tool", "tool_name": "weather", "content": said}]
    again = client.chat("caller", history, tools=[weather])
    first = client.chat("caller", QUESTION, tools=[weather])
    assert (again.prompt_eval_count or 0) > (first.prompt_eval_count or 0)


@pytest.mark.client(OLLAMA, "structured output")
def test_ollama_gets_an_answer_of_a_type(client: ollama.Client) -> None:
    schema = Capital.model_json_schema()
    options = {"temperature": 0}
    whole = client.chat(MODEL, QUESTION, format=schema, options=options)
    Capital.model_validate_json(whole.message.content or "")
    assert list(json.loads(whole.message.content or "")) == ["is_large", "country"]
    assert whole.done_reason == "stop"
    text = client.generate(MODEL, "A city as JSON.", format="json", options={"num_predict": 200})
    assert text.done_reason == "length" or isinstance(json.loads(text.response), dict)


@pytest.mark.client(OLLAMA, "thinking")
def test_ollama_tells_thinking_from_the_answer(client: ollama.Client) -> None:
    for think in (True, None):
        whole = client.chat("thinker", QUESTION, think=think).message
        assert ((whole.thinking or "").strip(), whole.content) == ("It is in France.", "Paris.")
    parts = list(client.chat("thinker", QUESTION, think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == whole.thinking
    assert "".join(part.message.content or "" for part in parts) == "Paris."
    generated = client.generate("thinker", "Name it.", think=True)
    assert (generated.thinking, generated.response) == (whole.thinking, "Paris.")
    with pytest.raises(ollama.ResponseError, match="does not support thinking") as error:
        client.chat(MODEL, QUESTION, think=True)
    assert error.value.status_code == 400


# ---- openai

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "is_now": {"type": "boolean"}},
            "required": ["city", "is_now"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.client(OPENAI, "tools")
@pytest.mark.client(OPENAI, "tools, streamed")
def test_openai_calls_tools(openai_client: openai.OpenAI) -> None:
    request: Any = {"model": "caller", "messages": QUESTION, "tools": [TOOL]}
    choice = openai_client.chat.completions.create(**request).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert (choice.message.content or "").strip() == "Let me look."
    with openai_client.chat.completions.stream(**request) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.content == choice.message.content
    assert streamed.message.tool_calls
    (found,) = streamed.message.tool_calls
    assert found.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "20"}]}
    history = [*QUESTION, choice.message.model_dump(exclude_none=True), result]
    again = openai_client.chat.completions.create(**request | {"messages": history})
    assert again.choices[0].finish_reason == "tool_calls"


@pytest.mark.client(OPENAI, "forced tool call")
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_openai_forces_a_call(openai_client: openai.OpenAI, choice: Any) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[TOOL], tool_choice=choice, temperature=1
    ).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls
    for call in answer.message.tool_calls:
        assert call.type == "function"
        assert call.function.name == "weather"
        arguments = json.loads(call.function.arguments)
        assert arguments.keys() == {"city", "is_now"}
        assert arguments["city"] in ("Oslo", "Rome")
        assert isinstance(arguments["is_now"], bool)


@pytest.mark.client(OPENAI, "structured output")
def test_openai_parses_an_answer_of_a_type(openai_client: openai.OpenAI) -> None:
    parsed = openai_client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Capital, temperature=0
    ).choices[0]
    assert isinstance(parsed.message.parsed, Capital)
    assert list(json.loads(parsed.message.content or "")) == ["is_large", "country"]
    schema = {"name": "capital", "strict": True, "schema": Capital.model_json_schema()}
    form: Any = {"type": "json_schema", "json_schema": schema}
    with openai_client.chat.completions.create(
        model=MODEL, messages=QUESTION, response_format=form, stream=True, temperature=1
    ) as stream:
        text = "".join(c.choices[0].delta.content or "" for c in stream if c.choices)
    Capital.model_validate_json(text)


@pytest.mark.client(OPENAI, "thinking")
def test_openai_tells_reasoning_from_the_answer(openai_client: openai.OpenAI) -> None:
    request: Any = {"model": "thinker", "messages": QUESTION}
    message = openai_client.chat.completions.create(**request).choices[0].message
    more = message.model_extra or {}
    assert message.content == "Paris."
    assert more["reasoning"].strip() == "It is in France."
    assert more["reasoning_content"] == more["reasoning"]
    with openai_client.chat.completions.create(**request, stream=True) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
    said = "".join((delta.model_extra or {}).get("reasoning", "") for delta in deltas)
    assert said == more["reasoning"]
    assert "".join(delta.content or "" for delta in deltas) == "Paris."
    with pytest.raises(openai.BadRequestError, match="does not support thinking"):
        openai_client.chat.completions.create(
            model=MODEL, messages=QUESTION, reasoning_effort="low"
        )
