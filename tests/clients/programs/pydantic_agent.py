"""pydantic-ai: an agent on OpenAI's API, with answers of a type. Prints what worked."""

import json
import os
from contextlib import suppress
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=f"{os.environ['OLLAMA_HOST']}/v1", api_key="unused")
QUESTION = "Name the capital of France."


def model(variable: str) -> OpenAIChatModel:
    return OpenAIChatModel(os.environ[variable], provider=PROVIDER)


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


class Called(Exception):
    """The tool was called: a scripted model would call it again and again."""


def chat() -> None:
    answer = Agent(model("MODEL"), model_settings={"temperature": 0, "max_tokens": 16})
    assert "Paris" in answer.run_sync(QUESTION).output
    works("chat")


def structured() -> None:
    # The type is a function that has to be called.
    agent = Agent(model("MODEL"), output_type=ToolOutput(Capital))
    assert isinstance(agent.run_sync(QUESTION).output, Capital)
    works("forced tool call")
    agent = Agent(model("MODEL"), output_type=NativeOutput(Capital))
    assert isinstance(agent.run_sync(QUESTION).output, Capital)
    works("structured output")


def tools() -> None:
    agent = Agent(model("CALLER"))
    cities: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        if len(cities) == 2:
            raise Called
        return f"sunny in {city}"

    with suppress(Called):
        agent.run_sync("What is the weather in Oslo?")
    # The second call shows that the first one and its result were taken as history.
    assert cities == ["Oslo", "Oslo"]
    works("tools")


def thinking() -> None:
    result = Agent(model("THINKER")).run_sync(QUESTION)
    parts = [part for message in result.all_messages() for part in message.parts]
    (thought,) = (part.content for part in parts if isinstance(part, ThinkingPart))
    assert thought.strip() == "It is in France."
    assert result.output == "Paris."
    works("thinking")


def responses() -> None:
    def of(variable: str) -> OpenAIResponsesModel:
        return OpenAIResponsesModel(os.environ[variable], provider=PROVIDER)

    answer = Agent(of("MODEL"), model_settings={"temperature": 0, "max_tokens": 16})
    assert "Paris" in answer.run_sync(QUESTION).output
    works("responses")
    agent = Agent(of("MODEL"), output_type=NativeOutput(Capital))
    assert isinstance(agent.run_sync(QUESTION).output, Capital)
    works("responses of a type")
    thinker = Agent(of("THINKER"))
    result = thinker.run_sync(QUESTION)
    parts = [part for message in result.all_messages() for part in message.parts]
    (thought,) = (part.content for part in parts if isinstance(part, ThinkingPart))
    assert (thought.strip(), result.output) == ("It is in France.", "Paris.")
    again = thinker.run_sync("And Italy?", message_history=result.all_messages())
    assert again.output == "Paris."
    works("responses with thinking")


chat()
structured()
tools()
thinking()
responses()
