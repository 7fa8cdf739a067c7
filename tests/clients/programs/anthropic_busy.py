"""Anthropic's own client at a server with a key, one slot and one place to wait.

Prints what worked.
"""

import json
import os
from typing import Any

import anthropic
import httpx2

URL, MODEL, KEY = (os.environ[name] for name in ("OLLAMA_HOST", "MODEL", "KEY"))
ENDLESS: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 100_000,
    "messages": [{"role": "user", "content": "Sing."}],
}


def works(feature: str) -> None:
    print(json.dumps({"feature": feature, "outcome": "yes"}), flush=True)


def key() -> None:
    with anthropic.Anthropic(base_url=URL, api_key="sk-wrong", max_retries=0) as stranger:
        try:
            stranger.messages.count_tokens(model=MODEL, messages=ENDLESS["messages"])
        except anthropic.AuthenticationError as error:
            kind = error.type
    assert kind == "authentication_error"
    works("API key")


def overload() -> None:
    with anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0) as client:
        running = client.messages.create(**ENDLESS, stream=True)
        next(iter(running))
        waiting = client.messages.create(**ENDLESS, stream=True)
        statuses: list[int] = []

        def seen(response: httpx2.Response) -> None:
            statuses.append(response.status_code)
            if response.status_code == 503:
                assert int(response.headers["retry-after"]) > 0
                running.close()
                waiting.close()

        hooked = anthropic.DefaultHttpxClient(event_hooks={"response": [seen]})
        with anthropic.Anthropic(
            base_url=URL, api_key=KEY, max_retries=3, http_client=hooked
        ) as third:
            message = third.messages.create(**ENDLESS | {"max_tokens": 3})
        assert message.usage.output_tokens == 3
        assert statuses[0] == 503
        assert statuses[-1] == 200
    works("comes back when the server is busy")


key()
overload()
