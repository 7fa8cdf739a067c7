"""Conversation → prompt text, by the model's own template. Templates are files from strangers.

A GGUF carries a Jinja template, which runs in Jinja's sandbox with the names that Hugging Face's
`apply_chat_template` offers. A Modelfile's TEMPLATE (`go_template`) wins over it. A model with
neither gets its turns' texts, one per line pair. There is no limit here: the daemon ends a runner
whose template does not come back, and `localrun.runner.limits` bounds its memory.
"""

import datetime
import json
import re
from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from localrun.core import Message
from localrun.errors import TemplateFailed
from localrun.runner.prompt.definitions import NOTHING_ASKED, Asked, as_dicts

# A template that looks for it expects a turn of calls alone to have no content at all.
_ASKS_FOR_NONE = re.compile(r"content(?:['\"]\])?\s+is\s+(?:not\s+)?none")


def render_plain(messages: Sequence[Message], asked: Asked = NOTHING_ASKED) -> str:
    """The fallback without a template: what a base model continues."""
    return "\n\n".join(message.content for message in messages)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; for inference it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(problem: str) -> str:
    raise TemplateFailed(problem)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which models have not been trained on.

    Source: the filter's arguments in Hugging Face's `apply_chat_template`.
    """
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=(separators[0], separators[1]) if separators else None,
        sort_keys=sort_keys,
        default=list,  # what `map` makes of a list
    )


def _jinja_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


_JINJA = _jinja_environment()


class JinjaTemplate:
    """A GGUF's `tokenizer.chat_template`. Raises TemplateFailed when it does not compile."""

    def __init__(self, source: str, *, bos_text: str, eos_text: str) -> None:
        try:
            self._template = _JINJA.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateFailed(f"it does not compile: {error}") from None
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._asks_for_none = _ASKS_FOR_NONE.search(source) is not None

    def render(self, messages: Sequence[Message], asked: Asked = NOTHING_ASKED) -> str:
        """The prompt that ends where the assistant's turn begins. Raises TemplateFailed."""
        if self._asks_for_none and any(m.tool_calls and not m.content for m in messages):
            try:
                return self._render(messages, asked, empty=None)
            except TemplateFailed:
                pass  # it looks, but cannot do without
        return self._render(messages, asked, empty="")

    def _render(self, messages: Sequence[Message], asked: Asked, *, empty: str | None) -> str:
        turns = [_jinja_message(message, empty=empty) for message in messages]
        names = self._tokens | _jinja_names(asked)
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **names)
        except (TemplateFailed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None


def _jinja_names(asked: Asked) -> dict[str, Any]:
    """What templates are told by. Source: Hugging Face's names, and those of single publishers."""
    names: dict[str, Any] = {}
    if asked.tools:
        names["tools"] = as_dicts(asked.tools)
    if asked.think is not None:
        is_on = asked.think is not False
        names |= {"enable_thinking": is_on, "thinking": is_on, "reasoning": is_on}
    if isinstance(asked.think, str):
        names["reasoning_effort"] = asked.think
    return names


def _jinja_message(message: Message, *, empty: str | None) -> dict[str, Any]:
    """A turn as Hugging Face's templates read it; what a turn lacks is absent, not null.

    `empty` is the content of a turn that holds nothing but calls.
    """
    content = message.content or (empty if message.tool_calls else "")
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking:
        turn |= dict.fromkeys(("reasoning_content", "thinking", "reasoning"), message.thinking)
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_name:
        turn["name"] = message.tool_name
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn
