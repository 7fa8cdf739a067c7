"""When the parts of an answer leave, and how often its text is looked at."""

import pytest
from answers import call_reader
from call_rows import JSON_OSLO, ROWS

from localrun.runner.output.calls import CallReader
from localrun.runner.output.parts import Called


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("json", '{"city": "Oslo", "days": [1, 2, 3]}'),
        ("json", '{"name": "Ada Lovelace", "born": 1815}'),
        ("json", "[1, 2, 3]"),
        ("tagged", "A tag such as <tool_call> stands in front of it, and then comes more text."),
    ],
)
def test_ordinary_text_leaves_before_its_end(form: str, answer: str) -> None:
    reader = call_reader(ROWS[form])
    held = longest = 0
    for char in answer:
        held += 1
        held -= sum(part.n_chars for part in reader.feed(char))
        longest = max(longest, held)
    assert longest <= len("<tool_call> s") + 3


def test_a_call_leaves_when_its_end_is_there() -> None:
    reader = call_reader(ROWS["tagged"])
    fed = [*reader.feed(f"<tool_call>{JSON_OSLO}</tool_call>")]
    assert [type(part) for part in fed] == [Called]
    bare = call_reader()
    assert [type(part) for part in bare.feed(JSON_OSLO)] == [Called]


class _Counted:
    """How much text the steps of a reader are handed."""

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self.n_seen = 0

    def feed(self, text: str) -> None:
        self.n_seen += len(self._reader._held) + len(self._reader._gathered._tail) + len(text)
        list(self._reader.feed(text))


@pytest.mark.parametrize(
    "answer",
    [
        "word " * 20_000,
        " \n" * 50_000,
        '{"name": "write", "arguments": {"text": "' + "x{[ " * 25_000 + '"}}',
        '<tool_call>{"name": "write", "arguments": {"text": "' + "x" * 100_000 + '"}}</tool_call>',
        "<tool_call>" * 10_000,
        '{"name": ' * 12_000,
        "<tool_call>{" * 9_000,
    ],
)
def test_an_answer_of_100_kb_is_not_looked_at_again_and_again(answer: str) -> None:
    counted = _Counted(call_reader(ROWS["tagged"]))
    for place in range(0, len(answer), 4):
        counted.feed(answer[place : place + 4])
    # Held back are a marker's beginning and some white space at most.
    assert counted.n_seen < 40 * len(answer)
