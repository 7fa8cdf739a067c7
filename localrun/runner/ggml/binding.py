"""llama-cpp-python's low-level API, without the package around it.

The package's own `__init__` imports a high-level API of its own, with a database and several
servers' worth of helpers: 30 ms of every start of a runner, and 10 MB while it lives.
"""

import importlib
import importlib.util
import sys
from typing import Any

_PACKAGE = "llama_cpp"


def _load() -> Any:
    if _PACKAGE in sys.modules:
        return importlib.import_module("llama_cpp.llama_cpp")
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None:
        raise ModuleNotFoundError("llama-cpp-python is not installed", name=_PACKAGE)
    # A package is only a place to look for modules as long as its `__init__` has not run.
    sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    finally:
        # Whoever imports it after us finds all of it.
        del sys.modules[_PACKAGE]


lib = _load()
