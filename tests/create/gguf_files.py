"""Other forms of a real GGUF file, written with the `gguf` package: parts, types, adapters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from modelstore.gguf import read_header

F32, F16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16

# What the writer adds by itself.
_OWN_KEYS = ("GGUF.", "general.architecture", "split.")


def tensors_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a file that has F16 and F32 only; quicker than the reader of `gguf`."""
    header = read_header(path)
    types = {"F16": np.float16, "F32": np.float32}
    return {
        tensor.name: np.memmap(
            path,
            types[tensor.type_name],
            "r",
            offset=header.data_offset + tensor.offset,
            shape=tuple(reversed(tensor.shape)),
        )
        for tensor in header.tensors
    }


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Every key of a file, in the type that it has there."""
    for key, field in reader.fields.items():
        if not key.startswith(_OWN_KEYS):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)


def split(source: Path, folder: Path, name: str = "part", n_tensors: int = 100) -> list[Path]:
    """The file as parts of `n_tensors` tensors each, in order."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    target = folder / f"{name}.gguf"
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=n_tensors)
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer)
    return sorted(folder.glob(f"{name}-*-of-*.gguf"))


def rewritten(
    source: Path,
    target: Path,
    convert: Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    file_type: int,
) -> Path:
    """The file with all tensors as floats that went through `convert`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer)
    writer.kv_data[0]["general.file_type"].value = file_type
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        shape = tuple(reversed(tensor.shape.tolist()))
        writer.add_tensor(tensor.name, convert(tensor.name, values.reshape(shape)))
    _finish(writer)
    return target


def as_f16(source: Path, target: Path) -> Path:
    """Matrices in F16, vectors in F32, as converters write them."""
    return rewritten(
        source,
        target,
        lambda _, values: values.astype(np.float16 if values.ndim > 1 else np.float32),
        gguf.LlamaFileType.MOSTLY_F16,
    )


def write_adapter(
    base: Path, target: Path, *, scale: float, architecture: str = "llama", kind: str = "lora"
) -> Path:
    """A LoRA adapter of rank 4 for the attention's output; `scale` 0 changes nothing."""
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", 4.0)
    random = np.random.default_rng(7)
    for tensor in read_header(base).tensors:
        if tensor.name.endswith("attn_output.weight"):
            n_in, n_out = tensor.shape
            a = random.standard_normal((4, n_in)).astype(np.float32)
            b = random.standard_normal((n_out, 4)).astype(np.float32) * np.float32(scale)
            writer.add_tensor(tensor.name + ".lora_a", a)
            writer.add_tensor(tensor.name + ".lora_b", b)
    _finish(writer)
    return target


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
