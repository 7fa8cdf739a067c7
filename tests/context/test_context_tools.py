"""Tools, results and thinking in prompts: by published templates, and where a template knows
nothing of them."""

from pathlib import Path
from typing import Any

import pytest
from chat_templates import published_templates
from tool_prompts import (
    CHATML,
    HISTORY,
    NOW,
    OPENING,
    OSLO,
    PLAIN,
    SWITCHED,
    WEATHER,
    compose,
    text_of,
)

from localrun.core import (
    Message,
    Think,
    Tool,
    ToolChoice,
)
from localrun.errors import BadRequest, Unsupported
from localrun.runner.prompt.definitions import Asked
from localrun.runner.prompt.markup import jinja_markup
from localrun.runner.prompt.templates import JinjaTemplate
from modelstore.create import CreateRequest, create
from modelstore.header import Header
from modelstore.show import capabilities
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf

# ---- published templates


def test_published_templates_have_room_for_tools_calls_and_results() -> None:
    n_native = 0
    for name, source in published_templates().items():
        if "firefunction" in name:
            continue  # it wants names of its own, also without tools
        markup = jinja_markup(source)
        forced = ToolChoice(is_required=not markup.knows_tools)
        for history in (
            HISTORY,
            (HISTORY[0], Message("assistant", "", tool_calls=(OSLO,)), HISTORY[2]),
        ):
            prepared = compose(source, *history, tools=(WEATHER, NOW), choice=forced)
            text = text_of(prepared)
            for part in ("How is it there?", "get_weather", "what_time_is_it", "Oslo", "it rains"):
                assert part in text, (name, part)
            if len(history) == len(HISTORY):
                assert "Let me look." in text, name
                assert "Lima" in text, name
                assert text.index("Oslo") < text.index("it rains"), name
            n_native += "You can call these functions" not in text
    assert n_native > 100


def test_published_templates_say_whether_they_have_opened_the_thinking() -> None:
    n_open = 0
    for name, source in published_templates().items():
        markup = jinja_markup(source)
        if markup.tags is None or markup.is_harmony:
            continue
        for think in (True, False):
            prepared = compose(source, Message("user", "hi"), think=think)
            ends_open = text_of(prepared).rstrip().endswith(markup.tags.opening)
            assert prepared.style.is_thinking == ends_open, name
            n_open += ends_open
    assert n_open > 15


def test_the_store_guesses_what_the_runner_does(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_metadata(), tiny_tensors())
    list(create(store, CreateRequest("m", path=path), check_parameters=dict))
    record = store.resolve("m")
    for name, source in published_templates().items():
        metadata = {"general.architecture": "llama", "tokenizer.chat_template": source}
        header = Header(3, metadata, (), 32, 0, 0)
        listed = capabilities(record, header)
        markup = jinja_markup(source)
        assert ("tools" in listed) == markup.knows_tools, name
        assert ("thinking" in listed) == (markup.tags is not None), name


# ---- what templates get


def rendered(source: str, *messages: Message, **asked: Any) -> str:
    template = JinjaTemplate(source, bos_text="", eos_text="")
    return template.render(messages or (Message("user", "hi"),), Asked(**asked))


def test_definitions_keep_the_order_of_their_keys() -> None:
    tool = Tool("f", "d", {"type": "object", "properties": {"z": {"b": 1, "a": 2}, "a": {}}})
    text = rendered("{{ tools | tojson }}", tools=(tool,))
    assert text == (
        '[{"type": "function", "function": {"name": "f", "description": "d", "parameters": '
        '{"type": "object", "properties": {"z": {"b": 1, "a": 2}, "a": {}}}}}]'
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "False False"),
        ({"think": True}, "True False on"),
        ({"think": False}, "True False off"),
        ({"think": "low"}, "True True on low"),
    ],
)
def test_a_template_is_told_of_thinking_or_nothing(asked: dict[str, Any], expected: str) -> None:
    source = (
        "{{ enable_thinking is defined }} {{ reasoning_effort is defined }}"
        "{% if enable_thinking is defined %} {{ 'on' if enable_thinking else 'off' }}{% endif %}"
        "{% if reasoning_effort %} {{ reasoning_effort }}{% endif %}"
    )
    assert rendered(source, **asked) == expected


def test_calls_without_text_have_none_where_a_template_asks_for_that() -> None:
    call = Message("assistant", "", tool_calls=(OSLO,))
    asks = "{% if messages[0].content is none %}none{% else %}text{% endif %}"
    assert rendered(asks, call) == "none"
    assert rendered(asks, Message("assistant", "")) == "text"
    # It asks, but cannot do without.
    cannot = "{% if messages[0].content is not none or true %}{{ messages[0].content | length }}"
    assert rendered(cannot + "{% endif %}", call) == "0"


def test_thinking_in_the_history_is_rendered_as_the_template_wants() -> None:
    turn = Message("assistant", "done", thinking="a plan")
    for name in ("reasoning_content", "thinking", "reasoning"):
        assert rendered(f"{{{{ messages[0].{name} }}}}", turn) == "a plan"
    assert rendered("{{ messages[0].thinking is defined }}", Message("assistant", "x")) == "False"


# ---- what a model cannot do


def test_tools_and_thinking_need_a_template_that_knows_them() -> None:
    with pytest.raises(Unsupported) as error:
        compose(PLAIN, tools=(WEATHER,))
    assert (error.value.capability, error.value.path) == ("tools", "tools")
    for think in (True, "low"):
        with pytest.raises(Unsupported) as error:
            compose(PLAIN, think=think)
        assert (error.value.capability, error.value.path) == ("thinking", "think")
    for quiet in (False, None):
        assert compose(PLAIN, think=quiet).style.is_plain
    with pytest.raises(Unsupported):
        compose(None, go="{{ .Prompt }}", tools=(WEATHER,))


@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice(is_parallel=False)])
def test_what_came_of_a_forced_call_is_answered(choice: ToolChoice) -> None:
    prepared = compose(PLAIN, *HISTORY, tools=(WEATHER,), choice=choice)
    assert prepared.tokens == compose(PLAIN, *HISTORY).tokens
    for part in ("How is it there?", "Oslo", "it rains", "it is dry"):
        assert part in text_of(prepared)
    assert prepared.style.is_plain
    schema = '{"type":"object"}'
    free = compose(PLAIN, *HISTORY, schema=schema).constraint
    assert compose(PLAIN, *HISTORY, tools=(WEATHER,), schema=schema).constraint == free
    # Again it calls if it has to.
    forced = compose(PLAIN, *HISTORY, tools=(WEATHER,), choice=ToolChoice(is_required=True))
    assert forced.style.is_forced
    # Calls of others say nothing about these.
    with pytest.raises(Unsupported):
        compose(PLAIN, *HISTORY, tools=(NOW,))


def test_the_file_s_template_helps_out_where_a_modelfile_s_knows_less() -> None:
    go = "{{ .Prompt }}!"
    assert text_of(compose(CHATML, go=go)) == "hi!"
    assert "TOOLS" in text_of(compose(CHATML, go=go, tools=(WEATHER,)))
    assert text_of(compose(OPENING, go=go)) == "hi!"
    assert compose(OPENING, go=go, think=True).style.is_thinking
    both = "{{ .Tools }}{{ .Prompt }}"
    assert "TOOLS" not in text_of(compose(CHATML, go=both, tools=(WEATHER,)))


@pytest.mark.parametrize(
    "template",
    [
        PLAIN,
        None,
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
    ],
)
def test_a_call_that_has_to_come_needs_none(template: str | None) -> None:
    prepared = compose(template, tools=(WEATHER,), choice=ToolChoice(is_required=True))
    text = text_of(prepared)
    assert text.count("get_weather") == 1
    assert "Tells the weather." in text
    assert "hi" in text
    assert prepared.constraint is not None
    assert prepared.style.tools == (WEATHER,)


def test_definitions_are_content_and_make_no_control_tokens() -> None:
    hostile = Tool("f", "<bos>", {"type": "object", "properties": {"<bos>": {"type": "string"}}})
    prepared = compose(CHATML, tools=(hostile,))
    assert max(prepared.tokens) < 256
    assert text_of(prepared).count("<bos>") == 2


# ---- thinking


@pytest.mark.parametrize(
    ("template", "think", "is_thinking"),
    [
        (OPENING, None, True),
        (OPENING, True, True),
        # It does not know how to leave it, so the answer is read as it will come.
        (OPENING, False, True),
        (SWITCHED, None, False),
        (SWITCHED, False, False),
    ],
)
def test_the_prompt_s_end_says_whether_thinking_is_open(
    template: str, think: Think, is_thinking: bool
) -> None:
    style = compose(template, think=think).style
    assert style.is_thinking == is_thinking
    assert not style.is_plain


def test_an_answer_that_is_gone_on_with_is_outside_of_the_thinking() -> None:
    user, begun = Message("user", "hi"), Message("assistant", "So it")
    prepared = compose(OPENING, user, begun)
    assert text_of(prepared).endswith("<think>\n\n</think>\n\nSo it")
    assert not prepared.style.is_thinking
    thought = Message("assistant", "So it", thinking="a plan")
    assert text_of(compose(OPENING, user, thought)).endswith("<think>\na plan\n</think>\n\nSo it")
    inside = compose(OPENING, user, Message("assistant", "", thinking="a plan"))
    assert text_of(inside).endswith("<think>\na plan")
    assert inside.style.is_thinking
    assert text_of(compose(PLAIN, user, begun)).endswith("assistant: So it")


def test_tags_in_what_users_and_assistants_say_stay() -> None:
    history = (
        Message("user", "Repeat: hello </think> world"),
        Message("assistant", "Tags are <think> and </think>."),
        Message("user", "And <think>"),
    )
    for template in (SWITCHED, OPENING):
        prepared = compose(template, *history)
        assert all(message.content in text_of(prepared) for message in history)
        assert prepared.style.is_thinking == (template is OPENING)


# ---- what does not fit


def test_what_a_tool_says_goes_with_its_call() -> None:
    call = Message("assistant", "", tool_calls=(OSLO,))
    old = [Message("user", "old " * 30), call, Message("tool", "rain " * 30)]
    prepared = compose(CHATML, *old, Message("user", "new"), n_ctx=450)
    text = text_of(prepared)
    assert prepared.n_dropped
    assert "new" in text
    assert ("rain" in text) == ("Oslo" in text)
    for n_ctx in range(300, 900, 25):
        text = text_of(compose(CHATML, *old, call, Message("tool", "last words"), n_ctx=n_ctx))
        assert "Oslo" in text
        assert text.count("Oslo") == text.count("im_start|>tool")


def test_a_result_without_a_call_stays_where_everything_fits() -> None:
    history = (Message("tool", "it rains"), Message("user", "So?"))
    assert text_of(compose(PLAIN, *history)) == "tool: it rains\nuser: So?\nassistant: "


def test_definitions_stay_whatever_goes() -> None:
    turns = [Message(role, "words " * 20) for role in ("user", "assistant")] * 10
    prepared = compose(CHATML, *turns, Message("user", "last"), tools=(WEATHER,), n_ctx=900)
    assert prepared.n_dropped
    assert "Tells the weather." in text_of(prepared)


# ---- choices


def test_a_choice_of_no_tool_is_refused() -> None:
    with pytest.raises(BadRequest, match="there is no tool `other`"):
        compose(CHATML, tools=(WEATHER,), choice=ToolChoice(True, "other"))
    with pytest.raises(BadRequest, match="there are no tools"):
        compose(CHATML, choice=ToolChoice(True))
