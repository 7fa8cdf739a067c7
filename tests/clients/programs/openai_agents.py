"""OpenAI's library for agents, which asks for responses. Prints what worked."""

import asyncio
import json
import os
from typing import Literal

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.items import ReasoningItem, ToolCallItem
from openai import AsyncOpenAI
from pydantic import BaseModel

CLIENT = AsyncOpenAI(base_url=f"{os.environ['OLLAMA_HOST']}/v1", api_key="unused")
QUESTION = "Name the capital of France."
GREEDY = ModelSettings(temperature=0, max_tokens=64)


def model(variable: str) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(os.environ[variable], openai_client=CLIENT)


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


async def chat() -> None:
    agent = Agent("a", instructions="Be brief.", model=model("MODEL"), model_settings=GREEDY)
    first = await Runner.run(agent, QUESTION)
    assert "Paris" in first.final_output
    works("responses")
    again = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "Why?"}])
    assert again.final_output
    works("chat with history")
    streamed = Runner.run_streamed(agent, QUESTION)
    kinds = [e.data.type async for e in streamed.stream_events() if e.type == "raw_response_event"]
    assert kinds.count("response.output_text.delta") > 2
    assert streamed.final_output == first.final_output
    works("responses, streamed")


async def structured() -> None:
    agent = Agent("a", model=model("MODEL"), output_type=Capital, model_settings=GREEDY)
    assert isinstance((await Runner.run(agent, QUESTION)).final_output, Capital)
    works("responses of a type")


async def tools() -> None:
    cities: list[str] = []

    @function_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        return f"sunny in {city}"

    agent = Agent("a", model=model("CALLER"), tools=[weather])
    try:
        await Runner.run(agent, "What is the weather in Oslo?", max_turns=3)
    except MaxTurnsExceeded as error:
        # A scripted model calls it again and again, with what was said so far in each request.
        items = error.run_data.new_items if error.run_data else []
        assert sum(isinstance(item, ToolCallItem) for item in items) == 3
    assert cities == ["Oslo"] * 3
    works("responses with tools")


async def thinking() -> None:
    result = await Runner.run(Agent("a", model=model("THINKER")), QUESTION)
    (thought,) = (item.raw_item for item in result.new_items if isinstance(item, ReasoningItem))
    assert thought.summary[0].text.strip() == "It is in France."
    assert result.final_output == "Paris."
    works("responses with thinking")


async def main() -> None:
    set_tracing_disabled(disabled=True)
    await chat()
    await structured()
    await tools()
    await thinking()


asyncio.run(main())
