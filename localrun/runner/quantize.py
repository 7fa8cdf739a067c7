"""The job that quantizes a model: llama.cpp's own function, and what its log says of progress."""

import ctypes
import os
import re
from typing import Any

from localrun.runner.ggml.binding import lib
from localrun.runner.jobs import Refused, Report

# `[  12/ 272] blk.0.attn_q.weight - [ 576, 576, 1, 1], type = f16, converting to q8_0 .. `
_TENSOR_LINE = re.compile(r"\[\s*(\d+)/\s*(\d+)\] ")
_ERROR = 4

FILE_TYPES = {
    "F32": lib.LLAMA_FTYPE_ALL_F32,
    "F16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": lib.LLAMA_FTYPE_MOSTLY_BF16,
    "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q6_K": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "Q5_K_M": lib.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "Q5_K_S": lib.LLAMA_FTYPE_MOSTLY_Q5_K_S,
    "Q5_1": lib.LLAMA_FTYPE_MOSTLY_Q5_1,
    "Q5_0": lib.LLAMA_FTYPE_MOSTLY_Q5_0,
    "Q4_K_M": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q4_K_S": lib.LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "Q4_1": lib.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
}


def quantize(source: str, target: str, name: str, report: Report) -> None:
    """Writes `source`, of a split model its first part, to `target` with the type `name`.

    Raises Refused for a model that llama.cpp does not take.
    """
    params = lib.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[name]
    # A failed assertion would start a debugger, which takes seconds and buries the assertion.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    log = _Log(report)
    lib.llama_log_set(log.callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    code = lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), params)
    if code != 0:
        raise Refused(f"llama.cpp cannot quantize the model: {log.problem or f'code {code}'}")


class _Log:
    """llama.cpp's log: lines about tensors become progress, errors are kept."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.problem = ""
        self.callback = lib.llama_log_callback(self._receive)

    def _receive(self, level: int, text: bytes, _user_data: Any) -> None:
        line = text.decode("utf-8", "replace")
        if match := _TENSOR_LINE.match(line):
            self._report.progress("quantizing", int(match[1]), int(match[2]))
        elif level >= _ERROR and line.strip():
            self.problem = line.strip().rpartition("failed to quantize: ")[2]
