"""The job that turns a folder with safetensors into one GGUF file. No torch, no foreign code.

Owns the order: everything is looked at before the first byte is written, then one tensor at a time
passes through memory.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf.constants import PoolingType

from localrun.runner.convert.architectures import Architecture, architecture_of, head_size, n_blocks
from localrun.runner.convert.config import Config, read_json
from localrun.runner.convert.rope import rope_factors
from localrun.runner.convert.safetensors import read_tensors
from localrun.runner.convert.tensors import TargetTensor, target_tensors
from localrun.runner.convert.vocabulary import read_vocabulary
from localrun.runner.jobs import Refused, Report

_STATUS = "converting model"
_ROPE_FACTORS = "rope_freqs.weight"
_POOLING = {
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_lasttoken": PoolingType.LAST,
}


def convert(source: str, target: str, report: Report) -> None:
    """Writes the model of the folder `source` to the file `target`. Raises Refused."""
    folder = Path(source)
    config = _read_config(folder)
    architecture = architecture_of(config)
    tensors = target_tensors(architecture, config, read_tensors(folder))
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture.gguf])
    writer.add_type("model")
    architecture.describe(writer, config)
    if architecture.is_encoder:
        writer.add_pooling_type(_pooling(folder))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    read_vocabulary(folder, _n_embedded(tensors)).add_to(writer, folder)
    factors = None if architecture.is_encoder else rope_factors(config, head_size(config))
    _write(writer, architecture, config, tensors, factors, report)


def _read_config(folder: Path) -> Config:
    values = read_json(folder / "config.json")
    if values is None:
        raise Refused("there is no `config.json` beside the safetensors")
    config = Config(values)
    if n_blocks(config) > 1000:
        raise Refused("`num_hidden_layers` of `config.json` is above 1000")
    return config


def _pooling(folder: Path) -> PoolingType:
    """How an encoder's outputs become one vector; the mean where nobody says."""
    values = read_json(folder / "1_Pooling" / "config.json")
    if values is None:
        return PoolingType.MEAN
    for key, pooling in _POOLING.items():
        if values.get(key) is True:
            return pooling
    raise Refused("`1_Pooling/config.json` asks for a pooling other than mean, cls and last token")


def _n_embedded(tensors: list[TargetTensor]) -> int:
    embeddings = next(tensor for tensor in tensors if tensor.name == "token_embd.weight")
    return embeddings.source.shape[0] if embeddings.source.shape else 0


def _write(
    writer: gguf.GGUFWriter,
    architecture: Architecture,
    config: Config,
    tensors: list[TargetTensor],
    factors: "np.typing.NDArray[np.float32] | None",
    report: Report,
) -> None:
    if factors is not None:
        writer.add_tensor_info(_ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    for tensor in tensors:
        shape, dtype = tensor.source.shape, tensor.dtype
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        writer.add_tensor_info(tensor.name, shape, dtype, n_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for number, tensor in enumerate(tensors, 1):
        writer.write_tensor_data(tensor.values(architecture, config))
        report.progress(_STATUS, number, len(tensors))
    writer.close()
