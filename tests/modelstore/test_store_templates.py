"""Which template counts: what the Modelfile, the file and at last the vocabulary say."""

from pathlib import Path
from typing import Any

import pytest

from modelstore.create import CreateRequest, create
from modelstore.gguf import read_header
from modelstore.header import Header
from modelstore.store import Store
from modelstore.templates import FALLBACKS, ActiveTemplate, active_template, fallback
from modelstore.vocabulary import Vocabulary, vocabulary, vocabulary_of
from tests.modelstore.gguf_writer import tiny_metadata, tiny_tensors, write_gguf

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = ("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA = ("<eos>", "<start_of_turn>", "<end_of_turn>")
MISTRAL = ("</s>", "[INST]", "[/INST]")


def header_of(tokens: tuple[str, ...], eos: str | None = None, **metadata: Any) -> Header:
    """A header as it is read with its tokens."""
    values: dict[str, Any] = {"tokenizer.ggml.tokens": tokens, **metadata}
    if eos is not None:
        values["tokenizer.ggml.eos_token_id"] = tokens.index(eos)
    return Header(3, values, (), 32, 0, 0)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (header_of(CHATML, "<|im_end|>"), "chatml"),
        (header_of(CHATML, "<|endoftext|>"), None),  # a base model has the marks too
        (header_of(CHATML), None),
        (header_of(CHATML, "<|endoftext|>", **{"general.name": "Qwen2 0.5B Instruct"}), "chatml"),
        (header_of(CHATML, "<|endoftext|>", **{"general.finetune": "chat"}), "chatml"),
        (header_of(CHATML, "<|endoftext|>", **{"general.name": "Chatty italic"}), None),
        (header_of(CHATML, "<|endoftext|>", **{"tokenizer.ggml.eot_token_id": 2}), "chatml"),
        (header_of(CHATML, "<|endoftext|>", **{"tokenizer.ggml.eot_token_id": 99}), None),
        (header_of(("<|im_start|>", "x"), "x", **{"general.finetune": "chat"}), None),
        (header_of(LLAMA3, "<|eot_id|>"), "llama3"),
        (header_of(LLAMA3, "<|end_of_text|>"), None),
        (header_of(GEMMA, "<end_of_turn>"), "gemma"),
        (header_of(GEMMA, "<eos>", **{"general.name": "Gemma 3 1b It"}), "gemma"),
        (header_of(GEMMA, "<eos>", **{"general.name": "Gemma 3 270m"}), None),
        (header_of(MISTRAL, "</s>"), None),
        (header_of(MISTRAL, "</s>", **{"general.finetune": "Instruct"}), "mistral"),
        (header_of(("a", "b"), "a", **{"general.finetune": "Instruct"}), None),
        (Header(3, {}, (), 32, 0, 0), None),
    ],
)
def test_the_vocabulary_of_a_chat_model_tells_its_template(
    header: Header, expected: str | None
) -> None:
    found = fallback(header, vocabulary(header))
    assert (found.name if found else None) == expected


@pytest.mark.parametrize(
    ("header", "fills"),
    [
        (header_of(CHATML), False),
        (header_of(("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")), True),
        (header_of(("<|fim_prefix|>", "<|fim_middle|>")), False),
        (header_of(("<fim_prefix>", "<|fim_middle|>", "<|fim_suffix|>")), False),
        (header_of(("▁<PRE>", "▁<SUF>", "▁<MID>")), True),
        (
            header_of(
                (),
                **{
                    f"tokenizer.ggml.{name}_token_id": number
                    for number, name in enumerate(("fim_pre", "suffix", "middle"))
                },
            ),
            True,
        ),
        (header_of((), **{"tokenizer.ggml.fim_pre_token_id": 1}), False),
    ],
)
def test_a_vocabulary_fills_gaps_where_all_three_tokens_are_there(
    header: Header, fills: bool
) -> None:
    assert vocabulary(header).fills_gaps is fills


def make(store: Store, path: Path, metadata: dict[str, Any], **fields: Any) -> ActiveTemplate:
    write_gguf(path, tiny_metadata(**metadata), tiny_tensors())
    request = CreateRequest("m", path=path, **fields)
    list(create(store, request, check_parameters=lambda parameters: parameters))
    record = store.resolve("m")
    return active_template(record, read_header(path))


BY_VOCABULARY = {
    "tokenizer__ggml__tokens": list(CHATML),
    "tokenizer__ggml__eos_token_id": 2,
}


def test_a_modelfile_wins_over_the_file_and_the_file_over_its_vocabulary(
    store: Store, tmp_path: Path
) -> None:
    jinja = {"tokenizer__chat_template": "{{ x }}"}
    path = tmp_path / "m.gguf"
    own = make(store, path, jinja | BY_VOCABULARY, template="{{ .Prompt }}")
    assert own == ActiveTemplate("modelfile", "{{ .Prompt }}", "{{ .Prompt }}")
    assert make(store, path, jinja | BY_VOCABULARY) == ActiveTemplate("gguf", "{{ x }}")
    chatml = FALLBACKS[0].source
    assert make(store, path, BY_VOCABULARY) == ActiveTemplate("fallback:chatml", chatml, chatml)
    assert make(store, path, {}) == ActiveTemplate("none")


def test_weights_that_cannot_be_read_have_no_vocabulary(tmp_path: Path) -> None:
    assert vocabulary_of([tmp_path / "missing.gguf"]) == Vocabulary()
    assert vocabulary_of([]) == Vocabulary()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert vocabulary_of([broken]) == Vocabulary()


def test_a_vocabulary_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_metadata(**BY_VOCABULARY), tiny_tensors())
    assert vocabulary_of([path]).has("<|im_start|>")
    write_gguf(path, tiny_metadata(tokenizer__ggml__tokens=["other"]), tiny_tensors())
    assert not vocabulary_of([path]).has("<|im_start|>")
