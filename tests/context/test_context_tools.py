"""Tools, calls, results and thinking in prompts: by published templates, by Go templates, and
where a template knows nothing of them."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from chat_templates import published_templates

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
from localrun.errors import BadRequest, Unsupported
from localrun.ipc.messages import Submit
from localrun.runner.fake import FakeVocab, Script
from localrun.runner.prompt.composer import Composer, Prepared
from localrun.runner.prompt.definitions import Asked
from localrun.runner.prompt.go_template import GoTemplate
from localrun.runner.prompt.histories import with_names
from localrun.runner.prompt.markup import TAGS, go_markup, jinja_markup
from localrun.runner.prompt.templates import JinjaTemplate
from modelstore.create import CreateRequest, create
from modelstore.header import Header
from modelstore.show import capabilities
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf

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


# ---- histories


def results(*wishes: dict[str, str]) -> list[Message]:
    named = [Message("tool", str(n), **wish) for n, wish in enumerate(wishes)]
    return [Message("assistant", "", tool_calls=(OSLO, LIMA)), *named]


@pytest.mark.parametrize(
    ("wishes", "ids"),
    [
        (({}, {}), [OSLO.id, LIMA.id]),
        (({"tool_name": "get_weather"}, {"tool_name": "get_weather"}), [OSLO.id, LIMA.id]),
        (({"tool_call_id": LIMA.id}, {"tool_call_id": OSLO.id}), [OSLO.id, LIMA.id]),
        (({"tool_call_id": LIMA.id}, {}), [OSLO.id, LIMA.id]),
        (({"tool_call_id": "other"}, {"tool_call_id": LIMA.id}), [LIMA.id, "other"]),
        (({"tool_call_id": "other"}, {"tool_name": "other"}), ["other", ""]),
    ],
)
def test_a_result_finds_its_call(wishes: tuple[dict[str, str], ...], ids: list[str]) -> None:
    named = with_names(results(*wishes))[1:]
    assert [message.tool_call_id for message in named] == ids
    known = [m for m in named if m.tool_call_id in (OSLO.id, LIMA.id)]
    assert all(m.tool_name == "get_weather" for m in known)


@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_results_are_in_the_order_of_their_calls(template: str) -> None:
    """Templates without ids pair them by it."""
    user, calls, oslo, lima = HISTORY
    more = (Message("assistant", "Again.", tool_calls=(OSLO, LIMA)), oslo, lima)
    late = (Message("assistant", "Again.", tool_calls=(OSLO, LIMA)), lima, oslo)
    expected = text_of(compose(template, user, calls, oslo, lima, *more))
    assert text_of(compose(template, user, calls, lima, oslo, *late)) == expected


def test_calls_without_ids_get_the_same_ones_each_time() -> None:
    bare = Message("assistant", "", tool_calls=(ToolCall("f", {}), ToolCall("g", {})))
    history = [bare, Message("tool", "1"), Message("tool", "2", tool_name="g")]
    named = with_names(history)
    assert named == with_names(history)
    ids = [call.id for call in named[0].tool_calls]
    assert len(set(ids)) == 2
    assert [(m.tool_call_id, m.tool_name) for m in named[1:]] == [(ids[0], "f"), (ids[1], "g")]


@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_what_programs_leave_out_of_a_result_does_not_change_the_prompt(template: str) -> None:
    """ollama-python drops ids, others drop names."""
    prompts = set()
    for has_id, has_name in itertools.product((True, False), repeat=2):
        result = Message(
            "tool",
            "it rains",
            tool_name="get_weather" if has_name else "",
            tool_call_id=OSLO.id if has_id else "",
        )
        call = Message("assistant", "", tool_calls=(OSLO,))
        prompts.add(text_of(compose(template, Message("user", "hi"), call, result)))
    assert len(prompts) == 1


def test_templates_that_are_strict_about_calls_get_them_their_way() -> None:
    short = "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    short += "{{ raise_exception('ids have nine characters') }}{% endif %}{{ c.id }}:"
    short += "{{ c.function.name }}{{ c.function.arguments.city }};{% endfor %}"
    short += "{{ m.content }}{{ m.tool_call_id }}.{% endfor %}"
    text = text_of(compose(short, *HISTORY))
    ids = [part.partition(":")[0].rpartition(".")[2] for part in text.split(";")[:2]]
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert f"it rains{ids[0]}." in text

    single = "{% for m in messages %}{% if m.tool_calls | length > 1 %}"
    single += "{{ raise_exception('one at a time') }}{% endif %}{% if m.tool_calls %}"
    single += "{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments.city }}"
    single += "{% else %}{{ m.content }}{% endif %}|{% endfor %}"
    assert text_of(compose(single, *HISTORY)) == (
        "How is it there?|Let me look.|get_weatherOslo|it rains|get_weatherLima|it is dry|"
    )


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


# ---- Go templates

GO_TOOLS = (
    "{{ if .Tools }}T{{ .Tools }}{{ range .Tools }}|{{ . }}|{{ .Function }}|{{ .Function.Name }}"
    "{{ range $name, $p := .Function.Parameters.Properties }} {{ $name }}={{ toTypeScriptType $p }}"
    "{{ end }}{{ json .Function.Parameters.Required }}{{ end }}{{ end }}{{ .Prompt }}"
)
GO_CALLS = (
    "{{ range .Messages }}{{ .Role }}:{{ .Content }}{{ if .ToolCalls }}<tool_call>"
    '{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}'
    "{{ range $k, $v := .Function.Arguments }}[{{ $k }}={{ $v }}]{{ end }}{{ end }}</tool_call>"
    "{{ end }}{{ if .ToolName }}({{ .ToolName }}){{ end }};{{ end }}{{ .Tools }}"
)


def test_go_templates_print_tools_as_json_and_have_their_fields() -> None:
    text = GoTemplate(GO_TOOLS).render([Message("user", "hi")], Asked((WEATHER,)))
    function = {"name": "get_weather", "description": WEATHER.description} | {
        "parameters": WEATHER.parameters
    }
    tool = {"type": "function", "function": function}
    assert text == (
        f"T{json.dumps([tool])}|{json.dumps(tool)}|{json.dumps(function)}|get_weather"
        ' city=string["city"]hi'
    )
    assert GoTemplate(GO_TOOLS).render([Message("user", "hi")]) == "hi"


def test_go_templates_print_arguments_as_json_in_their_order() -> None:
    call = ToolCall("f", {"z": 1, "a": "b"})
    history = [
        Message("assistant", "So.", tool_calls=(call, ToolCall("g", {}))),
        Message("tool", "rain", tool_name="f"),
    ]
    assert GoTemplate(GO_CALLS).render(history) == (
        'assistant:So.<tool_call>{"name": "f", "arguments": {"z": 1, "a": "b"}}[z=1][a=b]'
        '{"name": "g", "arguments": {}}</tool_call>;tool:rain(f);[]'
    )


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (None, "true  true"),
        (True, "true  true"),
        (False, "false  true"),
        ("high", "true high true"),
    ],
)
def test_go_templates_are_told_of_thinking(think: Think, expected: str) -> None:
    source = (
        "{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }}{{ range .Messages }}{{ if .Thinking }}"
        "<think>{{ .Thinking }}</think>{{ end }}{{ end }}"
    )
    assert text_of(compose(None, go=source, think=think)) == expected


@pytest.mark.parametrize(
    ("source", "opening", "form", "knows_tools"),
    [
        ("{{ .Prompt }}", None, "json", False),
        ("{{ range .Messages }}{{ if .Thinking }}<reason>\n{{ .Thinking }}\n</reason>{{ end }}"
         "{{ end }}", "<reason>", "json", False),
        ("{{ if .Tools }}{{ .Tools }}{{ end }}{{ range .Messages }}{{ if .ToolCalls }}[CALL] "
         "{{ range .ToolCalls }}{{ . }}{{ end }}{{ end }}{{ end }}", None, "inferred", True),
        (GO_CALLS, None, "tagged", True),
        ('{{ .Tools }}{{ range .Messages }}{{ range .ToolCalls }}{"name": "{{ .Function.Name }}"}'
         "{{ end }}{{ end }}", None, "json", True),
        ("<|start|><|channel|>analysis<|message|>{{ .Tools }}", "<|channel|>", "json", True),
    ],
)  # fmt: skip
def test_a_go_template_tells_tags_and_format(
    source: str, opening: str | None, form: str, knows_tools: bool
) -> None:
    markup = go_markup(source)
    assert (markup.tags.opening if markup.tags else None) == opening
    assert markup.form.name == form
    assert markup.knows_tools == knows_tools


def test_every_pair_of_tags_is_told_by_a_template_with_it() -> None:
    for tell, tags in TAGS:
        assert jinja_markup(f"x {tell} y {tags.closing}").tags == tags


# ---- choices


def test_a_choice_of_no_tool_is_refused() -> None:
    with pytest.raises(BadRequest, match="there is no tool `other`"):
        compose(CHATML, tools=(WEATHER,), choice=ToolChoice(True, "other"))
    with pytest.raises(BadRequest, match="there are no tools"):
        compose(CHATML, choice=ToolChoice(True))
