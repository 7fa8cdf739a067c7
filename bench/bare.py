"""The yardstick: `llama_decode` and an argmax in a loop, in a process that does nothing else.

`python -m bench.bare MODEL …` prints one JSON object: decode tokens per second for each layout of
the context that was asked for. It shares no code with the runner, so that a slow habit there
cannot hide in both.
"""

import argparse
import ctypes
import json
import time
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

# As the runner: rows of one forward.
_N_BATCH = 512
# More than the structure has: a mask of 512 bytes and five numbers.
_THREADPOOL_PARAMS_BYTES = 1024
_FLASH_ATTENTION = {"off": 0, "on": 1, "auto": -1}


def main() -> None:
    """Measures every variant and prints the result."""
    parser = argparse.ArgumentParser(prog="bench.bare")
    parser.add_argument("model")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--n-seq-max", type=int, nargs="+", default=[1])
    parser.add_argument("--flash-attention", nargs="+", default=["off"], choices=_FLASH_ATTENTION)
    arguments = parser.parse_args()

    silent = lib.llama_log_callback(lambda level, text, user_data: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(
        arguments.model.encode(), lib.llama_model_default_params()
    )
    if not model:
        raise SystemExit(f"llama.cpp cannot load {arguments.model}")
    tokens = _tokenize(lib.llama_model_get_vocab(model), arguments.prompt)
    rates = [
        {
            "n_seq_max": n_seq_max,
            "flash_attention": flash_attention,
            "rate": _decode_rate(model, tokens, arguments, n_seq_max, flash_attention),
        }
        for n_seq_max in arguments.n_seq_max
        for flash_attention in arguments.flash_attention
    ]
    system_info = lib.llama_print_system_info().decode()
    print(json.dumps({"rates": rates, "system_info": system_info}))


def _tokenize(vocab: Any, text: str) -> list[int]:
    data = text.encode()
    buffer = (lib.llama_token * (len(data) + 8))()
    n = lib.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, True)
    return list(buffer[:n])


def _decode_rate(
    model: Any, prompt: list[int], arguments: Any, n_seq_max: int, flash_attention: str
) -> float:
    params = lib.llama_context_default_params()
    params.n_ctx = arguments.window * n_seq_max
    params.n_seq_max = n_seq_max
    params.n_batch = params.n_ubatch = _N_BATCH
    params.n_outputs_max = n_seq_max
    params.n_threads = params.n_threads_batch = arguments.threads
    params.swa_full = False
    params.kv_unified = False
    params.flash_attn_type = _FLASH_ATTENTION[flash_attention]
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise SystemExit(f"no context for {n_seq_max} windows of {arguments.window} tokens")
    pool = _threadpool(arguments.threads)
    lib._lib.llama_attach_threadpool(ctypes.c_void_p(context), pool, pool)
    n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
    row = lib.llama_token * 1
    # Positions and the sequence follow by themselves: the next ones of sequence 0.
    token = _forward(context, (lib.llama_token * len(prompt))(*prompt), n_vocab)
    began = time.perf_counter()
    for _ in range(arguments.tokens - 1):
        token = _forward(context, row(token), n_vocab)
    seconds = time.perf_counter() - began
    lib.llama_free(context)
    lib._lib.ggml_threadpool_free(pool)
    return float((arguments.tokens - 1) / seconds)


def _threadpool(n_threads: int) -> ctypes.c_void_p:
    """llama.cpp's threads with its defaults: without one it starts them for every forward."""
    params = ctypes.create_string_buffer(_THREADPOOL_PARAMS_BYTES)
    lib._lib.ggml_threadpool_params_init(params, n_threads)
    new = lib._lib.ggml_threadpool_new
    new.restype = ctypes.c_void_p
    return ctypes.c_void_p(new(params))


def _forward(context: Any, tokens: Any, n_vocab: int) -> int:
    """The likeliest token after `tokens`."""
    code = lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(tokens)))
    if code != 0:
        raise SystemExit(f"llama_decode returned {code}")
    logits = lib.llama_get_logits_ith(context, -1)
    return int(np.ctypeslib.as_array(logits, (n_vocab,)).argmax())


if __name__ == "__main__":
    main()
