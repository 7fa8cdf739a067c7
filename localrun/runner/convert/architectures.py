"""The architectures that can be converted: what each one's config and tensors become in GGUF.

A table, so that another architecture is a row and, where it differs, a function.
Source: llama.cpp `convert_hf_to_gguf.py` (which keys an architecture has, the order of rotary
halves in q and k, the F32 of small tensors); names by `gguf.TensorNameMap`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH, MODEL_TENSOR

from localrun.runner.convert.config import Config
from localrun.runner.convert.rope import add_rope
from localrun.runner.convert.safetensors import Array
from localrun.runner.jobs import Refused

Transform = Callable[[Config, str, Array], Array]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row. Suffixes end the Hugging Face name of a tensor, prefixes begin it."""

    gguf: MODEL_ARCH
    describe: Callable[[gguf.GGUFWriter, Config], None]
    required: tuple[MODEL_TENSOR, ...]
    transform: Transform = lambda _config, _name, values: values
    strips: str = ""
    leaves_out: tuple[str, ...] = ()
    is_encoder: bool = False


def n_blocks(config: Config) -> int:
    """Layers of the model."""
    return config.count("num_hidden_layers")


def head_size(config: Config) -> int:
    """Values of one attention head. Raises Refused where they do not come out even."""
    heads, width = config.count("num_attention_heads"), config.count("hidden_size")
    if not config.has("head_dim") and width % heads:
        raise Refused(f"`hidden_size` {width} is no multiple of {heads} attention heads")
    return config.count("head_dim", width // heads)


def _describe(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(n_blocks(config))
    writer.add_context_length(config.count("max_position_embeddings"))
    writer.add_embedding_length(config.count("hidden_size"))
    writer.add_feed_forward_length(config.count("intermediate_size"))
    writer.add_head_count(config.count("num_attention_heads"))


def _describe_decoder(writer: gguf.GGUFWriter, config: Config) -> None:
    _describe(writer, config)
    heads = config.count("num_attention_heads")
    writer.add_head_count_kv(config.count("num_key_value_heads", heads))
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps", 1e-6))
    size = head_size(config)
    if size * heads != config.count("hidden_size"):
        writer.add_key_length(size)
        writer.add_value_length(size)
    writer.add_vocab_size(config.count("vocab_size"))
    add_rope(writer, config, size)


def _describe_bert(writer: gguf.GGUFWriter, config: Config) -> None:
    _describe(writer, config)
    if config.text("position_embedding_type", "absolute") != "absolute":
        raise Refused("BERT models with relative positions are not supported")
    writer.add_layer_norm_eps(config.number("layer_norm_eps", 1e-12))
    writer.add_causal_attention(False)
    writer.add_token_type_count(config.count("type_vocab_size", 2))


def _llama_order(config: Config, name: str, values: Array) -> Array:
    """Hugging Face rotates the halves of a head, llama.cpp its even and odd rows."""
    heads = config.count("num_attention_heads")
    if name.endswith(("k_proj.weight", "k_proj.bias")):
        heads = config.count("num_key_value_heads", heads)
    elif not name.endswith(("q_proj.weight", "q_proj.bias")):
        return values
    if values.shape[0] % (2 * heads):
        raise Refused(f"the tensor `{name}` does not have {heads} heads")
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


_DECODER_TENSORS = (
    MODEL_TENSOR.TOKEN_EMBD,
    MODEL_TENSOR.OUTPUT_NORM,
    MODEL_TENSOR.ATTN_NORM,
    MODEL_TENSOR.ATTN_Q,
    MODEL_TENSOR.ATTN_K,
    MODEL_TENSOR.ATTN_V,
    MODEL_TENSOR.ATTN_OUT,
    MODEL_TENSOR.FFN_NORM,
    MODEL_TENSOR.FFN_GATE,
    MODEL_TENSOR.FFN_UP,
    MODEL_TENSOR.FFN_DOWN,
)
_BERT_TENSORS = (
    MODEL_TENSOR.TOKEN_EMBD,
    MODEL_TENSOR.TOKEN_EMBD_NORM,
    MODEL_TENSOR.POS_EMBD,
    MODEL_TENSOR.ATTN_Q,
    MODEL_TENSOR.ATTN_K,
    MODEL_TENSOR.ATTN_V,
    MODEL_TENSOR.ATTN_OUT,
    MODEL_TENSOR.ATTN_OUT_NORM,
    MODEL_TENSOR.FFN_UP,
    MODEL_TENSOR.FFN_DOWN,
    MODEL_TENSOR.LAYER_OUT_NORM,
)

# Buffers that some checkpoints keep although they follow from the config.
_COMPUTED = (".rotary_emb.inv_freq", ".attention.bias", ".masked_bias")

_LLAMA = Architecture(
    MODEL_ARCH.LLAMA, _describe_decoder, _DECODER_TENSORS, _llama_order, leaves_out=_COMPUTED
)

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Architecture(
        MODEL_ARCH.QWEN2, _describe_decoder, _DECODER_TENSORS, leaves_out=_COMPUTED
    ),
    "BertModel": Architecture(
        MODEL_ARCH.BERT,
        _describe_bert,
        _BERT_TENSORS,
        strips="bert.",
        leaves_out=(
            "embeddings.position_ids",
            "pooler.dense.weight",
            "pooler.dense.bias",
        ),
        is_encoder=True,
    ),
}


def architecture_of(config: Config) -> Architecture:
    """The row for a model. Raises Refused, naming what is supported."""
    names = config.architectures()
    if config.has("quantization_config"):
        raise Refused(
            "the safetensors are quantized already; convert the original F16, BF16 or F32 model"
        )
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    said = f"`{names[0][:80]}`" if names else "not named in `config.json`"
    raise Refused(
        f"the architecture of the safetensors is {said}; supported are "
        f"{', '.join(ARCHITECTURES)}; for others use a GGUF file"
    )
