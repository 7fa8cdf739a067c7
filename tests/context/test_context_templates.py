"""Templates and the histories that they meet: published ones, strict ones, and none at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
from chat_templates import published_templates, reference
from live import Daemon

from localrun.core import Message, ToolCall
from localrun.errors import TemplateFailed
from localrun.runner.prompt.go_template import GoTemplate
from localrun.runner.prompt.histories import holds_all, without_prefill
from localrun.runner.prompt.rendering import render_any
from localrun.runner.prompt.templates import JinjaTemplate
from modelstore.templates import FALLBACKS

Turns = list[tuple[str, str]]

HISTORIES: dict[str, Turns] = {
    "plain": [("user", 'Hello <b>"you"</b>')],
    "system": [("system", "Be brief."), ("user", "Hi")],
    "turns": [("user", "Hi"), ("assistant", "Yes?"), ("user", "More")],
    "all": [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "More")],
}
# What agents and people who lose patience make.
HARD: dict[str, Turns] = {
    "two users": [("user", "one"), ("user", "two")],
    "two systems": [("system", "one"), ("system", "two"), ("user", "three")],
    "a late system": [("user", "one"), ("assistant", "yes"), ("system", "two"), ("user", "three")],
    "the assistant begins": [("assistant", "one"), ("user", "two")],
    "a tool without a call": [("user", "one"), ("tool", "two"), ("user", "three")],
    "a prefill": [("user", "one"), ("assistant", "two and")],
    "developer": [("developer", "one"), ("user", "two")],
}


def messages_of(turns: Turns) -> list[Message]:
    return [Message(role, content) for role, content in turns]


def dicts_of(turns: Turns) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def rendered(render: Callable[..., str], *arguments: Any) -> str | Exception:
    """The text, or what was raised instead."""
    try:
        return render(*arguments)
    except (TemplateFailed, jinja2.exceptions.TemplateError) as error:
        return error


def jinja(source: str) -> JinjaTemplate:
    return JinjaTemplate(source, bos_text="<s>", eos_text="</s>")


def test_published_templates_render_as_in_transformers() -> None:
    templates = published_templates()
    assert len(templates) > 50
    n_equal = 0
    for name, source in templates.items():
        template = jinja(source)
        for kind, turns in HISTORIES.items():
            where = f"{name}, {kind}"
            wanted = rendered(reference, source, dicts_of(turns))
            got = rendered(template.render, messages_of(turns))
            if isinstance(wanted, Exception):
                assert isinstance(got, TemplateFailed), where
                assert str(wanted) in str(got), where
            else:
                assert got == wanted, where
                n_equal += 1
    assert n_equal > 0.95 * len(templates) * len(HISTORIES)


def test_published_templates_take_every_history_or_say_why_not() -> None:
    for name, source in published_templates().items():
        template = jinja(source)
        for kind, turns in (HISTORIES | HARD).items():
            history, prefill = without_prefill(messages_of(turns))
            text = rendered(render_any, history, template.render)
            if isinstance(text, Exception):
                # It cannot do without what it calls functions.
                assert "firefunction" in name, (name, kind, text)
                assert "'functions' is undefined" in str(text)
                continue
            # What assistants have said may be cut on purpose.
            kept = [m for m in history if m.role != "assistant"]
            assert holds_all(text, kept), (name, kind)
            assert prefill is None or prefill.content == "two and"


STRICT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no ' ~ m.role) }}{% endif %}"
    "[{{ m.role }}: {{ m.content | trim }}]{% endfor %}[assistant: "
)
# As strict, with a system text in front and its own silence about tools.
WITH_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}|"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if m.role != 'tool' %}[{{ m.role }}: {{ m.content }}]{% endif %}{% endfor %}[assistant: "
)


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("source", [STRICT, WITH_SYSTEM])
def test_strict_templates_get_all_texts_of_hard_histories(source: str, kind: str) -> None:
    history, prefill = without_prefill(messages_of(HARD[kind]))
    text = render_any(history, jinja(source).render) + (prefill.content if prefill else "")
    for _, content in HARD[kind]:
        assert content in text


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (HARD["two users"], "<s>[user: one\n\ntwo][assistant: "),
        (HARD["two systems"], "<s>[user: one\n\ntwo\n\nthree][assistant: "),
        (HARD["a late system"], "<s>[user: two\n\none][assistant: yes][user: three][assistant: "),
        (HARD["the assistant begins"], "<s>[user: ][assistant: one][user: two][assistant: "),
        (HARD["a tool without a call"], "<s>[user: one\n\ntwo\n\nthree][assistant: "),
        ([("system", "alone")], "<s>[user: alone][assistant: "),
    ],
)
def test_the_plainest_form_has_users_and_assistants_only(turns: Turns, expected: str) -> None:
    assert render_any(messages_of(turns), jinja(STRICT).render) == expected


def test_a_template_that_takes_a_history_gets_it_as_it_is() -> None:
    lenient = jinja("{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}")
    for turns in HARD.values():
        text = render_any(messages_of(turns), lenient.render)
        assert text == "".join(f"{role}={content};" for role, content in turns)


def test_a_call_and_its_result_become_text_where_there_is_no_other_way() -> None:
    call = ToolCall("weather", {"city": "Oslo"})
    history = [
        Message("user", "one"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "rain"),
    ]
    text = render_any(history, jinja(STRICT).render)
    assert text == (
        '<s>[user: one][assistant: {"name": "weather", "arguments": {"city": "Oslo"}}]'
        "[user: rain][assistant: "
    )


def test_a_role_that_a_template_does_not_know_becomes_a_user_s_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = [("user", "one"), ("observation", "two")]
    assert render_any(messages_of(turns), jinja(STRICT).render)
    assert [record.getMessage() for record in caplog.records] == [
        "the model's template does not know the role 'observation'; it got a user's"
    ]
    caplog.clear()
    knows_it = jinja("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert render_any(messages_of(turns), knows_it.render) == "user: one\nobservation: two\n"
    for history in ("a tool without a call", "developer"):
        render_any(messages_of(HARD[history]), jinja(STRICT).render)
    assert not caplog.records


def test_what_a_template_leaves_out_on_purpose_does_not_change_the_form() -> None:
    # Every form loses it, so the first counts.
    source = "{% for m in messages %}{{ m.role }},{% endfor %}"
    assert render_any(messages_of(HARD["two users"]), jinja(source).render) == "user,user,"


def test_a_refusal_of_every_form_is_what_the_template_said_first() -> None:
    never = jinja("{{ raise_exception('I take ' ~ messages | length ~ ' turns from nobody') }}")
    with pytest.raises(TemplateFailed, match="I take 2 turns from nobody"):
        render_any(messages_of(HARD["two users"]), never.render)


def test_a_template_cannot_change_what_it_gets() -> None:
    for attack in (
        "{% do messages.append(messages[0]) %}",
        "{{ messages.append(messages[0]) }}",
        "{{ messages[0].update({'content': 'other'}) }}",
    ):
        with pytest.raises(TemplateFailed):
            jinja(attack).render(messages_of(HARD["two users"]))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}", '{"a": "<é>", "b": 1}'),
        ("{{ {'a': 'é'} | tojson(ensure_ascii=true) }}", '{"a": "\\u00e9"}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ documents is defined }}{{ tools is defined }}", "FalseFalse"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{% for m in messages %}{% continue %}{% endfor %}x", "x"),
        ("{{ messages[0] is mapping }}{{ messages is sequence }}", "TrueTrue"),
        ("{{ strftime_now('%Y-%m-%d') | length }}", "10"),
    ],
)
def test_jinja_offers_what_published_templates_use(source: str, expected: str) -> None:
    assert jinja(source).render([Message("user", "hi")]) == expected


# ---- through a daemon


@pytest.fixture
def strict_daemon(start_daemon: Callable[..., Daemon], fake_model: Callable[..., Path]) -> Daemon:
    daemon = start_daemon()
    daemon.create("strict", fake_model(echo=True, chat_template=STRICT))
    refusing = "{{ raise_exception('not with me') }}"
    daemon.create("refusing", fake_model(echo=True, chat_template=refusing))
    return daemon


def test_hard_histories_are_answered_on_both_chat_routes(strict_daemon: Daemon) -> None:
    for turns in HARD.values():
        messages = [{"role": role, "content": content} for role, content in turns]
        body = {"model": "strict", "messages": messages, "stream": False}
        native = strict_daemon.json("POST", "/api/chat", body)["message"]["content"]
        openai = strict_daemon.json("POST", "/v1/chat/completions", body)
        for said in (native, openai["choices"][0]["message"]["content"]):
            assert all(content in said for _, content in turns)
    empty = {"model": "strict", "messages": [], "stream": False}
    assert strict_daemon.json("POST", "/api/chat", empty)["done_reason"] == "load"


def test_a_turn_of_the_assistant_at_the_end_is_gone_on_with(strict_daemon: Daemon) -> None:
    messages = [
        {"role": "user", "content": "count"},
        {"role": "assistant", "content": "one, two,"},
    ]
    body = {"model": "strict", "messages": messages, "stream": False}
    reply = strict_daemon.json("POST", "/api/chat", body)
    # The scripted model has no token for BOS to say.
    assert reply["message"]["content"] == "[user: count][assistant: one, two,"


def test_content_may_be_null_and_in_parts(strict_daemon: Daemon) -> None:
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    reply = strict_daemon.json(
        "POST", "/v1/chat/completions", {"model": "strict", "messages": messages}
    )
    said = reply["choices"][0]["message"]["content"]
    assert said.startswith("[user: two parts][assistant: ")
    assert "[user: done]" in said


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_refusal_is_the_client_s_error_with_the_template_s_words(
    strict_daemon: Daemon, path: str
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body: dict[str, Any] = {"model": "refusing", "messages": messages}
    status, data = strict_daemon.request("POST", path, body)
    assert status == 400
    assert "not with me" in json.dumps(json.loads(data))


# ---- Go templates


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
            "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "llama3",
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\none<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\ntwo<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nthree<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "gemma",
            "<start_of_turn>user\nS\n\none<end_of_turn>\n<start_of_turn>model\ntwo"
            "<end_of_turn>\n<start_of_turn>user\nthree<end_of_turn>\n<start_of_turn>model\n",
        ),
        ("mistral", "[INST] S\n\none[/INST] two</s>[INST] three[/INST] "),
    ],
)
def test_fallbacks_are_spelled_as_their_families_are(name: str, expected: str) -> None:
    (family,) = (family for family in FALLBACKS if family.name == name)
    history = messages_of(
        [("system", "S"), ("user", "one"), ("assistant", "two"), ("user", "three")]
    )
    assert GoTemplate(family.source).render(history) == expected


@pytest.mark.parametrize(
    ("property_", "expected"),
    [
        ({"type": "integer"}, "number"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"anyOf": [{"type": "array"}, {"type": "object"}]}, "any[] | Record<string, any>"),
        ({"type": "date"}, "any"),
        ({}, "any"),
        ("text", "any"),
    ],
)
def test_a_go_template_has_typescript_types(property_: Any, expected: str) -> None:
    call = ToolCall("f", {"x": property_})
    source = (
        "{{ range .Messages }}{{ range .ToolCalls }}"
        "{{ toTypeScriptType .Function.Arguments.x }}{{ end }}{{ end }}"
    )
    assert GoTemplate(source).render([Message("assistant", "", tool_calls=(call,))]) == expected
