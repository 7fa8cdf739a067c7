"""Writes models as Hugging Face publishes them: safetensors, config.json, tokenizer.json.

Independent of the converter under test: names, order of rotary halves and files are put together
here from a GGUF file, or from random numbers.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_files import tensors_of

from modelstore.gguf import read_header

Array = np.ndarray[Any, Any]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TYPES = {"float16": "F16", "float32": "F32", "uint16": "BF16", "int64": "I64"}


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """One file; uint16 stands for BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        header[name] = {
            "dtype": _TYPES[str(values.dtype)],
            "shape": list(values.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    data = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        for values in tensors.values():
            file.write(values.tobytes())


def write_shards(folder: Path, tensors: Mapping[str, Array], n_shards: int) -> None:
    """Several files with their index."""
    names = list(tensors)
    weight_map = {}
    for number in range(n_shards):
        name = f"model-{number + 1:05d}-of-{n_shards:05d}.safetensors"
        mine = names[number::n_shards]
        write_safetensors(folder / name, {one: tensors[one] for one in mine})
        weight_map |= dict.fromkeys(mine, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def as_bf16(values: Array) -> Array:
    """Values cut to BF16, as the bits of a uint16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write_llama(
    source: Path, folder: Path, *, n_shards: int = 1, dtype: str = "float16"
) -> dict[str, Any]:
    """A GGUF file of the llama architecture in F16 as a folder; returns its config."""
    meta = read_header(source, arrays=True).metadata
    heads = {"attn_q": meta["llama.attention.head_count"]}
    heads["attn_k"] = meta["llama.attention.head_count_kv"]
    tensors = {}
    for source_name, stored in tensors_of(source).items():
        values = np.asarray(stored)
        parts = source_name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{parts[3]}"
            if parts[2] in heads:
                values = _rotary_halves(values, heads[parts[2]])
        else:
            name = _TOP[source_name]
        tensors[name] = as_bf16(values) if dtype == "bf16" else values.astype(dtype)
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
    else:
        write_shards(folder, tensors, n_shards)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads["attn_q"],
        "num_key_value_heads": heads["attn_k"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": 1e-05,
        "rope_theta": meta["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": meta["llama.vocab_size"],
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "unk_token_id": meta["tokenizer.ggml.unknown_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, meta)
    return config


def _rotary_halves(values: Array, n_heads: int) -> Array:
    """From llama.cpp's pairs of rows back to Hugging Face's halves of a head."""
    size = values.shape[0] // n_heads
    pairs = values.reshape(n_heads, size // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _write_tokenizer(folder: Path, meta: Mapping[str, Any]) -> None:
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    special = [n for n, kind in enumerate(types) if kind == gguf.TokenType.CONTROL]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": n, "content": tokens[n], "special": True} for n in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        },
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "vocab": {text: n for n, text in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": {"content": tokens[meta["tokenizer.ggml.eos_token_id"]]},
        "add_bos_token": False,
        "chat_template": meta["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Random:
    """Small random tensors."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(3)

    def __call__(self, *shape: int) -> Array:
        return (self._random.standard_normal(shape) * 0.05).astype(np.float32)


def write_bert(folder: Path, *, n_layers: int = 2, width: int = 64) -> dict[str, Array]:
    """A tiny BERT with a WordPiece vocabulary; returns its tensors."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), "hello"]
    random = Random()
    tensors = {
        "embeddings.word_embeddings.weight": random(len(words), width),
        "embeddings.position_embeddings.weight": random(128, width),
        "embeddings.token_type_embeddings.weight": random(2, width),
        "embeddings.LayerNorm.weight": random(width),
        "embeddings.LayerNorm.bias": random(width),
        "embeddings.position_ids": np.arange(128, dtype=np.int64).reshape(1, -1),
        "pooler.dense.weight": random(width, width),
        "pooler.dense.bias": random(width),
    }
    for layer in range(n_layers):
        block = f"encoder.layer.{layer}"
        for part, n_out, n_in in (
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", 4 * width, width),
            ("output.dense", width, 4 * width),
        ):
            tensors[f"{block}.{part}.weight"] = random(n_out, n_in)
            tensors[f"{block}.{part}.bias"] = random(n_out)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors[f"{block}.{part}.weight"] = random(width)
            tensors[f"{block}.{part}.bias"] = random(width)
    write_safetensors(folder / "model.safetensors", tensors)
    config = {
        "architectures": ["BertModel"],
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": n_layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "vocab_size": len(words),
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    added = [{"id": n, "content": text, "special": True} for n, text in enumerate(special)]
    vocab = {word: n for n, word in enumerate(words)}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab}
    model["continuing_subword_prefix"] = "##"
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": model}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"})
    )
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return tensors
