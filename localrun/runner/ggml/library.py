"""The C functions of ggml and llama.cpp that llama-cpp-python does not declare. Addresses in, out.

They are looked up through libllama, which was linked with all of ggml. Nothing is kept here.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

from localrun.runner.ggml.binding import lib

_pointer = ctypes.c_void_p
_text = ctypes.c_char_p
_size = ctypes.c_size_t

TYPE_CPU, TYPE_GPU, TYPE_IGPU, TYPE_ACCEL = 0, 1, 2, 3


class _Caps(ctypes.Structure):
    _fields_ = [
        ("is_async", ctypes.c_bool),
        ("host_buffer", ctypes.c_bool),
        ("buffer_from_host_ptr", ctypes.c_bool),
        ("events", ctypes.c_bool),
        ("mmap_support", ctypes.c_bool),
    ]


class _Props(ctypes.Structure):
    _fields_ = [
        ("name", _text),
        ("description", _text),
        ("memory_free", _size),
        ("memory_total", _size),
        ("type", ctypes.c_int),
        ("device_id", _text),
        ("caps", _Caps),
        ("_reserve", ctypes.c_uint8 * 64),  # where a later llama.cpp writes more than we know
    ]


class _ThreadpoolParams(ctypes.Structure):
    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
        ("_reserve", ctypes.c_uint8 * 64),  # where a later llama.cpp writes more than we know
    ]


class _GgufParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", _pointer)]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(lib._lib, name)
    function.restype = result
    function.argtypes = list(arguments)
    return function


_dev_count = _function("ggml_backend_dev_count", _size)
_dev_get = _function("ggml_backend_dev_get", _pointer, _size)
_dev_name = _function("ggml_backend_dev_name", _text, _pointer)
_dev_memory = _function(
    "ggml_backend_dev_memory", None, _pointer, ctypes.POINTER(_size), ctypes.POINTER(_size)
)
_dev_props = _function("ggml_backend_dev_get_props", None, _pointer, ctypes.POINTER(_Props))
_dev_reg = _function("ggml_backend_dev_backend_reg", _pointer, _pointer)
_reg_name = _function("ggml_backend_reg_name", _text, _pointer)
_dev_buffer_type = _function("ggml_backend_dev_buffer_type", _pointer, _pointer)
_buft_name = _function("ggml_backend_buft_name", _text, _pointer)
_buft_device = _function("ggml_backend_buft_get_device", _pointer, _pointer)
_buft_is_host = _function("ggml_backend_buft_is_host", ctypes.c_bool, _pointer)
_cpu_buffer_type = _function("ggml_backend_cpu_buffer_type", _pointer)
_reg_by_name = _function("ggml_backend_reg_by_name", _pointer, _text)
_reg_dev_count = _function("ggml_backend_reg_dev_count", _size, _pointer)
_reg_dev_get = _function("ggml_backend_reg_dev_get", _pointer, _pointer, _size)
_reg_address = _function("ggml_backend_reg_get_proc_address", _pointer, _pointer, _text)
_register = _function("ggml_backend_register", None, _pointer)
_gguf_open = _function("gguf_init_from_file", _pointer, _text, _GgufParams)
_gguf_close = _function("gguf_free", None, _pointer)
_gguf_n_tensors = _function("gguf_get_n_tensors", ctypes.c_int64, _pointer)
_gguf_name = _function("gguf_get_tensor_name", _text, _pointer, ctypes.c_int64)
_gguf_bytes = _function("gguf_get_tensor_size", _size, _pointer, ctypes.c_int64)
_threadpool_params = _function(
    "ggml_threadpool_params_init", None, ctypes.POINTER(_ThreadpoolParams), ctypes.c_int
)
_threadpool_new = _function("ggml_threadpool_new", _pointer, ctypes.POINTER(_ThreadpoolParams))
_threadpool_pause = _function("ggml_threadpool_pause", None, _pointer)
_threadpool_free = _function("ggml_threadpool_free", None, _pointer)
_threadpool_attach = _function("llama_attach_threadpool", None, _pointer, _pointer, _pointer)

_AddServer = ctypes.CFUNCTYPE(_pointer, _text)
_AbortCallback = ctypes.CFUNCTYPE(None, _text)


def _str(text: bytes | None) -> str:
    return text.decode("utf-8", "replace") if text else ""


def own_devices() -> list[int]:
    """The devices of this machine. Those of RPC servers are not asked: one may be gone."""
    handles = [_dev_get(number) for number in range(_dev_count())]
    return [handle for handle in handles if _str(_reg_name(_dev_reg(handle))) != "RPC"]


def device_name(device: int) -> str:
    """llama.cpp's name of it: CPU, CUDA0, …"""
    return _str(_dev_name(device))


def device_props(device: int) -> tuple[str, int, str]:
    """(description, type, id of its place in the machine or an empty text)."""
    props = _Props()
    _dev_props(device, props)
    return _str(props.description), props.type, _str(props.device_id)


def device_memory(device: int) -> tuple[int, int]:
    """(free, total) bytes, as its driver says now; of an RPC device, as its server does."""
    free, total = _size(), _size()
    _dev_memory(device, free, total)
    return free.value, total.value


def add_rpc_server(endpoint: str) -> list[int]:
    """Connects to a server and registers its devices. Without an answer the process ends.

    No devices when llama.cpp was built without RPC. A second call changes nothing.
    """
    rpc = _reg_by_name(b"RPC")
    address = rpc and _reg_address(rpc, b"ggml_backend_rpc_add_server")
    if not address:
        return []
    server = _AddServer(address)(endpoint.encode())
    if not server:
        return []
    _register(server)
    return [_reg_dev_get(server, number) for number in range(_reg_dev_count(server))]


def has_rpc() -> bool:
    """True when llama.cpp was built with its RPC backend."""
    return bool(_reg_by_name(b"RPC"))


def buffer_names(device: int) -> str:
    """What the buffers of a device are called in the log."""
    return _str(_buft_name(_dev_buffer_type(device)))


def on_abort(report: Callable[[bytes], None]) -> Any:
    """`report` gets the message when ggml ends the process. The result must stay alive."""
    callback = _AbortCallback(report)
    try:
        _function("ggml_set_abort_callback", _pointer, _AbortCallback)(callback)
    except AttributeError:  # an older ggml writes its message itself
        return None
    return callback


def cpu_buffer_type() -> int:
    """Where tensors go that shall stay in RAM."""
    return int(_cpu_buffer_type())


def tensor_bytes(path: bytes) -> dict[str, int]:
    """The tensors of a GGUF file by name. Empty for a file that ggml cannot read."""
    file = _gguf_open(path, _GgufParams(True, None))
    if not file:
        return {}
    try:
        return {
            _str(_gguf_name(file, number)): _gguf_bytes(file, number)
            for number in range(_gguf_n_tensors(file))
        }
    finally:
        _gguf_close(file)


# ---- compute threads


def new_threadpool(n_threads: int, *, polls: bool) -> int:
    """Threads that wait for work: in a spin, as long as llama.cpp's own do, or asleep.

    The thread that evaluates is one of them, so there is one less.
    """
    params = _ThreadpoolParams()
    _threadpool_params(params, n_threads)
    if not polls:
        params.poll = 0
    return int(_threadpool_new(params))


def pause_threadpool(pool: int) -> None:
    """The threads sleep until the next forward."""
    _threadpool_pause(pool)


def free_threadpool(pool: int) -> None:
    """Ends the threads.

    A context keeps the pool that it has evaluated with until it has done so with another one.
    """
    _threadpool_free(pool)


def attach_threadpool(context: Any, pool: int) -> None:
    """The context evaluates with these threads from now on."""
    _threadpool_attach(context, pool, pool)


# ---- what a context has allocated


class _Map(ctypes.Structure):
    """A `std::map` of libstdc++: comparison, then the header node of a red-black tree.

    A structure of this size is returned through a hidden pointer, and so is the map.
    """

    _fields_ = [("words", ctypes.c_uint64 * 6)]


_MAP_ROOT, _MAP_COUNT = 2, 5
_NODE_LEFT, _NODE_RIGHT, _NODE_KEY = 16, 24, 32
_MAX_BUFFER_TYPES = 64


def _find_breakdown() -> Any:
    # Not part of llama.h: a C++ name, and a map as libstdc++ lays it out. Elsewhere there is none.
    try:
        with open("/proc/self/maps") as maps:
            is_known = sys.maxsize > 1 << 32 and any("libstdc++" in line for line in maps)
        name = "_Z26llama_get_memory_breakdownPK13llama_context"
        return _function(name, _Map, _pointer) if is_known else None
    except (OSError, AttributeError):
        return None


_breakdown = _find_breakdown()


def breakdown(context: Any) -> list[tuple[int, int, int, int]] | None:
    """(buffer type, bytes of weights, KV, compute) of all that a context and its model have.

    None where llama.cpp does not tell it exactly. The nodes of the map are leaked, some 100 bytes
    a call.
    """
    if _breakdown is None:
        return None
    tree = _breakdown(context).words
    count, root = tree[_MAP_COUNT], tree[_MAP_ROOT]
    if not 0 < count <= _MAX_BUFFER_TYPES or not root:
        return None
    nodes = list(_walk(root, count))
    keys = [node[0] for node in nodes]
    is_whole = len(nodes) == count and keys == sorted(set(keys)) and 0 not in keys
    return nodes if is_whole else None


def _walk(node: int, limit: int) -> Iterator[tuple[int, int, int, int]]:
    if node and limit:
        yield from _walk(_word(node + _NODE_LEFT), limit - 1)
        key, *sizes = (_word(node + _NODE_KEY + 8 * number) for number in range(4))
        yield key, sizes[0], sizes[1], sizes[2]
        yield from _walk(_word(node + _NODE_RIGHT), limit - 1)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def buffer_home(buffer_type: int) -> tuple[str, int | None, bool]:
    """(name, device, whether it is ordinary memory) of a buffer type."""
    return (
        _str(_buft_name(buffer_type)),
        _buft_device(buffer_type),
        _buft_is_host(buffer_type),
    )
