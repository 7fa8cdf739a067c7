"""Another quantization of a model, made once by llama.cpp itself and kept in the user's cache."""

import ctypes
from pathlib import Path

import llama_cpp.llama_cpp as lib

from bench.rig import cache_folder


def as_q4_0(model: Path) -> Path:
    """`model` as Q4_0, whatever it is quantized as. Raises: SystemExit when llama.cpp refuses.

    Quantizing twice costs quality, not speed, and speed is what is measured.
    """
    folder = cache_folder() / "bench"
    target = folder / f"{model.stem}-as-q4_0.gguf"
    if target.exists() and target.stat().st_mtime >= model.stat().st_mtime:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    params = lib.llama_model_quantize_default_params()
    params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    part = target.with_suffix(".part")
    silent = lib.llama_log_callback(lambda level, text, user_data: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    code = lib.llama_model_quantize(str(model).encode(), str(part).encode(), params)
    if code != 0:
        part.unlink(missing_ok=True)
        raise SystemExit(f"llama.cpp cannot quantize {model}: code {code}")
    part.rename(target)
    return target
