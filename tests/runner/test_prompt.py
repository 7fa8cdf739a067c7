"""Conversations become prompts: by Jinja, by Go templates, without a template, and cut to fit."""

import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from localrun.core import Message
from localrun.errors import ContextOverflow, TemplateFailed
from localrun.runner.limits import bounded_memory, large_allocation
from localrun.runner.prompt.fit import fit
from localrun.runner.prompt.go_template import GoTemplate
from localrun.runner.prompt.templates import JinjaTemplate, render_plain

TALK = [
    Message("system", "S"),
    Message("user", "one"),
    Message("assistant", "two"),
    Message("user", "three"),
]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def jinja(source: str) -> JinjaTemplate:
    return JinjaTemplate(source, bos_text="<s>", eos_text="</s>")


def test_jinja_renders_up_to_where_the_answer_begins() -> None:
    text = jinja(CHATML).render(TALK)
    assert text.startswith("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\none")
    assert text.endswith("three<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% generation %}x{% endgeneration %}", "x"),
        (
            "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}",
            "system",
        ),
        ("{{ tools is defined }}", "False"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_jinja_offers_what_chat_templates_expect(source: str, expected: str) -> None:
    assert jinja(source).render(TALK) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('system role not supported') }}",
        "{{ messages[99].content.upper() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_refuses_or_misbehaves_is_an_error_not_a_crash(source: str) -> None:
    with pytest.raises(TemplateFailed):
        jinja(source).render(TALK)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mapped memory")
@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ 'a'.center(10**9) }}",
        "{% set ns = namespace(s='ab' * 9000) %}{% for i in range(20) %}"
        "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    ],
)
def test_a_template_gets_no_more_memory_than_it_may_have(source: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError), bounded_memory(256 << 20):
        jinja(source).render(TALK)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with bounded_memory(256 << 20):
        assert "three" in jinja(CHATML).render(TALK)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mapped memory")
def test_other_threads_get_what_they_need_beside_a_template() -> None:
    def allocate() -> int:
        with large_allocation():
            return len(bytearray(512 << 20))

    with bounded_memory(128 << 20), ThreadPoolExecutor(1) as other:
        assert other.submit(allocate).result() == 512 << 20
        with pytest.raises(MemoryError):
            bytearray(512 << 20)
        with large_allocation():
            kept = bytearray(256 << 20)
        # What was taken is not what the template may have.
        assert bytearray(32 << 20)
        assert kept


@pytest.mark.parametrize("make", [jinja, GoTemplate])
def test_a_template_that_does_not_compile_says_so(make: type) -> None:
    with pytest.raises(TemplateFailed, match="does not compile"):
        make("{{ if }")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{{ range .Messages }}[{{ .Role }}:{{ .Content }}]{{ end }}>",
            "[system:S][user:one][assistant:two][user:three]>",
        ),
        (
            "{{ .System }}/{{ range .Messages }}{{ .Role }} {{ end }}",
            "S/system user assistant user ",
        ),
        ("{{ .System }}|{{ .Prompt }}={{ .Response }};", "S|one=two;|three="),
        ("{{ .Prompt }}>", "one>twothree>"),
        ("{{ json .Prompt }}", '"one"two"three"'),
    ],
)
def test_go_templates_render_messages_or_turns(source: str, expected: str) -> None:
    assert GoTemplate(source).render(TALK) == expected


def test_go_messages_of_one_role_in_a_row_are_joined() -> None:
    template = GoTemplate("{{ range .Messages }}[{{ .Content }}]{{ end }}")
    assert template.render([Message("user", "a"), Message("user", "b")]) == "[a\n\nb]"


def test_without_a_template_the_turns_stand_as_they_are() -> None:
    assert render_plain(TALK) == "S\n\none\n\ntwo\n\nthree"


# ---- fit


def count(messages: Sequence[Message]) -> list[int]:
    return [0] * sum(len(message.content) for message in messages)


def long_talk(n_turns: int) -> list[Message]:
    return [Message("system", "SS"), *(Message("user", "x" * 10) for _ in range(n_turns))]


@pytest.mark.parametrize(
    ("n_ctx", "n_expected"), [(1000, 52), (53, 52), (52, 42), (23, 22), (22, 12), (13, 12)]
)
def test_as_many_recent_turns_as_leave_room_are_kept(n_ctx: int, n_expected: int) -> None:
    assert len(fit(long_talk(5), n_ctx, count).tokens) == n_expected


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ContextOverflow) as error:
        fit(long_talk(5), 12, count)
    assert (error.value.n_tokens, error.value.n_ctx) == (12, 12)


def test_a_single_long_turn_is_refused() -> None:
    with pytest.raises(ContextOverflow):
        fit([Message("user", "x" * 50)], 50, count)


def test_a_thousand_turns_are_rendered_a_few_times_only() -> None:
    calls: list[int] = []

    def counting(messages: Sequence[Message]) -> list[int]:
        calls.append(1)
        return count(messages)

    fit(long_talk(1000), 500, counting)
    assert len(calls) <= 12


def test_what_cannot_fit_by_its_size_is_refused_without_being_rendered() -> None:
    def never(_messages: Sequence[Message]) -> list[int]:
        raise AssertionError("rendered")

    for talk in (
        [Message("user", "x" * 300_000)],
        [Message("system", "x" * 300_000), Message("user", "hi")],
    ):
        with pytest.raises(ContextOverflow) as error:
            fit(talk, 1000, never)
        assert error.value.is_at_least
        assert error.value.n_tokens >= 1000


def test_turns_that_cannot_fit_by_their_number_or_size_are_left_out_at_once() -> None:
    seen: list[int] = []

    def counting(messages: Sequence[Message]) -> list[int]:
        seen.append(len(messages))
        return [0] * len(messages)

    fit(long_talk(200_000), 1000, counting)
    assert seen[0] == 1001  # the system message and the last thousand
    seen.clear()
    fit([Message("user", "x" * 200_000) for _ in range(50)], 1000, counting)
    assert seen == [1]
