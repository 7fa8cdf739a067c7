"""Calls that have to come: what the grammars of each format allow is read as calls again."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from answers import TOOLS, Outcome, outcome, read
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from localrun.core import ChatPrompt, Message, SamplingParams, Think, Tool, ToolChoice
from localrun.errors import BadRequest
from localrun.ipc.messages import Submit
from localrun.runner.output.formats import FORMATS, GENERIC
from localrun.runner.output.style import Markup, Style, reader_of
from localrun.runner.prompt import forcing
from localrun.runner.prompt.forcing import constraint_of
from localrun.runner.structured.constraint import Constraint, ThinkTags, json_rule

_ROWS = {row.name: row for row in FORMATS} | {"json": GENERIC}
_CONTROLS = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|channel>",
    "<channel|>",
)
_END = 256
TAGS = ThinkTags("<think>", "</think>")
HARMONY = Markup(ThinkTags("<|channel|>", "final<|message|>"), is_harmony=True)
OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
NOW = '{"name": "now", "arguments": {}}'


class _Bytes:
    """A vocabulary of bytes, an end, and control tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = _END
    special_token_ids = ()
    tokens = (
        *(bytes((n,)) for n in range(256)),
        b"\xff<end>",
        *(b"\xff" + text.encode() for text in _CONTROLS),
    )

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError


_TOKENIZER = LLTokenizer(cast(TokenizerWrapper, _Bytes()))


def control_id(text: str) -> int | None:
    return _END + 1 + _CONTROLS.index(text) if text in _CONTROLS else None


def tokens_of(text: str) -> Iterator[int]:
    while text:
        control = next((one for one in _CONTROLS if text.startswith(one)), None)
        if control is not None:
            yield control_id(control) or 0
        else:
            yield from text[0].encode()
        text = text[len(control or text[0]) :]


def allows(grammar: str, text: str) -> bool:
    """Whether the text is a whole answer of the grammar."""
    matcher = LLMatcher(_TOKENIZER, '%llguidance {"no_forcing": true}\n' + grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(tokens_of(text))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def constraint(
    markup: Markup,
    choice: ToolChoice | None = None,
    *,
    tools: tuple[Tool, ...] = TOOLS,
    schema: str | None = None,
    think: Think = None,
    is_thinking: bool = False,
) -> Constraint | None:
    prompt = ChatPrompt((Message("user", "hi"),), (), tools, choice or ToolChoice(True), think)
    submit = Submit(1, prompt, SamplingParams(), 100, schema=schema)
    return constraint_of(submit, Style(markup, tools, is_thinking), control_id)


def grammar_of(markup: Markup, choice: ToolChoice | None = None, **wishes: Any) -> str:
    found = constraint(markup, choice, **wishes)
    assert found is not None
    return found.grammar


# (format, calls that must be allowed; the last one has several)
FORCED = [
    ("json", [NOW, OSLO, f"[{NOW}]", f"[{OSLO}, {NOW}]"]),
    ("tagged", [f"<tool_call>\n{NOW}\n</tool_call>",
                f"<tool_call>\n{OSLO}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>"]),
    ("mistral", [f"[TOOL_CALLS][{NOW}]", f"[TOOL_CALLS][{OSLO}, {NOW}]"]),
    ("llama", [NOW.replace("arguments", "parameters"),
               f"[{OSLO}, {NOW}]".replace("arguments", "parameters")]),
    ("gemma4", [NOW, f"[{OSLO}, {NOW}]"]),
    ("functiongemma", [NOW]),
    ("deepseek", [NOW]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "answers"), FORCED)
def test_what_the_grammar_allows_is_read_as_calls(form: str, answers: list[str]) -> None:
    markup = Markup(None, _ROWS[form], True)
    grammar = grammar_of(markup)
    for answer in answers:
        assert allows(grammar, answer)
        found, _ = outcome(read(reader_of(Style(markup, TOOLS)), [answer]))
        assert found == Outcome(calls=found.calls)
        assert {name for name, _ in found.calls} <= {"get_weather", "now"}
        assert found.calls
    for text in ("Certainly!", "", '{"name": "other", "arguments": {}}', "{}"):
        assert not allows(grammar, text)


@pytest.mark.parametrize("form", _ROWS)
def test_every_format_has_a_grammar(form: str) -> None:
    grammar = grammar_of(Markup(None, _ROWS[form], True))
    assert not LLMatcher.validate_grammar(grammar)


def test_one_call_where_several_are_not_wanted() -> None:
    single = ToolChoice(True, is_parallel=False)
    plain = grammar_of(Markup(), single)
    assert allows(plain, NOW)
    assert not allows(plain, f"[{NOW}]")
    tagged = grammar_of(Markup(None, _ROWS["tagged"]), single)
    one = f"<tool_call>\n{NOW}\n</tool_call>"
    assert allows(tagged, one)
    assert not allows(tagged, f"{one}\n{one}")


@pytest.mark.parametrize(("form", "between"), [("json", ", "), ("tagged", "\n")])
def test_calls_come_to_an_end(form: str, between: str) -> None:
    grammar = grammar_of(Markup(None, _ROWS[form]))
    one = NOW if form == "json" else f"<tool_call>\n{NOW}\n</tool_call>"
    around = "[{}]" if form == "json" else "{}"
    assert allows(grammar, around.format(between.join([one] * 16)))
    assert not allows(grammar, around.format(between.join([one] * 17)))


def test_only_the_tool_that_is_named() -> None:
    grammar = grammar_of(Markup(), ToolChoice(True, "now"))
    assert allows(grammar, NOW)
    assert not allows(grammar, OSLO)


def test_arguments_follow_the_schema_of_the_tool() -> None:
    grammar = grammar_of(Markup())
    assert not allows(grammar, OSLO.replace('"Oslo"', "5"))
    assert allows(grammar, OSLO.replace('"city": "Oslo"', '"days": 5'))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"properties": {"a": {"type": "string, integer"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}},
         "$defs": {"A": {"type": "integer"}}},
    ],
)  # fmt: skip
def test_strange_schemas_are_no_reason_to_refuse(parameters: dict[str, Any]) -> None:
    grammar = grammar_of(Markup(), tools=(Tool('say "hi"', "", parameters),))
    assert allows(grammar, json.dumps({"name": 'say "hi"', "arguments": {"a": 5}}))


def test_what_no_grammar_can_say_is_any_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(schema: str) -> str:
        if "pattern" in schema:
            raise BadRequest("properties.a.pattern", "cannot be expressed")
        return json_rule(schema)

    monkeypatch.setattr(forcing, "json_rule", refuse)
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    grammar = grammar_of(Markup(), tools=(Tool("f", "", parameters),))
    assert allows(grammar, '{"name": "f", "arguments": {"a": 5}}')


def test_a_marker_without_a_control_token_is_spelled() -> None:
    prompt = ChatPrompt((Message("user", "hi"),), (), TOOLS, ToolChoice(True))
    submit = Submit(1, prompt, SamplingParams(), 100)
    style = Style(Markup(None, _ROWS["tagged"]), TOOLS)
    found = constraint_of(submit, style, lambda _: None)
    assert found is not None
    assert '"<tool_call>"' in found.grammar
    assert not LLMatcher.validate_grammar(found.grammar)


# ---- with a schema

SCHEMA = '{"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}'


def test_a_call_or_an_answer_of_the_schema() -> None:
    free = ToolChoice()
    grammar = grammar_of(Markup(None, _ROWS["tagged"], True), free, schema=SCHEMA)
    assert allows(grammar, '{"answer": 5}')
    assert allows(grammar, f"<tool_call>\n{NOW}\n</tool_call>")
    assert not allows(grammar, "five")
    # Where calls are no JSON, the schema counts alone.
    only = grammar_of(Markup(None, _ROWS["gemma4"], True), free, schema=SCHEMA)
    assert allows(only, '{"answer": 5}')
    assert not allows(only, NOW)
    # A call that has to come wins.
    forced = grammar_of(Markup(), schema=SCHEMA)
    assert not allows(forced, '{"answer": 5}')
    assert allows(grammar_of(Markup(), free, tools=(), schema=SCHEMA), '{"answer": 5}')


def test_nothing_is_constrained_without_a_wish() -> None:
    assert constraint(Markup(), ToolChoice()) is None
    assert constraint(Markup(), ToolChoice(), tools=()) is None


# ---- with thinking


@pytest.mark.parametrize(
    ("think", "is_thinking", "tags"),
    [(None, False, TAGS), (True, True, TAGS), (False, False, None), (False, True, TAGS)],
)
def test_thinking_comes_first_where_the_model_thinks(
    think: Think, is_thinking: bool, tags: ThinkTags | None
) -> None:
    found = constraint(Markup(TAGS), think=think, is_thinking=is_thinking)
    assert found is not None
    assert (found.tags, found.is_thinking) == (tags, is_thinking)


def test_a_tag_that_is_more_than_a_control_token_counts_by_its_token() -> None:
    found = constraint(Markup(ThinkTags("<|channel>thought", "<channel|>")))
    assert found is not None
    assert found.tags == ThinkTags("<|channel>", "<channel|>")


@pytest.mark.parametrize("n_thoughts", [0, 1, 2])
def test_harmony_thinks_on_its_channel_and_answers_on_another(n_thoughts: int) -> None:
    thought = "<|channel|>analysis<|message|>so be it<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>"
    forced = constraint(HARMONY)
    assert forced is not None
    assert forced.tags is None
    answer = f"{thought * n_thoughts}{final}{NOW}"
    assert allows(forced.grammar, answer)
    assert not allows(forced.grammar, f"{thought * n_thoughts}{final}Now.")
    found, _ = outcome(read(reader_of(Style(HARMONY, TOOLS)), [answer]))
    assert found == Outcome("", "so be it" * n_thoughts, [("now", {})])
    grammar = grammar_of(HARMONY, ToolChoice(), schema=SCHEMA)
    assert allows(grammar, f'{thought * n_thoughts}{final}{{"answer": 5}}')
