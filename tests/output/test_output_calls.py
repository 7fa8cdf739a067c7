"""Calls in every format, however the text is cut: what is one, what is none, and that nothing of
the text is lost."""

import json
import re
from typing import Any

import pytest
from answers import TOOLS, Outcome, call_reader, cuts, outcome, read
from call_rows import JSON_LIMA, JSON_OSLO, LIMA, OSLO, ROWS, results

from localrun.core import Tool, ToolCall
from localrun.runner.output.calls import CallReader, new_call_id
from localrun.runner.output.formats import GENERIC, format_of, inferred
from localrun.runner.output.offered import Offered
from localrun.runner.output.parts import Called, Said

# (format, an answer, its text, its calls)
WELL_FORMED: list[tuple[str, str, str, list[Any]]] = [
    ("tagged", f"<tool_call>\n{JSON_OSLO}\n</tool_call>", "", [OSLO]),
    ("tagged", f"Let me look.\n\n<tool_call>\n{JSON_OSLO}\n</tool_call>", "Let me look.", [OSLO]),
    (
        "tagged",
        f"<tool_call>\n{JSON_OSLO}\n</tool_call>\n<tool_call>\n{JSON_LIMA}\n</tool_call>",
        "",
        [OSLO, LIMA],
    ),
    ("tagged", f"<tool_call>{JSON_OSLO}</tool_call>\n\nThat is all.", "That is all.", [OSLO]),
    ("tagged", '<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    (
        "tagged",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=exact>\ntrue\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [("get_weather", {"city": "Oslo", "days": 3, "exact": True})],
    ),
    (
        "tagged",
        "<tool_call><function=write><parameter=text>\ndef f():\n    return 1 < 2\n\n</parameter>"
        "</function></tool_call>",
        "",
        [("write", {"text": "def f():\n    return 1 < 2\n"})],
    ),
    (
        "tagged",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>5</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>5</arg_value>\n"
        "<arg_key>units</arg_key>\n<arg_value>null</arg_value>\n</tool_call>",
        "",
        [("get_weather", {"city": "5", "days": 5, "units": None})],
    ),
    ("tagged", "<tool_call>now</tool_call>", "", [("now", {})]),
    ("llama", '{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", [OSLO]),
    ("llama", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}', "", [OSLO]),
    (
        "llama",
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}; '
        '{"name": "get_weather", "parameters": {"city": "Lima"}}',
        "",
        [OSLO, LIMA],
    ),
    ("llama", '<|python_tag|>get_weather(city="Oslo")', "", [OSLO]),
    ("mistral", f"[TOOL_CALLS][{JSON_OSLO}, {JSON_LIMA}]", "", [OSLO, LIMA]),
    ("mistral", f"[TOOL_CALLS] [{JSON_OSLO}]", "", [OSLO]),
    ("mistral", 'I see.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}', "I see.", [OSLO]),
    (
        "mistral",
        '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Oslo"}'
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Lima"}',
        "",
        [OSLO, LIMA],
    ),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:2}"
        "<end_function_call>",
        "",
        [("get_weather", {"city": "Oslo", "days": 2})],
    ),
    (
        "gemma4",
        '<|tool_call>call:write{text:<|"|>say "hi", {you}<|"|>}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        "",
        [("write", {"text": 'say "hi", {you}'}), ("now", {})],
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [OSLO],
    ),
    (
        "deepseek",
        "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        '<｜tool▁sep｜>get_weather\n```json\n{"city": "Lima"}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "So.",
        [OSLO, LIMA],
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        [OSLO],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[get_weather(city='Oslo'), now()]<|tool_call_end|>Checking.",
        "Checking.",
        [OSLO, ("now", {})],
    ),
    (
        "olmo3",
        '<function_calls>get_weather(city="Oslo", exact=true)\nnow()</function_calls>',
        "",
        [("get_weather", {"city": "Oslo", "exact": True}), ("now", {})],
    ),
    (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Oslo"}}\n]<|END_ACTION|>',
        "",
        [OSLO],
    ),
    (
        "action",
        'Action: ```json\n[{"tool_name": "get_weather", "parameters": {"city": "Oslo"}}]\n```',
        "",
        [OSLO],
    ),
    (
        "minimax",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>'
        "\n</invoke>\n</minimax:tool_call>",
        "",
        [OSLO],
    ),
    (
        "seed",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n"
        "</seed:tool_call>",
        "",
        [OSLO],
    ),
    ("function_tag", '<function=get_weather>{"city": "Oslo"}</function>', "", [OSLO]),
    ("nemotron", f"<TOOLCALL>[{JSON_OSLO}]</TOOLCALL>", "", [OSLO]),
    ("apertus", '<|tools_prefix|>[{"get_weather": {"city": "Oslo"}}]<|tools_suffix|>', "", [OSLO]),
    ("tool_calls", f"<tool_calls>\n{JSON_OSLO}\n{JSON_LIMA}\n</tool_calls>", "", [OSLO, LIMA]),
    ("granite", f"<|tool_call|>[{JSON_OSLO}]", "", [OSLO]),
    ("functools", f" functools[{JSON_OSLO}]", "", [OSLO]),
    ("json", JSON_OSLO, "", [OSLO]),
    ("json", f"\n [{JSON_OSLO},\n {JSON_LIMA}]\n", "", [OSLO, LIMA]),
    ("json", f"```json\n{JSON_OSLO}\n```", "", [OSLO]),
    ("json", f"{JSON_OSLO}\nDone.", "Done.", [OSLO]),
    ("json", f'{{"tool_calls": [{JSON_OSLO}]}}', "", [OSLO]),
    (
        "json",
        '{"type": "function", "function": {"name": "now", "arguments": "{}"}}',
        "",
        [("now", {})],
    ),
    # Whatever the format: models fall back on it.
    ("tagged", JSON_OSLO, "", [OSLO]),
    ("mistral", f"[{JSON_OSLO}]", "", [OSLO]),
    ("gemma4", JSON_OSLO, "", [OSLO]),
]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), WELL_FORMED)
def test_a_call_is_the_same_however_the_answer_is_cut(
    form: str, answer: str, text: str, calls: list[Any]
) -> None:
    for found, n_chars, pieces in results(ROWS[form], answer):
        assert found == Outcome(text, "", calls), pieces
        assert n_chars == len(answer)


def test_every_row_of_the_table_has_an_answer_above() -> None:
    assert {form for form, *_ in WELL_FORMED} == set(ROWS)


# What models write that is not quite right: what it means is clear.
REPAIRED: list[tuple[str, str, list[Any]]] = [
    ("tagged", f"<tool_call>{JSON_OSLO}]</tool_call>", [OSLO]),
    ("tagged", f"<tool_call>{JSON_OSLO}}}</tool_call>", [OSLO]),
    ("tagged", f"<tool_call>{JSON_OSLO[:-1]}</tool_call>", [OSLO]),
    ("tagged", f"<tool_call>{JSON_OSLO}", [OSLO]),
    ("tagged", f"<tool_call>{JSON_OSLO[:-1]}", [OSLO]),
    ("tagged", f"<tool_call>{JSON_OSLO}<tool_call>{JSON_LIMA}</tool_call>", [OSLO, LIMA]),
    ("tagged", f"<tool_call>{JSON_OSLO}{JSON_LIMA}</tool_call>", [OSLO, LIMA]),
    ("json", f"{JSON_OSLO}}}", [OSLO]),
    ("json", f"{JSON_OSLO}{JSON_LIMA}", [OSLO, LIMA]),
    ("json", JSON_OSLO[:-1], [OSLO]),
    ("json", '{"name": "get_weather", "arguments": {"city": "Oslo",},}', [OSLO]),
    ("json", '{"name": "get_weather", "arguments": {\'city\': \'Oslo\'}}', [OSLO]),
    ("json", '{"name": "get_weather", "arguments": {city: "Oslo"}}', [OSLO]),
    (
        "json",
        '{"name": "get_weather", "arguments": {"exact": True, "units": None}}',
        [("get_weather", {"exact": True, "units": None})],
    ),
    (
        "tagged",
        '<tool_call>{"name": "write", "arguments": {"text": "a = 1\n\tb = 2\n"}}</tool_call>',
        [("write", {"text": "a = 1\n\tb = 2\n"})],
    ),
    # The end of a call inside of a text is none.
    (
        "tagged",
        '<tool_call>{"name": "write", "arguments": {"text": "</tool_call> ends it"}}</tool_call>',
        [("write", {"text": "</tool_call> ends it"})],
    ),
    # Numbers are what they are, however long, and half a character is none.
    (
        "json",
        '{"name": "get_weather", "arguments": {"days": 123456789012345678901234567890}}',
        [("get_weather", {"days": 123456789012345678901234567890})],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[get_weather(days=-99999999999999999999)]<|tool_call_end|>",
        [("get_weather", {"days": -99999999999999999999})],
    ),
    (
        "tagged",
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>99999999999999999999</arg_value>"
        "</tool_call>",
        [("get_weather", {"days": 99999999999999999999})],
    ),
    # Where all values are written as texts, one that is no number stays what was written.
    (
        "tagged",
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>1e400</arg_value></tool_call>",
        [("get_weather", {"days": "1e400"})],
    ),
    (
        "json",
        '{"name": "write", "arguments": {"text": "\\ud83d\\ude00 \\ud83d"}}',
        [("write", {"text": "😀 \ufffd"})],
    ),
    # Arguments that break the schema are still what the model wants.
    (
        "json",
        '{"name": "get_weather", "arguments": {"days": "many"}}',
        [("get_weather", {"days": "many"})],
    ),
]


@pytest.mark.parametrize(("form", "answer", "calls"), REPAIRED)
def test_what_is_clear_is_repaired(form: str, answer: str, calls: list[Any]) -> None:
    for found, n_chars, pieces in results(ROWS[form], answer):
        assert found == Outcome("", "", calls), pieces
        assert n_chars == len(answer)
        json.dumps(found.calls).encode()


# No calls: all of it is what the model says.
TEXTS = [
    ("json", '{"city": "Oslo"}'),
    ("json", '{"name": "Ada", "born": 1815}'),
    ("json", '{"name": "get_news", "arguments": {}}'),
    ("json", '{"name": "get_weather", "note": "is a tool"}'),
    ("json", '[{"name": "now"}, {"name": "Ada"}]'),
    ("json", "{not} JSON at all"),
    ("json", "[Note] Brackets begin this sentence."),
    ("json", "{}"),
    ("json", "[]"),
    ("json", "```python\nprint({})\n```"),
    ("json", '```json\n{"a": 1}\n```'),
    ("json", f"For example:\n```json\n{JSON_OSLO}\n```"),
    ("json", "  \n  Spaces lead here, and end it.  \n"),
    ("json", '{"name": "write", "arguments": {"text": "say "hi" now"}}'),
    ("json", '{"name": "get_weather", "arguments": [1]}'),
    ("json", '{"name": "write", "arguments": {"text": "it never ends'),
    ("json", "[" * 2000),
    ("tagged", "A call stands between `<tool_call>` and `</tool_call>`."),
    ("tagged", '<tool_call>{"name": "get_news", "arguments": {}}</tool_call>'),
    ("tagged", "<tool_call></tool_call> is empty"),
    ("tagged", "<tool_call>"),
    ("tagged", "x < 3 and <tool_ca"),
    ("tagged", f"<tool_call>{JSON_OSLO} or so</tool_call>"),
    ("tagged", "<tool_call><function=get_weather>Oslo?</function></tool_call>"),
    ("tagged", '{"answer": "<tool_call>"}'),
    ("mistral", "[TOOL_CALLS] is a marker."),
    ("mistral", "[TOOL_CALLS]get_weather[ARGS]Oslo"),
    ("lfm2", "<|tool_call_start|>[get_weather('Oslo')]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[get_weather(city=open('x'))]<|tool_call_end|>"),
    ("lfm2", f"<|tool_call_start|>{'[' * 500}<|tool_call_end|>"),
    # JSON has no such numbers, and null is not what was meant.
    ("json", '{"name": "get_weather", "arguments": {"days": 1e400}}'),
    ("json", '{"name": "get_weather", "arguments": {"places": [{"x": -1e400}], }}'),
    ("json", '{"name": "get_weather", "arguments": {"days": NaN}}'),
    ("json", '{"name": "get_weather", "arguments": "{\\"days\\": Infinity}"}'),
    ("json", f'{{"name": "get_weather", "arguments": {{"days": {"9" * 5000}}}}}'),
    ("lfm2", "<|tool_call_start|>[get_weather(days=[-1e400])]<|tool_call_end|>"),
    ("lfm2", f"<|tool_call_start|>[get_weather(days=0x{'f' * 5000})]<|tool_call_end|>"),
    ("gemma4", "<|tool_call>call:get_weather{days:1e400}<tool_call|>"),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁calls▁end｜>",
    ),
    ("gemma4", "<|tool_call>call:get_weather{city:Oslo}<tool_call|>"),
    ("action", "Action: none needed."),
]


@pytest.mark.parametrize(("form", "answer"), TEXTS)
def test_what_is_no_call_is_text_as_it_was(form: str, answer: str) -> None:
    for found, n_chars, pieces in results(ROWS[form], answer):
        assert found == Outcome(answer), pieces
        assert n_chars == len(answer)


# An answer with calls at `#`, and its text.
GAPS = [
    ("One # two # three", ["One", "#", " two", "#", " three"]),
    ("One\n\n#\n#\nand two", ["One", "#", "#", "\nand two"]),
    ("One\n\n##two", ["One", "#", "#", "\n\ntwo"]),
    ("One#two", ["One", "#", "two"]),
    ("One # \n", ["One", "#"]),
    (" # two", ["#", "two"]),
    ("One # <tool_call>two</tool_call>", ["One", "#", " <tool_call>two</tool_call>"]),
    (f"One #{' ' * 1000}two", ["One", "#", " " * 64 + "two"]),
]


@pytest.mark.parametrize(("answer", "expected"), GAPS)
def test_a_text_among_calls_stays_where_it_is_and_apart(answer: str, expected: list[str]) -> None:
    answer = answer.replace("#", f"<tool_call>{JSON_OSLO}</tool_call>")
    for pieces in cuts(answer):
        said: list[str] = []
        for part in read(call_reader(ROWS["tagged"]), pieces):
            match part:
                case Called():
                    said.append("#")
                case Said(text=text) if text and said and said[-1] != "#":
                    said[-1] += text
                case Said(text=text) if text:
                    said.append(text)
        assert said == expected, pieces


def test_ids_are_of_the_kind_that_clients_know_and_differ() -> None:
    reader = CallReader(GENERIC, Offered(TOOLS))
    parts = reader.feed(f"[{JSON_OSLO}, {JSON_LIMA}]")
    calls = [part.call for part in parts if isinstance(part, Called)]
    ids = {call.id for call in calls} | {new_call_id() for _ in range(1000)}
    assert len(ids) == 1002
    assert all(re.fullmatch("call_[a-z0-9]{8}", one) for one in ids)
    assert isinstance(calls[0], ToolCall)


def test_a_name_that_begins_like_another_is_read_whole() -> None:
    tools = (Tool("get"), Tool("get_all"))
    for name in ("get", "get_all"):
        parts = read(call_reader(tools=tools), [f'{{"name": "{name}", "arguments": {{}}}}'])
        assert outcome(parts)[0].calls == [(name, {})]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "tagged"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<start_function_call>call:f", "functiongemma"),
        (
            '{"name": function name, "parameters": dictionary of argument name and its value}',
            "llama",
        ),
        ("no word of it", "json"),
    ],
)
def test_a_template_tells_the_format(template: str, name: str) -> None:
    assert format_of(template).name == name


@pytest.mark.parametrize(
    ("marker", "answer", "text", "calls"),
    [
        ("[CALL]", f"So [CALL] {JSON_OSLO}", "So", [OSLO]),
        ("<do>\n", f"So <do>{JSON_OSLO}</do> then", "So then", [OSLO]),
        ("", JSON_OSLO, "", [OSLO]),
        ("[", f"[{JSON_OSLO}]", "", [OSLO]),
    ],
)
def test_a_marker_that_only_a_go_template_knows(
    marker: str, answer: str, text: str, calls: list[Any]
) -> None:
    for found, _, pieces in results(inferred(marker), answer):
        assert found == Outcome(text, "", calls), pieces
