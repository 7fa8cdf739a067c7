"""Conversation → prompt text, by the model's own template. Templates are files from strangers.

A GGUF carries a Jinja template, which runs in Jinja's sandbox with the names that Hugging Face's
`apply_chat_template` offers. A Modelfile's TEMPLATE is Go's text/template with Ollama's data and
functions, and wins over the GGUF's. A model with neither gets its turns' texts, one per line pair.
Neither engine has a limit of its own: the daemon ends a runner whose template does not come back,
and `localrun.runner.limits` bounds its memory.
"""

import datetime
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import gotpl
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from localrun.core import Message
from localrun.errors import TemplateFailed


def render_plain(messages: Sequence[Message]) -> str:
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


def _tojson(value: Any, indent: int | None = None) -> str:
    """JSON without HTML escapes, which models have not been trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


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

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that ends where the assistant's turn begins. Raises TemplateFailed."""
        turns = [_jinja_message(message) for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._tokens)
        except (TemplateFailed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None


def _jinja_message(message: Message) -> dict[str, Any]:
    """A turn as Hugging Face's templates read it; what a turn lacks is absent, not null."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        turn["reasoning_content"] = message.thinking
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


# Stands where the answer begins; what a template puts after it is for finished turns only.
_ANSWER = "\x00answer\x00"


class GoTemplate:
    """A Modelfile's TEMPLATE. Source: Ollama's template data and its two ways of rendering."""

    def __init__(self, source: str) -> None:
        self._takes_messages = ".Messages" in source
        if not self._takes_messages and ".Response" not in source:
            source += "{{ .Response }}"
        try:
            self._template = gotpl.Template(source, functions=_GO_FUNCTIONS)
        except gotpl.TemplateError as error:
            raise TemplateFailed(f"it does not compile: {error}") from None

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that ends where the assistant's turn begins. Raises TemplateFailed."""
        try:
            if self._takes_messages:
                return self._render_messages(messages)
            return self._render_turns(messages)
        except (TemplateFailed, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None

    def _run(self, **data: Any) -> str:
        empty = {"System": "", "Prompt": "", "Response": "", "Suffix": "", "Tools": []}
        flags = {"Think": False, "ThinkLevel": "", "IsThinkSet": False}
        return str(self._template.render({**empty, **flags, **data}))

    def _render_messages(self, messages: Sequence[Message]) -> str:
        turns: list[dict[str, Any]] = []
        for message in messages:
            if turns and message.role != "tool" and turns[-1]["Role"] == message.role:
                turns[-1]["Content"] += "\n\n" + message.content
            else:
                turns.append(_go_message(message))
        system = "\n\n".join(turn["Content"] for turn in turns if turn["Role"] == "system")
        return self._run(System=system, Messages=turns)

    def _render_turns(self, messages: Sequence[Message]) -> str:
        text, system, prompt = "", "", ""
        for message in messages:
            if message.role == "system":
                system = f"{system}\n\n{message.content}" if system else message.content
            elif message.role == "assistant":
                text += self._run(System=system, Prompt=prompt, Response=message.content)
                system = prompt = ""
            else:
                prompt = f"{prompt}\n\n{message.content}" if prompt else message.content
        last = self._run(System=system, Prompt=prompt, Response=_ANSWER)
        return text + last.partition(_ANSWER)[0]


def _go_message(message: Message) -> dict[str, Any]:
    return {
        "Role": message.role,
        "Content": message.content,
        "Thinking": message.thinking,
        "Images": [],
        "ToolCalls": [
            {
                "ID": call.id,
                "Function": {"Index": i, "Name": call.name, "Arguments": call.arguments},
            }
            for i, call in enumerate(message.tool_calls)
        ],
        "ToolName": message.tool_name,
        "ToolCallID": message.tool_call_id,
    }


def _day(offset_days: int) -> Callable[..., str]:
    def render(*_arguments: object) -> str:
        day = datetime.date.today() + datetime.timedelta(days=offset_days)
        return day.isoformat()

    return render


_GO_FUNCTIONS: dict[str, Callable[..., object]] = {
    "json": lambda value: json.dumps(value, ensure_ascii=False),
    "currentDate": _day(0),
    "yesterdayDate": _day(-1),
}


@lru_cache(maxsize=64)  # a model has one; names that share its weights may bring a few more
def go_template(source: str) -> GoTemplate:
    """The compiled template. Raises TemplateFailed."""
    return GoTemplate(source)
