"""Folders with safetensors become the GGUF file that a converter would have made of them."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from create_steps import greedy, make, refusal, row, upload
from gguf_files import tensors_of
from hugging_face import as_bf16, write_bert, write_llama, write_safetensors
from live import Daemon, running
from tiny_models import Json, byte_level, sentence_piece, write_tiny_llama, write_tokenizer

from localrun.runner.convert.convert import convert
from localrun.runner.jobs import Refused, Report
from modelstore.gguf import read_header


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, smollm2_f16: Path) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("converted")
    with running(folder, CONTEXT_LENGTH=256, NUM_PARALLEL=1) as daemon:
        daemon.create("f16", smollm2_f16)
        yield daemon


def blob_of(daemon: Daemon, model: str) -> Path:
    modelfile = daemon.json("POST", "/api/show", {"model": model})["modelfile"]
    line = next(line for line in modelfile.splitlines() if line.startswith("FROM "))
    return Path(line.removeprefix("FROM "))


def test_a_real_model_comes_back_as_it_was(
    daemon: Daemon, smollm2_f16: Path, tmp_path: Path
) -> None:
    write_llama(smollm2_f16, tmp_path, n_shards=3)
    body = {"model": "back", "path": str(tmp_path)}
    lines = list(daemon.stream("/api/create", body))
    assert lines[-1] == {"status": "success"}
    steps = [line for line in lines if line["status"] == "converting model"]
    assert (steps[0], steps[-1]["completed"], steps[-1]["total"]) == (
        {"status": "converting model"},
        272,
        272,
    )
    assert "verifying conversion" in [line["status"] for line in lines]

    made = blob_of(daemon, "back")
    expected, found = tensors_of(smollm2_f16), tensors_of(made)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        assert np.array_equal(found[name], values), name

    original = read_header(smollm2_f16, arrays=True).metadata
    converted = read_header(made, arrays=True).metadata
    described = {key for key in original if key.startswith("general.")} - {"general.type"}
    described -= {"general.architecture", "general.file_type", "general.quantization_version"}
    # The GGUF says it out loud; for byte-level BPE it is the default.
    described |= {"tokenizer.ggml.add_space_prefix"}
    kept = {key: value for key, value in original.items() if key not in described}
    assert {key: converted.get(key) for key in kept} == kept
    assert converted.keys() == kept.keys()

    assert greedy(daemon, "back") == greedy(daemon, "f16")
    details = row(daemon, "back")["details"]
    assert details == row(daemon, "f16")["details"]
    chat = daemon.chat("back", "Hi", temperature=0, num_predict=8)["message"]["content"]
    assert chat == daemon.chat("f16", "Hi", temperature=0, num_predict=8)["message"]["content"]


def test_a_folder_is_converted_and_quantized_at_once(daemon: Daemon, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    write_tokenizer(tmp_path, byte_level())
    make(daemon, "small", path=str(tmp_path), quantize="q8_0")
    assert row(daemon, "small")["details"]["quantization_level"] == "Q8_0"
    header = read_header(blob_of(daemon, "small"))
    assert {tensor.type_name for tensor in header.tensors} == {"F32", "Q8_0"}
    blobs = daemon.log_path.parent / "models" / "blobs"
    assert [path.name for path in blobs.iterdir() if path.name.startswith(".")] == []


# ---- small ones


@pytest.mark.parametrize(
    ("architecture", "in_gguf"),
    [("LlamaForCausalLM", "llama"), ("MistralForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2")],
)
def test_every_decoder_is_converted_and_runs(
    daemon: Daemon, tmp_path: Path, architecture: str, in_gguf: str
) -> None:
    write_tiny_llama(tmp_path, architectures=[architecture])
    is_mistral = architecture == "MistralForCausalLM"
    write_tokenizer(tmp_path, sentence_piece() if is_mistral else byte_level())
    make(daemon, "tiny", path=str(tmp_path))
    header = read_header(blob_of(daemon, "tiny"), arrays=True)
    assert header.architecture == in_gguf
    assert header.get("tokenizer.ggml.model") == ("llama" if is_mistral else "gpt2")
    assert {tensor.type_name for tensor in header.tensors} == {"F16", "F32"}
    names = {tensor.name for tensor in header.tensors}
    assert ("blk.1.attn_q.bias" in names) == (in_gguf == "qwen2")
    options = {"temperature": 0, "num_predict": 4}
    body = {"model": "tiny", "prompt": "he", "raw": True, "stream": False, "options": options}
    assert daemon.json("POST", "/api/generate", body)["eval_count"] >= 1


def test_the_sentence_piece_vocabulary_has_its_marks(daemon: Daemon, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, architectures=["MistralForCausalLM"])
    write_tokenizer(tmp_path, sentence_piece())
    make(daemon, "pieces", path=str(tmp_path))
    header = read_header(blob_of(daemon, "pieces"), arrays=True)
    tokens, types = header.get("tokenizer.ggml.tokens"), header.get("tokenizer.ggml.token_type")
    scores = header.get("tokenizer.ggml.scores")
    kinds = gguf.TokenType
    assert [types[n] for n in (0, 1, 3, 259)] == [
        kinds.UNKNOWN,
        kinds.CONTROL,
        kinds.BYTE,
        kinds.NORMAL,
    ]
    assert (tokens[262], scores[262], tokens[263], scores[263]) == ("he", 0.0, "▁he", -1.0)
    assert (tokens[299], types[299]) == ("[PAD299]", kinds.UNUSED)
    assert header.get("tokenizer.ggml.add_space_prefix") is True
    # "▁he" is one token only if llama.cpp merges by these scores.
    body = {"model": "pieces", "prompt": "he", "raw": True, "stream": False}
    answer = daemon.json("POST", "/api/generate", {**body, "options": {"num_predict": 1}})
    assert answer["prompt_eval_count"] == 2  # with <s>


@pytest.mark.parametrize(
    ("scaling", "keys"),
    [
        ({"type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256},
            {"type": "yarn", "factor": 2.0, "original_context_length": 256},
        ),
        ({"rope_type": "default"}, {}),
    ],
)
def test_the_scaling_of_positions_is_kept(
    daemon: Daemon, tmp_path: Path, scaling: Json, keys: Json
) -> None:
    write_tiny_llama(tmp_path, rope_scaling=scaling, rope_theta=5e5)
    write_tokenizer(tmp_path, byte_level())
    make(daemon, "scaled", path=str(tmp_path))
    metadata = read_header(blob_of(daemon, "scaled")).metadata
    prefix = "llama.rope.scaling."
    assert {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)} == keys
    assert metadata["llama.rope.freq_base"] == 5e5


def test_llama_3_gets_a_tensor_of_factors(daemon: Daemon, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    write_tiny_llama(tmp_path, rope_scaling=scaling)
    write_tokenizer(tmp_path, byte_level())
    make(daemon, "llama3", path=str(tmp_path))
    factors = tensors_of(blob_of(daemon, "llama3"))["rope_freqs.weight"]
    # Short waves stay, long ones are stretched by the factor, between them it changes smoothly.
    assert factors.shape == (8,)
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    assert list(factors) == sorted(factors)


def test_a_bert_is_converted_with_its_pooling(daemon: Daemon, tmp_path: Path) -> None:
    tensors = write_bert(tmp_path)
    make(daemon, "bert", path=str(tmp_path))
    path = blob_of(daemon, "bert")
    metadata = read_header(path, arrays=True).metadata
    assert metadata["general.architecture"] == "bert"
    expected = {
        "bert.pooling_type": 1,
        "bert.attention.causal": False,
        "bert.context_length": 128,
        "bert.block_count": 2,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    assert {key: metadata[key] for key in expected} == expected
    tokens = metadata["tokenizer.ggml.tokens"]
    assert (tokens[2], tokens[5], tokens[15], tokens[-1]) == ("[CLS]", "▁a", "a", "▁hello")
    found = tensors_of(path)
    assert len(found) == len(tensors) - 3  # position ids and the pooler are not needed
    query = tensors["encoder.layer.1.attention.self.query.weight"]
    assert np.array_equal(found["blk.1.attn_q.weight"], query.astype(np.float16))
    positions = tensors["embeddings.position_embeddings.weight"]
    assert np.array_equal(found["position_embd.weight"], positions)
    shown = daemon.json("POST", "/api/show", {"model": "bert"})
    assert shown["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    ("pooling", "value"),
    [({"pooling_mode_cls_token": True}, 2), ({"pooling_mode_lasttoken": True}, 3), (None, 1)],
)
def test_other_poolings_are_known(
    daemon: Daemon, tmp_path: Path, pooling: Json | None, value: int
) -> None:
    write_bert(tmp_path)
    if pooling is None:
        shutil.rmtree(tmp_path / "1_Pooling")
    else:
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    make(daemon, "pooled", path=str(tmp_path))
    assert read_header(blob_of(daemon, "pooled")).get("bert.pooling_type") == value


def test_uploaded_files_make_the_same_model(daemon: Daemon, tmp_path: Path) -> None:
    write_bert(tmp_path)
    make(daemon, "local", path=str(tmp_path))
    names = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = {path.relative_to(tmp_path).as_posix(): upload(daemon, path) for path in names}
    assert "1_Pooling/config.json" in files
    make(daemon, "uploaded", files=files)
    assert row(daemon, "uploaded")["digest"] == row(daemon, "local")["digest"]


def test_values_of_all_three_types_arrive(daemon: Daemon, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    write_tokenizer(tmp_path, byte_level())
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    n_header = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n_header])
    header.pop("__metadata__")
    expected = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        values = np.frombuffer(data[8 + n_header + first : 8 + n_header + last], np.float32)
        expected[name] = values.reshape(entry["shape"])
    expected["model.embed_tokens.weight"] = expected["model.embed_tokens.weight"].copy()
    expected["model.embed_tokens.weight"][0, 0] = 1e30  # reaches further than F16
    kinds = [as_bf16, lambda v: v, lambda v: np.clip(v, -6e4, 6e4).astype(np.float16)]
    stored = {name: kinds[n % 3](values) for n, (name, values) in enumerate(expected.items())}
    write_safetensors(path, stored)
    make(daemon, "mixed", path=str(tmp_path))
    found = tensors_of(blob_of(daemon, "mixed"))
    assert found["token_embd.weight"][0, 0] == 65504.0
    assert np.allclose(found["output.weight"], expected["lm_head.weight"], rtol=1e-2, atol=1e-3)
    norm = expected["model.norm.weight"]
    assert np.allclose(found["output_norm.weight"], norm, rtol=1e-2, atol=1e-3)


# ---- refused: the job's own words, which the daemon passes on


class Silent(Report):
    """Hears nothing, and leaves the process's output alone."""

    def __init__(self) -> None:
        return

    def progress(self, status: str, completed: int, total: int) -> None:
        return


def problem_of(folder: Path, target: Path) -> str:
    """Why a folder is not converted; nothing was written then."""
    with pytest.raises(Refused) as caught:
        convert(str(folder), str(target), Silent())
    assert not target.exists()
    return str(caught.value)


def test_the_daemon_says_what_the_job_refused(daemon: Daemon, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, architectures=["GPT2LMHeadModel"])
    error = refusal(daemon, path=str(tmp_path))
    assert error == problem_of(tmp_path, tmp_path / "out")


def entry(dtype: str = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> Json:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def file_of(header: Any, n_data: int = 16, length: int | None = None) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(data) if length is None else length) + data + bytes(n_data)


NAME = "model.embed_tokens.weight"
HOSTILE = {
    "empty": (b"", "incomplete"),
    "header longer than the file": (file_of({NAME: entry()}, length=2**40), "incomplete"),
    "header of 2^63": (file_of({NAME: entry()}, length=2**63), "incomplete"),
    "no JSON": (file_of(b"{not json"), "header of `model.safetensors` is damaged"),
    "deep JSON": (file_of(b'{"a":' + b"[" * 100_000), "is damaged"),
    "not an object": (file_of(b"[1]"), "is damaged"),
    "no offsets": (file_of({NAME: {"dtype": "F32", "shape": [1]}}), "is damaged"),
    "offsets swapped": (file_of({NAME: entry(offsets=(16, 0))}), "another size"),
    "offsets beyond the end": (file_of({NAME: entry(offsets=(16, 32))}), "beyond the end"),
    "shape too large": (file_of({NAME: entry(shape=(2**31, 2**31))}), "another size"),
    "negative shape": (file_of({NAME: entry(shape=(-2, -2))}), "impossible shape"),
    "too many dimensions": (file_of({NAME: entry(shape=(1,) * 9)}), "impossible shape"),
    "unknown type": (
        file_of({NAME: entry(dtype="F8_E4M3", offsets=(0, 4))}),
        "is of type F8_E4M3; supported are F32, F16, BF16",
    ),
    "unknown tensor": (file_of({"x.weight": entry()}), "`x.weight` has no place in a model"),
    "tensors missing": (file_of({NAME: entry()}), "lack what becomes the tensor"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_damaged_file_is_refused(tmp_path: Path, fault: str) -> None:
    data, words = HOSTILE[fault]
    write_tiny_llama(tmp_path)
    write_tokenizer(tmp_path, byte_level())
    (tmp_path / "model.safetensors").write_bytes(data)
    error = problem_of(tmp_path, tmp_path / "out")
    assert words in error
    assert str(tmp_path) not in error


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "is `GPT2LMHeadModel`; supported are LlamaForCausalLM, MistralForCausalLM",
        ),
        ({"architectures": None}, "not named in `config.json`; supported are"),
        ({"quantization_config": {"quant_method": "gptq"}}, "are quantized already"),
        ({"num_hidden_layers": -1}, "`num_hidden_layers` of `config.json` must be"),
        ({"num_hidden_layers": 10**6}, "is above 1000"),
        ({"hidden_size": "64"}, "`hidden_size` of `config.json` must be"),
        ({"num_attention_heads": 3}, "no multiple of 3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "`rope_scaling`"),
        ({"max_position_embeddings": None}, "has no `max_position_embeddings`"),
    ],
)
def test_what_is_not_supported_is_said(tmp_path: Path, config: Json, words: str) -> None:
    write_tiny_llama(tmp_path, **config)
    write_tokenizer(tmp_path, byte_level())
    assert words in problem_of(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (None, "no `tokenizer.json`"),
        ({}, "has no model"),
        ({"model": {"type": "Unigram", "vocab": []}}, "of type `Unigram`"),
        (byte_level(split="[a-z]+"), "splits text in a way that is not known"),
        ({"model": {"type": "BPE", "vocab": {"a": 2**40}}}, "impossible id"),
        ({"model": {"type": "BPE", "vocab": {"a": 5000}}}, "tokens up to id 5000"),
        ({"model": {"type": "BPE", "vocab": [1]}}, "vocabulary in `tokenizer.json` is damaged"),
        ("no JSON", "is not JSON"),
    ],
)
def test_tokenizers_that_are_not_understood_are_refused(
    tmp_path: Path, tokenizer: Json | str | None, words: str
) -> None:
    write_tiny_llama(tmp_path)
    if isinstance(tokenizer, str):
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    elif tokenizer is not None:
        write_tokenizer(tmp_path, tokenizer)
    assert words in problem_of(tmp_path, tmp_path / "out")


def test_folders_that_are_not_whole_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert "neither GGUF nor safetensors" in refusal(daemon, path=str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert "PyTorch files only" in refusal(daemon, path=str(folder))
    write_tiny_llama(folder)
    (folder / "config.json").unlink()
    write_tokenizer(folder, byte_level())
    assert "no `config.json`" in refusal(daemon, path=str(folder))
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_tiny_llama(tmp_path)
    (folder / "config.json").write_text((tmp_path / "config.json").read_text())
    assert "`model-00002-of-00002.safetensors` is missing" in refusal(daemon, path=str(folder))
    alone = str(tmp_path / "model.safetensors")
    assert "give the folder" in refusal(daemon, path=alone)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "generation_config.json").symlink_to(secret)
    error = make(daemon, "refused", status=403, path=str(folder))["error"]
    assert error.startswith("insecure path: `generation_config.json`")
