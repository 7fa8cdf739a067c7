"""How much to think, and the form of the answer: both dialects' requests → core values."""

import json

import pytest
from decoding import native, openai, prompt

from localrun.wire.completions import decode_completions
from localrun.wire.native import decode_generate

# ---- thinking


@pytest.mark.parametrize("think", [None, True, False, "low", "medium", "high", "max"])
def test_think(think):
    assert prompt(native(think=think)).think == think
    body = json.dumps({"model": "m", "prompt": "hi", "think": think}).encode()
    assert prompt(decode_generate(body).call).think == think


@pytest.mark.parametrize("field", [{"raw": True}, {"suffix": "x"}])
def test_only_a_template_can_tell_a_model_to_think(field):
    body = json.dumps({"model": "m", "prompt": "hi", "think": True, **field}).encode()
    assert decode_generate(body).ignored == ("think",)


@pytest.mark.parametrize(
    ("effort", "think"),
    [
        (None, None),
        ("", None),
        ("none", False),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("max", "max"),
        ("xhigh", "max"),
        ("ultra", "max"),
    ],
)
def test_reasoning_effort(effort, think):
    assert prompt(openai(reasoning_effort=effort)).think == think
    assert prompt(openai(reasoning={"effort": effort, "summary": "auto"})).think == think
    assert prompt(openai(reasoning_effort="low", reasoning={"effort": "high"})).think == "high"
    assert prompt(openai(reasoning_effort="low", reasoning={})).think == "low"


# ---- the form of the answer

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}


def test_a_schema_arrives_as_text_with_its_keys_in_order():
    described = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {"model": "m", "prompt": "hi"}
    calls = [
        openai(response_format=described),
        native(format=SCHEMA),
        decode_generate(json.dumps(body | {"format": SCHEMA}).encode()).call,
        decode_completions(json.dumps(body | {"response_format": described}).encode()).call,
    ]
    for call in calls:
        found = json.loads(call.schema or "")
        assert found == SCHEMA
        assert [list(found), list(found["properties"])] == [list(SCHEMA), ["b", "a"]]


def test_any_json_is_any_object():
    for call in (native(format="json"), openai(response_format={"type": "json_object"})):
        assert json.loads(call.schema or "") == {"type": "object"}


def test_without_a_format_the_answer_is_free():
    for form in (None, ""):
        assert native(format=form).schema is None
    for form in (None, {"type": "text"}):
        assert openai(response_format=form).schema is None
