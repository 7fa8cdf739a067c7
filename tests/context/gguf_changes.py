"""A real model with other metadata: the same tensors and vocabulary, and what a test changes."""

import shutil
from pathlib import Path
from typing import Any

import gguf

_SCALARS = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    str: gguf.GGUFValueType.STRING,
}


def changed(
    source: Path, target: Path, changes: dict[str, Any], *, has_tensors: bool = True
) -> Path:
    """Copies `source` with other values; None leaves a key out. Arrays are kept as they are.

    Without tensors there is a vocabulary and no model.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in changes:
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub_type)
    for name, value in changes.items():
        if value is not None:
            writer.add_key_value(name, value, _SCALARS[type(value)])
    for tensor in reader.tensors if has_tensors else ():
        writer.add_tensor_info(
            tensor.name, tensor.data.shape, tensor.data.dtype, tensor.n_bytes, tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.fout[0].close()
    if has_tensors:
        _append_data(reader, source, target)
    return target


def _append_data(reader: gguf.GGUFReader, source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("r+b") as new:
        new.seek(0, 2)
        new.write(b"\0" * (-new.tell() % reader.alignment))
        old.seek(reader.data_offset)
        shutil.copyfileobj(old, new, 1 << 20)
