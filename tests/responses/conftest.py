"""One daemon with scripted models that call tools, think, break off, or say their prompt."""

from collections.abc import Iterator
from typing import Any

import pytest
from live import Daemon, serving
from tool_models import CALLER, THINKER, THINKING_TEMPLATE, TOOL_TEMPLATE

_FAMILY = "👨‍👩‍👧".encode()
_MODELS: dict[str, dict[str, Any]] = {
    "plain": {"pieces": ["Hel", "lo ", "there", "."]},
    "caller": dict(CALLER),
    "thinker": dict(THINKER),
    # Talks, calls twice and talks again, in one answer.
    "all": {
        "chat_template": TOOL_TEMPLATE,
        "pieces": [
            *("Look. ", '<tool_call>\n{"name": "weather", "argu', 'ments": {"city": "Oslo"}}\n'),
            *("</tool_call>", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}'),
            *("\n</tool_call>", " So ", "much."),
        ],
    },
    "bytes": {"pieces": [_FAMILY[i : i + 1] for i in range(len(_FAMILY))]},
    "half": {"pieces": [b"cut ", b"\xf0\x9f", b"\x99\x82"]},
    "endless": {"pieces": ["on "], "endless": True, "step_s": 0.005},
    "breaks": {"pieces": ["la "], "endless": True, "crash_at_forward": 5},
    "echo": {"chat_template": TOOL_TEMPLATE, "echo": True},
    "thinking-echo": {"chat_template": THINKING_TEMPLATE, "echo": True},
}


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Serves the models above; tests leave them as they are."""
    with serving(
        tmp_path_factory.mktemp("responses"), _MODELS, MAX_LOADED_MODELS=len(_MODELS) + 2
    ) as daemon:
        yield daemon
