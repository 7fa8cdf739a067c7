"""Descriptions of models: capabilities, header values, parameters, Modelfiles."""

from typing import Any

import pytest

from modelstore.create import CreateRequest, create
from modelstore.gguf import Header, read_header
from modelstore.modelfile import parse
from modelstore.records import Record
from modelstore.show import (
    capabilities,
    model_info,
    parameters_text,
    render_modelfile,
    tensor_list,
)
from modelstore.store import Store
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf


def make(
    store: Store, metadata: dict[str, Any] | None = None, *, arrays: bool = False, **fields: Any
) -> tuple[Record, Header]:
    path = store.root.parent / "m.gguf"
    write_gguf(path, tiny_metadata(**(metadata or {})), tiny_tensors())
    request = CreateRequest("m", path=path, **fields)
    list(create(store, request, check_parameters=lambda parameters: parameters))
    record = store.resolve("m")
    assert record.model_path is not None
    return record, read_header(record.model_path, arrays=arrays)


@pytest.mark.parametrize(
    ("metadata", "template", "expected"),
    [
        ({}, None, ["completion"]),
        ({"llama__pooling_type": 1}, None, ["embedding"]),
        ({}, "{{ if .Tools }}x{{ end }}", ["completion", "tools"]),
        ({}, "{{- range $.Tools }}x{{ end }}", ["completion", "tools"]),
        ({}, "{{ .Prompt }}{{ .Suffix }}", ["completion", "insert"]),
        ({}, "the word .Tools outside of an action", ["completion"]),
        ({}, "{{/* .Tools in a comment */}}{{ .Prompt }}", ["completion"]),
        ({}, "{{ .ToolsX }}", ["completion"]),
        ({}, "{{ range .Messages }}<t>{{ .Thinking }}</t>{{ end }}", ["completion", "thinking"]),
        (
            {"tokenizer__chat_template": "{% if tools %}{% endif %}"},
            None,
            ["completion", "tools"],
        ),
        (
            {"tokenizer__chat_template": "<think>{{ x }}</think>"},
            None,
            ["completion", "thinking"],
        ),
        (
            {"tokenizer__chat_template": "{{ c.split('</think>')[-1] }}"},
            None,
            ["completion", "thinking"],
        ),
        (
            {"tokenizer__chat_template": "{{ c.split('</think>') }}{{ reasoning_content }}"},
            None,
            ["completion"],
        ),
        ({"llama__vision__block_count": 2}, None, ["completion", "vision"]),
        ({"llama__audio__block_count": 2}, None, ["completion", "audio"]),
        ({"general__architecture": "gptoss"}, None, ["completion", "thinking"]),
    ],
)
def test_capabilities_follow_header_and_templates(
    store: Store, metadata: dict[str, Any], template: str | None, expected: list[str]
) -> None:
    record, header = make(store, metadata, template=template)
    assert capabilities(record, header) == expected


def test_capabilities_do_not_need_a_header(store: Store) -> None:
    record, _ = make(store, template="{{ .Tools }}")
    assert capabilities(record, None) == ["completion", "tools"]


def test_model_info_hides_arrays_and_what_is_shown_elsewhere(store: Store) -> None:
    _, header = make(store, {"tokenizer__chat_template": "x"})
    info = model_info(header)
    assert info["general.parameter_count"] == 288
    assert info["llama.context_length"] == 2048
    assert info["tokenizer.ggml.tokens"] is None
    assert "general.name" not in info
    assert "tokenizer.chat_template" not in info


def test_verbose_model_info_holds_arrays(store: Store) -> None:
    _, header = make(store, arrays=True)
    tokens = ["<s>", "</s>", "hello", "wörld"]
    assert model_info(header, verbose=True)["tokenizer.ggml.tokens"] == tokens
    assert model_info(header)["tokenizer.ggml.tokens"] is None


def test_tensors_are_listed(store: Store) -> None:
    _, header = make(store)
    first = {"name": "token_embd.weight", "type": "F32", "shape": [32, 4]}
    assert tensor_list(header)[0] == first


def test_parameters_are_aligned_sorted_and_quoted(store: Store) -> None:
    parameters = {"top_k": 3, "stop": ["<|im_end|>", 'a"b'], "use_mmap": True, "min_p": 0.05}
    record, _ = make(store, parameters=parameters)
    assert parameters_text(record).split("\n") == [
        "min_p                          0.05",
        'stop                           "<|im_end|>"',
        'stop                           "a\\"b"',
        "top_k                          3",
        "use_mmap                       true",
    ]


def test_the_shown_modelfile_would_make_the_model_again(store: Store) -> None:
    record, _ = make(
        store,
        template="{{ .System }}\n{{ .Prompt }}",
        system='Say "hi".\n',
        parameters={"stop": ["<a>", " b"], "temperature": 0.5, "use_mmap": False},
        licenses=("MIT\n",),
        messages=({"role": "user", "content": "x"},),
        parser="p",
    )
    text = render_modelfile(record)
    assert "# FROM m:latest\n" in text
    modelfile = parse(text)
    assert modelfile.froms == (str(record.model_path),)
    assert modelfile.template == record.template
    assert modelfile.system == record.system
    assert modelfile.licenses == record.licenses
    assert modelfile.messages == (("user", "x"),)
    assert modelfile.parser == "p"
    assert modelfile.merged_parameters() == {
        "stop": ["<a>", " b"],
        "temperature": "0.5",
        "use_mmap": "false",
    }


def test_a_text_that_a_modelfile_cannot_carry_does_not_stop_the_display(store: Store) -> None:
    record, _ = make(store, system='a"""\nbell\a')
    text = render_modelfile(record)
    assert text.startswith("# SYSTEM is not exact: ")
    assert parse(text).system == "a'''\nbell"


@pytest.mark.parametrize("text", ["a\r\nb", "\u2028a", 'a"""\n"b'])
def test_each_text_that_is_not_exact_is_named_once(store: Store, text: str) -> None:
    message = {"role": "user", "content": text}
    record, _ = make(
        store, template="t", licenses=("MIT", text), messages=(message, message), system="s"
    )
    heading = [line.split(":")[0] for line in render_modelfile(record).split("\n")[:2]]
    assert heading == ["# LICENSE is not exact", "# MESSAGE is not exact"]


def test_a_model_without_a_template_is_shown_without_one(store: Store) -> None:
    record, _ = make(store, {"tokenizer__chat_template": "jinja"})
    assert "TEMPLATE" not in render_modelfile(record)
