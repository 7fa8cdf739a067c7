"""One daemon with scripted models that call tools, think, say what they were asked, or fail."""

from collections.abc import Iterator
from typing import Any

import pytest
from live import Daemon, serving
from tool_models import CALLER, THINKER, THINKING_TEMPLATE, TOOL_TEMPLATE

_EMOJI = "Grüße 👩‍💻 おはよう".encode()

_MODELS: dict[str, dict[str, Any]] = {
    "caller": dict(CALLER),
    "thinker": dict(THINKER),
    "thinking-echo": {"chat_template": THINKING_TEMPLATE, "echo": True},
    "echo": {"chat_template": TOOL_TEMPLATE, "echo": True},
    "emoji": {"pieces": [_EMOJI[i : i + 1] for i in range(len(_EMOJI))]},
    "counter": {"pieces": ["one, ", "two, ", "th", "ree, ", "four, ", "five"]},
    "endless": {"pieces": ["la "], "endless": True, "step_s": 0.01},
    "breaking": {"pieces": ["la "], "endless": True, "crash_at_forward": 4},
}


@pytest.fixture(scope="session")
def scripted_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Serves the models above; tests leave them as they are."""
    with serving(tmp_path_factory.mktemp("anthropic"), _MODELS) as daemon:
        yield daemon
