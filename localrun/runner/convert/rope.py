"""Rotary positions: the keys, and for Llama 3 the tensor of factors, that a config asks for.

Source: Hugging Face `modeling_rope_utils.py` (`rope_scaling`); llama.cpp `convert_hf_to_gguf.py`.
"""

import math

import gguf
import numpy as np
from gguf.constants import RopeScalingType
from numpy.typing import NDArray

from localrun.runner.convert.config import Config
from localrun.runner.jobs import Refused

_DEFAULT_BASE = 10_000.0


def add_rope(writer: gguf.GGUFWriter, config: Config, head_size: int) -> None:
    """Writes the keys. Raises Refused for a kind of scaling that GGUF has no keys for."""
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(_base(config))
    scaling, kind = _scaling(config)
    if scaling is None or kind in ("", "default", "llama3"):
        return
    if kind not in ("linear", "yarn"):
        raise Refused(
            f"`rope_scaling` of `config.json` is `{kind[:40]}`; supported are linear, llama3, yarn"
        )
    writer.add_rope_scaling_type(RopeScalingType(kind))
    writer.add_rope_scaling_factor(scaling.number("factor"))
    if kind == "yarn":
        trained = config.count("max_position_embeddings")
        original = scaling.count("original_max_position_embeddings", trained)
        writer.add_rope_scaling_orig_ctx_len(original)


def rope_factors(config: Config, head_size: int) -> NDArray[np.float32] | None:
    """What each frequency is divided by in Llama 3's scaling; None for other models."""
    scaling, kind = _scaling(config)
    if scaling is None or kind != "llama3":
        return None
    factor = scaling.number("factor", 8.0)
    low, high = scaling.number("low_freq_factor", 1.0), scaling.number("high_freq_factor", 4.0)
    trained = scaling.count("original_max_position_embeddings", 8192)
    if not (0 < low < high and factor > 0):
        raise Refused("`rope_scaling` of `config.json` has impossible factors")
    exponents = np.arange(0, head_size, 2, dtype=np.float64) / head_size
    wavelengths = 2 * math.pi * _base(config) ** exponents
    smooth = (trained / wavelengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(wavelengths < trained / high, 1.0, between)
    factors = np.where(wavelengths > trained / low, factor, factors)
    return factors.astype(np.float32)


def _base(config: Config) -> float:
    # Since version 5 of transformers it stands beside the scaling.
    nested = config.part("rope_parameters")
    inner = nested.number("rope_theta", _DEFAULT_BASE) if nested else _DEFAULT_BASE
    return config.number("rope_theta", inner)


def _scaling(config: Config) -> tuple[Config | None, str]:
    scaling = config.part("rope_scaling") or config.part("rope_parameters")
    if scaling is None:
        return None, ""
    return scaling, scaling.text("rope_type") or scaling.text("type")
