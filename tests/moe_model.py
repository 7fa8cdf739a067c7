"""A tiny mixture of experts that llama.cpp loads: random weights, no vocabulary, no sense."""

from pathlib import Path

import gguf
import numpy as np

N_LAYERS, N_EMBD, N_FF, N_EXPERTS = 6, 128, 512, 8

EXPERT_BYTES = 3 * N_EXPERTS * N_EMBD * N_FF * 2  # of one layer: up, gate and down, in F16


def write_moe_model(path: Path) -> Path:
    """Writes the model; its experts are nearly all of it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // 4)
    writer.add_expert_count(N_EXPERTS)
    writer.add_expert_used_count(2)
    writer.add_vocab_size(256)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, np.float32) * 0.05
        is_norm = name.endswith("norm.weight") or "gate_inp" in name
        writer.add_tensor(name, values if is_norm else values.astype(np.float16))

    add("token_embd.weight", 256, N_EMBD)
    add("output_norm.weight", N_EMBD)
    add("output.weight", 256, N_EMBD)
    for layer in range(N_LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm.weight", N_EMBD)
        add(f"{block}.ffn_norm.weight", N_EMBD)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{part}.weight", N_EMBD, N_EMBD)
        add(f"{block}.ffn_gate_inp.weight", N_EXPERTS, N_EMBD)
        add(f"{block}.ffn_up_exps.weight", N_EXPERTS, N_FF, N_EMBD)
        add(f"{block}.ffn_gate_exps.weight", N_EXPERTS, N_FF, N_EMBD)
        add(f"{block}.ffn_down_exps.weight", N_EXPERTS, N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
