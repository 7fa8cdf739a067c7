"""One daemon with scripted models that call tools, think, or say what they were asked."""

from collections.abc import Iterator
from typing import Any

import pytest
from asking import LARGE, TOO_LARGE
from live import Daemon, serving
from tool_models import (
    CALLER,
    OPEN_THINKING_TEMPLATE,
    TERSE_CALLER,
    THINKER,
    THINKING_TEMPLATE,
    TOOL_TEMPLATE,
)

_MODELS: dict[str, dict[str, Any]] = {
    "caller": dict(CALLER),
    "terse": dict(TERSE_CALLER),
    "thinker": dict(THINKER),
    "inside": {
        "chat_template": OPEN_THINKING_TEMPLATE,
        "pieces": ["It is ", "in France.", "</th", "ink>", "\n\nPa", "ris."],
    },
    "brief": {"chat_template": OPEN_THINKING_TEMPLATE, "pieces": ["Par", "is."]},
    "thinking-echo": {"chat_template": THINKING_TEMPLATE, "echo": True},
    "echo": {"chat_template": TOOL_TEMPLATE, "echo": True},
    "plain": {"pieces": ["Hello."]},
    "exact": {
        "chat_template": TOOL_TEMPLATE,
        "pieces": ['{"name": "weather", "arg', f'uments": {{"city": {LARGE}, "f": 0.5}}}}'],
    },
    "too-large": {"chat_template": TOOL_TEMPLATE, "pieces": [TOO_LARGE[:20], TOO_LARGE[20:]]},
    "talker": {
        "chat_template": TOOL_TEMPLATE,
        "pieces": ["Let me see.", *TERSE_CALLER["pieces"], "\n\nThat", " is all. \n"],
    },
}


@pytest.fixture(scope="session")
def tool_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Serves the models above; tests leave them as they are."""
    with serving(tmp_path_factory.mktemp("tools"), _MODELS) as daemon:
        yield daemon
