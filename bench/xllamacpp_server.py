"""llama.cpp's own server out of the `xllamacpp` wheel, in a process of its own.

`python -m bench.xllamacpp_server MODEL N_PARALLEL WINDOW THREADS FLASH_ATTENTION` prints its
address and serves until it is killed. The defaults of the wheel, except for what llama-server is
told as well.
"""

import sys
import threading

import xllamacpp

_FLASH_ATTENTION = {"off": 0, "on": 1, "auto": -1}


def main() -> None:
    """Starts the server and waits for the end."""
    model, n_parallel, window, threads = sys.argv[1], *map(int, sys.argv[2:5])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = n_parallel
    params.n_ctx = n_parallel * window
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type(_FLASH_ATTENTION[sys.argv[5]])
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    server = xllamacpp.Server(params)
    print(f"system_info: {xllamacpp.get_system_info()}")
    print(f"listening on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
