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
from localrun.runner.prompt.forcing import constraint_of
from localrun.runner.structured.constraint import Constraint, ThinkTags

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
        {"properties": {"a": {"type": "string, integer"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}},
         "$defs": {"A": {"type": "integer"}}},
    ],
)  # fmt: skip
def test_strange_schemas_are_no_reason_to_refuse(parameters: dict[str, Any]) -> None:
    grammar = grammar_of(Markup(), tools=(Tool('say "hi"', "", parameters),))
    assert allows(grammar, json.dumps({"name": 'say "hi"', "arguments": {"a": 5}}))


@pytest.mark.parametrize(
    "parameters", [{}, {"type": "object"}, {"type": "object", "properties": {}, "required": []}]
)
def test_a_tool_without_parameters_is_called_without_any(parameters: dict[str, Any]) -> None:
    grammar = grammar_of(Markup(), tools=(Tool("now", "", parameters),))
    assert allows(grammar, json.dumps({"name": "now", "arguments": {}}))
    assert not allows(grammar, json.dumps({"name": "now", "arguments": {"a": 5}}))


_N = {"type": "integer"}
_AB = {"a": _N, "b": {"type": "string"}}
_CHAIN: dict[str, Any] = _N
for _ in range(60):
    _CHAIN = {"type": "object", "properties": {"c": _CHAIN}, "required": ["c"]}


def _both(**a: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**_AB, "a": a}, "required": ["a", "b"]}


# (parameters, the places that are let go, arguments that are taken, arguments that are not)
LOOSENED: list[tuple[Any, str, list[Any], list[Any]]] = [
    (_both(type="array", items=_N, uniqueItems=True), "properties.a.uniqueItems",
     [{"a": [1, 1], "b": "x"}], [{"a": ["x"], "b": "x"}, {"a": [], "b": 1}, {"a": []}]),
    (_both(type="bogus"), "properties.a.type",
     [{"a": 5, "b": "x"}, {"a": {}, "b": "x"}], [{"a": 5, "b": 5}, {"b": "x"}]),
    ({**_both(), "properties": {"a": None, "b": {"type": "string"}}}, "properties.a",
     [{"a": 5, "b": "x"}], [{"a": 5, "b": 5}, {"a": 5}, {"a": 5, "b": "x", "c": 1}]),
    (_both(**{"$ref": "#"}), "properties.a.$ref", [{"a": 5, "b": "x"}], [{"a": 5}]),
    (_both(**{"$ref": "#/$defs/x"}), "properties.a.$ref", [{"a": 5, "b": "x"}], [{"a": 5}]),
    (_both(type="string", pattern="(?=x)", maxLength=2), "properties.a.pattern",
     [{"a": "yy", "b": "x"}], [{"a": "yyy", "b": "x"}, {"a": 5, "b": "x"}]),
    (_both(type="array", items=_both(type="string", pattern="(?=x)")),
     "properties.a.items.properties.a.pattern",
     [{"a": [{"a": "y", "b": ""}], "b": "x"}], [{"a": [{"a": 5, "b": ""}], "b": "x"}]),
    (_both(oneOf=[{"type": "string"}, {"maxLength": 3}]), "properties.a.oneOf",
     [{"a": "yyyy", "b": "x"}], [{"a": 5}]),
    (_both(type="object", properties={"c.d": {"type": "string", "not": {}}}),
     "properties.a.properties.c.d.not",
     [{"a": {"c.d": "x"}, "b": "x"}], [{"a": {"c.d": 5}, "b": "x"}]),
    ({**_both(), "not": {}, "patternProperties": 5}, "not",
     [{"a": 5, "b": "x"}], [{"a": 5, "b": 5}]),
    ({**_both(), "patternProperties": {"(?=x)": _N}, "additionalProperties": False},
     "patternProperties", [{"a": 5, "b": "x", "x": "x"}], [{"a": 5, "b": 5}]),
    (_both(allOf=[{"anyOf": [{"properties": {f"{i}{j}": _N}, "required": [f"{i}{j}"]}
                             for j in "abc"]} for i in range(12)], type="object"),
     "properties.a", [{"a": {}, "b": "x"}], [{"a": {}, "b": 5}, {"a": {}}]),
    (_both(type="object", properties={f"p{i}": _N for i in range(3000)}),
     "properties.a.properties", [{"a": {"p1": 1, "p2999": "x"}, "b": "x"}],
     [{"a": {"p1": "x"}, "b": "x"}]),
    ({**_both(), "properties": {**_AB, "a": _CHAIN}}, "properties.a",
     [], [{"a": 5, "b": 5}, {"a": 5, "b": "x"}]),
    ({"type": "object", "properties": {"b": {"type": "string", "description": "x" * (300 << 10)}}},
     "", [{"b": "x"}], [{"b": 5}]),
    ({"type": "object", "properties": {f"p{i}": {"allOf": [{"type": "string"}, {"pattern": "^x"}]}
                                       for i in range(20)}},
     "pattern", [{"p1": "y"}], [{"p1": 5}]),
    (_both(const=123456789012345678901234567890), "properties.a.const",
     [{"a": 5, "b": "x"}], [{"a": 5, "b": 5}]),
]  # fmt: skip


def _call_of(arguments: Any, name: str = "f") -> str:
    return json.dumps({"name": name, "arguments": arguments})


@pytest.mark.parametrize(("parameters", "place", "taken", "refused"), LOOSENED)
def test_all_but_what_no_grammar_can_say_holds(
    parameters: Any, place: str, taken: list[Any], refused: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    tools = (Tool("f", "", parameters), Tool("g", "", _both(type="integer")))
    grammar = grammar_of(Markup(), tools=tools)
    assert [one for one in taken if not allows(grammar, _call_of(one))] == []
    assert [one for one in refused if allows(grammar, _call_of(one))] == []
    # The other tool is held to as before.
    assert allows(grammar, _call_of({"a": 5, "b": "x"}, "g"))
    assert not allows(grammar, _call_of({"a": "x", "b": "x"}, "g"))
    told = [record.getMessage() for record in caplog.records]
    assert [("the tool f " in text, place in text) for text in told] == [(True, True)] * bool(place)
    found = constraint(Markup(), tools=tools)
    assert found is not None
    assert (place in "".join(found.loosened), not found.loosened) == (True, not place)
    assert all(one.startswith("f: ") for one in found.loosened)


def test_places_that_are_told_of_many_tools_have_a_bound() -> None:
    tools = tuple(Tool(f"f{n}", "", _both(pattern="(?=x)")) for n in range(50))
    found = constraint(Markup(), tools=tools)
    assert found is not None
    assert found.loosened == tuple(f"f{n}: properties.a.pattern" for n in range(32))


def test_a_strict_tool_is_held_to_in_whole_or_refused() -> None:
    path = "tools[3].function.parameters"
    bad = Tool("f", "", _both(type="array", uniqueItems=True), path)
    with pytest.raises(BadRequest) as caught:
        grammar_of(Markup(), tools=(bad,))
    assert caught.value.path == f"{path}.properties.a.uniqueItems"
    with pytest.raises(BadRequest) as caught:
        grammar_of(Markup(), tools=(Tool("f", "", _both(pattern="(?=x)"), path),))
    assert caught.value.path == f"{path}.properties.a.pattern"
    # Where no call has to come, or that of another, nothing is held to it.
    assert constraint(Markup(), ToolChoice(), tools=(bad,)) is None
    assert grammar_of(Markup(), ToolChoice(True, "now"), tools=(bad, Tool("now")))
    good = Tool("f", "", _both(type="integer"), path)
    assert allows(grammar_of(Markup(), tools=(good,)), _call_of({"a": 5, "b": "x"}))


@pytest.mark.parametrize("reference", ["#", "#/$defs/n", "#/properties/c", "#/definitions/o/items"])
@pytest.mark.parametrize("form", ["json", "llama"])
def test_what_arguments_refer_to_is_found(reference: str, form: str) -> None:
    node = {"type": "object", "properties": {"c": {"type": "object", "properties": {"n": _N}}}}
    parameters = {
        **node,
        "properties": {**node["properties"], "d": {"$ref": reference}},  # type: ignore[dict-item]
        "$defs": {"n": node},
        "definitions": {"o": {"items": node}},
    }
    grammar = grammar_of(Markup(None, _ROWS[form]), tools=(Tool("f", "", parameters),))
    key = "parameters" if form == "llama" else "arguments"
    inner = {"n": 5} if reference == "#/properties/c" else {"c": {"n": 5}}
    assert allows(grammar, json.dumps({"name": "f", key: {"d": inner}}))
    assert not allows(grammar, json.dumps({"name": "f", key: {"d": {"c": 5, "n": "x"}}}))


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
