"""Tools, calls and templates to try, and the prompts that come of them."""

from localrun.core import (
    ChatPrompt,
    Message,
    Overflow,
    SamplingParams,
    Think,
    Tool,
    ToolCall,
    ToolChoice,
)
from localrun.ipc.messages import Submit
from localrun.runner.fake_script import FakeVocab, Script
from localrun.runner.prompt.composer import Composer, Prepared

WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "a city"}},
        "required": ["city"],
    },
)
NOW = Tool("what_time_is_it", "", {})
OSLO = ToolCall("get_weather", {"city": "Oslo"}, "call_aaaaaaaa")
LIMA = ToolCall("get_weather", {"city": "Lima"}, "call_bbbbbbbb")
HISTORY = (
    Message("user", "How is it there?"),
    Message("assistant", "Let me look.", tool_calls=(OSLO, LIMA)),
    Message("tool", "it rains", tool_call_id="call_aaaaaaaa"),
    Message("tool", "it is dry", tool_call_id="call_bbbbbbbb"),
)

CHATML = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
OPENING = PLAIN + "<think>\n{# </think> #}"
SWITCHED = PLAIN + (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def compose(
    template: str | None,
    *messages: Message,
    tools: tuple[Tool, ...] = (),
    choice: ToolChoice = ToolChoice(),  # noqa: B008 - a value
    think: Think = None,
    go: str | None = None,
    n_ctx: int = 100_000,
    schema: str | None = None,
    cuts: bool = True,
) -> Prepared:
    prompt = ChatPrompt(messages or (Message("user", "hi"),), (), tools, choice, think)
    composer = Composer(FakeVocab(Script(chat_template=template)), lambda _: None)
    overflow = Overflow(cuts=cuts)
    submit = Submit(1, prompt, SamplingParams(), n_ctx, overflow, go, schema=schema)
    return composer.compose(submit)


def text_of(prepared: Prepared) -> str:
    return bytes(token for token in prepared.tokens if token < 256).decode()
