"""The aggregate madlib_mop.average_state: transition, merge and final step; the arithmetic is a trainer's.

Called by the bodies in sql/28-averaging.sql, in a worker session of a run (which lends its own trainer) or in any other
session, including one with its trainer on another host. Such a session starts a process for itself, which imports NumPy
only, enters its sandbox at once, and starts fast. The aggregate's state is bytes, so that parallel workers and
Greenplum's segments can pass it on: one byte for the kind, the number of rows, and then a single part or a sum of parts
in float64 (madlib_mop/trainer/data/averaging.py).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mop_backend import call
from mop_backend.frames import Blob, Header
from mop_backend.process import Child, ChildDied, start_trainer
from mop_backend.sql_errors import ErrorFields

if TYPE_CHECKING:
    from mop_backend.dispatch import Dispatch

_HEAD = struct.Struct(">cq")
_PART, _SUM = b"p", b"s"

_FUNCTION = "average_state"

_borrowed: Child | Dispatch | None = None
_own: Child | None = None
_last_error: ErrorFields | None = None


def step(name: str, a: bytes | None, b: bytes | None, n_rows: int | None) -> bytes | None:
    """Run one step of the aggregate; only ``b`` and ``n_rows`` can be None, in steps that do not use them.

    Parameters
    ----------
    name : str
        "add" (the part ``b`` of ``n_rows`` rows to the state ``a``, which may be None), "merge" (two states) or "end".
    a, b : bytes or None
    n_rows : int or None

    Returns
    -------
    bytes or None
        The new state, or for "end" the average; None after an error, which `last_error` returns: raising it here
        would show a traceback.
    """
    global _last_error
    _last_error = None
    try:
        if name == "add":
            assert b is not None and n_rows is not None
            return _add(a, b, n_rows)
        assert a is not None
        if name == "end":
            return _end(a)
        assert b is not None
        return _merge(a, b)
    except Exception as error:
        _last_error = call.error_fields(_FUNCTION, error)
        return None


def last_error() -> ErrorFields | None:
    """Return the fields of the error of the last step."""
    return _last_error


@contextlib.contextmanager
def with_trainer(child: Child | Dispatch | None) -> Iterator[Callable[[], Child | Dispatch]]:
    """Let the aggregate use this idle trainer inside the block; with None, it uses its own process.

    Yields
    ------
    callable
        Returns the trainer that the aggregate uses.
    """
    global _borrowed
    _borrowed = child
    try:
        yield _trainer
    finally:
        _borrowed = None


def _add(state: bytes | None, part: bytes, n_rows: int) -> bytes:
    if n_rows < 0:
        raise _refused(f"n_rows must be 0 or more. Received: {n_rows}")
    one = _HEAD.pack(_PART, n_rows) + part
    return one if state is None else _merge(state, one)


def _merge(a: bytes, b: bytes) -> bytes:
    kinds, counts, blobs = zip(*map(_opened, (a, b)), strict=True)
    request = {"op": "average_add", "n_rows": counts, "summed": [kind == _SUM for kind in kinds]}
    return _HEAD.pack(_SUM, sum(counts)) + _ask(request, blobs)


def _end(state: bytes) -> bytes:
    kind, n_rows, blob = _opened(state)
    return bytes(_ask({"op": "average_end", "n_rows": n_rows, "summed": kind == _SUM}, [blob]))


def _opened(state: bytes) -> tuple[bytes, int, memoryview]:
    if len(state) < _HEAD.size or state[:1] not in (_PART, _SUM):
        raise _refused("this is not a state of the aggregate")
    kind, n_rows = _HEAD.unpack_from(state)
    return kind, n_rows, memoryview(state)[_HEAD.size :]


def _ask(request: Header, blobs: Sequence[Blob]) -> Blob:
    try:
        answer, out = _trainer().ask(request, blobs)
    except ChildDied as death:
        message = f"{_FUNCTION}: its trainer ended with status {death.returncode}"
        raise call.CallError(message, "58000", detail=death.last_words) from None
    if "error" in answer:
        error = answer["error"]
        raise call.CallError(f"{_FUNCTION}: {error['message']}", error["sqlstate"], hint=error.get("hint"))
    return out[0] if isinstance(out[0], Blob) else bytes(out[0])


def _trainer() -> Child | Dispatch:
    global _own
    if _borrowed is not None:
        return _borrowed
    if _own is None or not _own.alive:
        if _own is not None:
            _own.stop()
        _own = start_trainer()  # no interrupt check: a parallel worker must not use SPI, and a sum takes little time
        _own.ask({"op": "confine"})
    return _own


def _refused(message: str) -> call.CallError:
    return call.CallError(f"{_FUNCTION}: {message}", "22023")
