"""Compiled functions that the trainers of a run hand to each other; called by ``backend.py``.

Compiling a function takes much longer than loading one that another process compiled, with the same bits. JAX asks its
compilation cache for each function that it is going to compile, by a key that is the SHA-256 of the function's
operations, of the options and of the versions. This module's cache is in memory: it holds what other trainers compiled,
and notes what this trainer compiles. ``trainer/sharing.py`` gets functions with requests, and puts new ones into
answers.

A compiled function is machine code. A process that loads one trusts the process that made it.
"""

import collections
import pathlib
from collections.abc import Mapping

import jax
from jax._src import compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

#: A function that compiles faster is not worth handing over.
_LEAST_COMPILE_S = 0.1
#: Bytes of compiled functions that are held; the oldest are dropped.
_MOST_HELD = 64 << 20


class Exchange(CacheInterface):
    """A cache of compiled functions, each compressed by JAX, by its key; see `SharedFunctions`."""

    _path = pathlib.Path()  # JAX's interface has it

    def __init__(self) -> None:
        self._held: collections.OrderedDict[str, bytes] = collections.OrderedDict()
        self._new: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """Return a function, or None; JAX calls it before it compiles."""
        return self._held.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Note a function that was compiled here; called by JAX."""
        self._new[key] = value
        self._hold(key, value)

    def take(self, functions: Mapping[str, bytes]) -> None:
        """Hold functions that other trainers compiled."""
        for key, value in functions.items():
            self._hold(key, value)

    def new(self) -> dict[str, bytes]:
        """Return the functions that were compiled here since the last call."""
        new, self._new = self._new, {}
        return new

    def _hold(self, key: str, value: bytes) -> None:
        self._held[key] = value
        while sum(map(len, self._held.values())) > _MOST_HELD:
            self._held.popitem(last=False)


def begin() -> Exchange:
    """Let JAX use an exchange in this process; call it before anything is compiled."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_COMPILE_S)
    exchange = Exchange()
    compilation_cache._cache = exchange
    return exchange
