"""What the limit cuts: a call is text, whole calls of a list are calls, a forced answer has no
text."""

from typing import Any

import pytest
from answers import TOOLS, Outcome, outcome, read
from call_rows import JSON_LIMA, JSON_OSLO, LIMA, OSLO, ROWS, results

from localrun.runner.output.calls import CallReader
from localrun.runner.output.formats import GENERIC
from localrun.runner.output.offered import Offered

CUT_OFF = [
    ("json", JSON_OSLO[:-1]),
    ("json", '{"name": "write", "arguments": {"text": "half'),
    ("tagged", f"<tool_call>{JSON_OSLO}"),
    ("tagged", "<tool_call><function=write><parameter=text>half"),
    ("mistral", '[TOOL_CALLS]write[ARGS]{"text": "x"'),
]


@pytest.mark.parametrize(("form", "answer"), CUT_OFF)
def test_a_call_that_the_limit_cuts_is_text(form: str, answer: str) -> None:
    for found, _, pieces in results(ROWS[form], answer, is_cut=True):
        assert found == Outcome(answer), pieces


# (format, an answer, its text, its calls): of a list, what is whole is called.
CUT_LISTS: list[tuple[str, str, str, list[Any]]] = [
    ("json", f"[{JSON_OSLO}, {JSON_LIMA}, {{", "{", [OSLO, LIMA]),
    ("json", f"[{JSON_OSLO}, {JSON_LIMA[:20]}", JSON_LIMA[:20], [OSLO]),
    ("json", f"```json\n[{JSON_OSLO},\n", "", [OSLO]),
    ("json", f"[{JSON_OSLO}", "", [OSLO]),
    ("mistral", f"So.[TOOL_CALLS][{JSON_OSLO}, ", "So.", [OSLO]),
    ("mistral", f'[TOOL_CALLS] [{JSON_OSLO}, {{"na', '{"na', [OSLO]),
    ("nemotron", f"<TOOLCALL>[{JSON_OSLO}, {JSON_LIMA}]</TOOL", "</TOOL", [OSLO, LIMA]),
]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), CUT_LISTS)
def test_the_whole_calls_of_a_list_that_the_limit_cuts(
    form: str, answer: str, text: str, calls: list[Any]
) -> None:
    for found, n_chars, pieces in results(ROWS[form], answer, is_cut=True):
        assert found == Outcome(text, "", calls), pieces
        assert n_chars == len(answer)


@pytest.mark.parametrize(
    "answer",
    [
        f'[{JSON_OSLO}, {{"name": "Ada"',
        f'[{JSON_OSLO}, {{"city": "Lima"',
        f"[{JSON_OSLO}, and so on",
        f'[{{"city": "Lima"}}, {JSON_OSLO}, {{"na',
    ],
)
def test_a_list_that_may_not_be_one_of_calls_is_text(answer: str) -> None:
    for found, _, pieces in results(GENERIC, answer, is_cut=True):
        assert found == Outcome(answer), pieces


# What grammars allow, cut anywhere: (format, an answer, its calls).
FORCED: list[tuple[str, str, list[Any]]] = [
    ("json", f"[{JSON_OSLO}, {JSON_LIMA}]", [OSLO, LIMA]),
    ("json", JSON_OSLO, [OSLO]),
    ("mistral", f"[TOOL_CALLS][{JSON_OSLO}, {JSON_LIMA}]", [OSLO, LIMA]),
    (
        "tagged",
        f"<tool_call>\n{JSON_OSLO}\n</tool_call>\n<tool_call>\n{JSON_LIMA}\n</tool_call>",
        [OSLO, LIMA],
    ),
    ("llama", JSON_OSLO.replace("arguments", "parameters"), [OSLO]),
    ("gemma4", f"[{JSON_OSLO}, {JSON_LIMA}]", [OSLO, LIMA]),
]


@pytest.mark.parametrize(("form", "answer", "calls"), FORCED)
def test_a_forced_answer_that_the_limit_cuts_is_its_whole_calls_and_no_text(
    form: str, answer: str, calls: list[Any]
) -> None:
    for n_chars in range(len(answer) + 1):
        said = answer[:n_chars]
        n_whole = said.count("}}")
        for pieces in ([said], list(said)):
            reader = CallReader(ROWS[form], Offered(TOOLS), is_forced=True)
            found, n_read = outcome(read(reader, pieces, is_cut=True))
            assert found == Outcome(calls=calls[:n_whole]), pieces
            assert n_read == n_chars


def test_a_forced_answer_that_is_not_cut_loses_no_text() -> None:
    reader = CallReader(ROWS["tagged"], Offered(TOOLS), is_forced=True)
    found, _ = outcome(read(reader, ['<tool_call>{"name": "Ada"}']))
    assert found == Outcome('<tool_call>{"name": "Ada"}')
