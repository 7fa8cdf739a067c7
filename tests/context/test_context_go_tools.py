"""Tools, calls and thinking by Go templates."""

import json

import pytest
from tool_prompts import WEATHER, compose, text_of

from localrun.core import (
    Message,
    Think,
    ToolCall,
)
from localrun.runner.prompt.definitions import Asked
from localrun.runner.prompt.go_template import GoTemplate
from localrun.runner.prompt.markup import TAGS, go_markup, jinja_markup

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
