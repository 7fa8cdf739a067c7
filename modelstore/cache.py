"""A small bounded cache with the least recently used entry as its victim. Thread-safe."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class LruCache(Generic[_Value]):
    """At most `n_max` values; keys say which state of a file a value was made from."""

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> _Value | None:
        """The value, which becomes the latest used; None when it is not, or no longer, here."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: _Value) -> None:
        """Keeps the value as the latest used; beyond `n_max` the least recently used one goes."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._n_max:
                self._values.popitem(last=False)
