"""Tiny models as Hugging Face publishes them, for whatever needs a model but no sense."""

import json
from pathlib import Path
from typing import Any

from hugging_face import Random, write_safetensors

Json = dict[str, Any]


def write_tiny_llama(folder: Path, **config: Any) -> Json:
    """A llama of two layers and 300 tokens with random weights."""
    random = Random()
    width, n_kv, n_ff, n_vocab = 64, 32, 96, 300
    tensors = {
        "model.embed_tokens.weight": random(n_vocab, width),
        "model.norm.weight": random(width),
        "lm_head.weight": random(n_vocab, width),
    }
    for layer in range(2):
        block = f"model.layers.{layer}"
        for part, n_out, n_in in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", n_kv, width),
            ("self_attn.v_proj", n_kv, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", n_ff, width),
            ("mlp.up_proj", n_ff, width),
            ("mlp.down_proj", width, n_ff),
        ):
            tensors[f"{block}.{part}.weight"] = random(n_out, n_in)
        if config.get("architectures") == ["Qwen2ForCausalLM"]:
            for part, n_out in (("q_proj", width), ("k_proj", n_kv), ("v_proj", n_kv)):
                tensors[f"{block}.self_attn.{part}.bias"] = random(n_out)
        tensors[f"{block}.input_layernorm.weight"] = random(width)
        tensors[f"{block}.post_attention_layernorm.weight"] = random(width)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = random(8)
    write_safetensors(folder / "model.safetensors", tensors)
    values = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "intermediate_size": n_ff,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "vocab_size": n_vocab,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(values))
    return values


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(split: str | None = QWEN) -> Json:
    """A byte-level BPE of 256 bytes, a merge and a special token."""
    steps: list[Json] = [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": not split}]
    if split:
        steps.insert(0, {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated"})
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [n for n in range(256) if n not in printable]
    letters = [chr(n) for n in printable] + [chr(256 + n) for n in range(len(others))]
    vocab = {letter: n for n, letter in enumerate(letters)} | {"he": 256}
    return {
        "added_tokens": [
            {"id": 257, "content": "<|end|>", "special": True},
            {"id": 258, "content": "<tool>", "special": False},
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e"]},
    }


def sentence_piece() -> Json:
    """A BPE as Llama 2 and Mistral have it: bytes, a mark for spaces, ranks for scores."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    texts += ["▁", "h", "e", "he", "▁he"]
    return {
        "added_tokens": [
            {"id": n, "content": text, "special": True} for n, text in enumerate(texts[:3])
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "vocab": {text: n for n, text in enumerate(texts)},
            "merges": ["h e", "▁ he"],
        },
    }


def write_tokenizer(folder: Path, tokenizer: Json) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
