"""litellm: one call, sent in three dialects. Prints what worked in all of them."""

import json
import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices

import litellm
from pydantic import BaseModel

litellm.suppress_debug_info = True
URL = os.environ["OLLAMA_HOST"]
MODEL, CALLER, THINKER = (os.environ[name] for name in ("MODEL", "CALLER", "THINKER"))
PROVIDERS = {"ollama_chat": URL, "openai": f"{URL}/v1", "anthropic": URL}
QUESTION = [{"role": "user", "content": "Name the capital of France."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}


class Capital(BaseModel):
    """A capital."""

    is_large: bool
    country: Literal["France", "Italy"]


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


def ask(provider: str, model: str = MODEL, **fields: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{model}",
        api_base=PROVIDERS[provider],
        api_key="unused",
        **{"messages": QUESTION, "max_tokens": 64, "temperature": 0} | fields,
    )


def chat() -> None:
    for provider in PROVIDERS:
        whole = ask(provider)
        assert "Paris" in whole.choices[0].message.content, provider
        assert whole.usage.prompt_tokens > 20
        assert whole.usage.completion_tokens > 0
    works("chat")
    for provider in PROVIDERS:
        parts = list(ask(provider, stream=True))
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == ask(provider).choices[0].message.content, provider
        assert parts[-1].choices[0].finish_reason == "stop", provider
    works("chat, streamed")
    for provider in PROVIDERS:
        short = ask(provider, max_tokens=2)
        assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 2)
        stopped = ask(provider, stop=["Paris"])
        assert "Paris" not in (stopped.choices[0].message.content or ""), provider
    works("limits and stop strings")


def tools() -> None:
    for provider in PROVIDERS:
        called = ask(provider, CALLER, tools=[WEATHER]).choices[0]
        (call,) = called.message.tool_calls
        assert call.function.name == "weather", provider
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        turns = [*QUESTION, called.message.model_dump(), result]
        again = ask(provider, CALLER, tools=[WEATHER], messages=turns)
        assert again.choices[0].message.tool_calls, provider
    works("tools")
    for provider in PROVIDERS:
        parts = list(ask(provider, CALLER, tools=[WEATHER], stream=True))
        built = litellm.stream_chunk_builder(parts)
        assert built is not None
        (call,) = built.choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Oslo"}, provider
    works("tools, streamed")


def structured() -> None:
    for provider in PROVIDERS:
        text = ask(provider, response_format=Capital).choices[0].message.content
        assert Capital.model_validate_json(text), provider
    works("structured output")


def thinking() -> None:
    for provider in PROVIDERS:
        message = ask(provider, THINKER).choices[0].message
        assert message.content == "Paris.", provider
        assert message.reasoning_content.strip() == "It is in France.", provider
    works("thinking")


def errors() -> None:
    refused = []
    for provider in PROVIDERS:
        try:
            ask(provider, "no-such-model")
        except (litellm.exceptions.APIError, litellm.exceptions.NotFoundError) as error:
            refused.append((error.status_code, "model 'no-such-model' not found" in str(error)))
    # Of Ollama's dialect it drops the status.
    assert [says_why for _, says_why in refused] == [True] * len(PROVIDERS), refused
    assert [status for status, _ in refused[1:]] == [404, 404], refused
    works("errors with status and text")


chat()
tools()
structured()
thinking()
errors()
