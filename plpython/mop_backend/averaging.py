"""The aggregate madlib_mop.average_state: transition, merge and final step; the arithmetic is a trainer's.

Called by the bodies in sql/28-averaging.sql, in a worker session of a run (which lends its own trainer) or in any other
session (which gets one for itself; it needs NumPy only, and starts fast). The aggregate's state is bytes, so that
parallel workers, or Greenplum's segments, can hand it on: one byte for what follows, the number of rows, and then
either the one part that was seen so far, as it is, or a sum of parts in float64 (madlib_mop/trainer/averaging.py).
"""

import contextlib
import struct

import plpy

from mop_backend.process import Child, ChildDied

_HEAD = struct.Struct(">cq")
_PART, _SUM = b"p", b"s"

_lent = None
_own = None


def add(state, part, n_rows):
    """Add one part of a training state that was trained on so many rows; no rows, or NULL, add nothing."""
    if part is None or not n_rows:
        return state
    if n_rows < 0:
        plpy.error(f"average_state: n_rows must be 0 or more. Received: {n_rows}", sqlstate="22023")
    return merge(state, _HEAD.pack(_PART, n_rows) + part)


def merge(a, b):
    """Add two states of the aggregate; None is the empty one."""
    if a is None or b is None:
        return b if a is None else a
    kinds, counts, blobs = zip(*map(_opened, (a, b)), strict=True)
    request = {"op": "average_add", "n_rows": counts, "summed": [kind == _SUM for kind in kinds]}
    return _HEAD.pack(_SUM, sum(counts)) + _ask(request, blobs)


def end(state):
    """Give the average: a part like those that were added."""
    if state is None:
        return None
    kind, n_rows, blob = _opened(state)
    return bytes(_ask({"op": "average_end", "n_rows": n_rows, "summed": kind == _SUM}, [blob]))


@contextlib.contextmanager
def lending(child):
    """Let the aggregate use this trainer, which is idle, for a while."""
    global _lent
    _lent = child
    try:
        yield
    finally:
        _lent = None


def _opened(state):
    if len(state) < _HEAD.size or state[:1] not in (_PART, _SUM):
        plpy.error("average_state: this is not a state of the aggregate", sqlstate="22023")
    kind, n_rows = _HEAD.unpack_from(state)
    return kind, n_rows, memoryview(state)[_HEAD.size :]


def _ask(request, blobs):
    child = _lent or _own_trainer()
    try:
        answer, out = child.ask(request, blobs)
    except ChildDied as death:
        message = f"average_state: its trainer ended with status {death.returncode}"
        plpy.error(message, detail=death.last_words, sqlstate="58000")
    if "error" in answer:
        error = answer["error"]
        plpy.error(f"average_state: {error['message']}", hint=error.get("hint"), sqlstate=error["sqlstate"])
    return out[0]


def _own_trainer():
    global _own
    if _own is None or not _own.alive:
        if _own is not None:
            _own.stop()
        _own = Child("madlib_mop.trainer")  # no interrupt check: a parallel worker may not use SPI, and a sum is quick
    return _own
