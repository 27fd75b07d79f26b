"""States of models at Greenplum's segments: each lies where it was made, and comes from there to the next segment.

The table model_state is distributed by ``__dist_key__``, a key of the segment where the state was made. A new state is
inserted by a statement of that segment alone, which takes it from the process with the trainer. For a visit elsewhere,
a statement with one redistribute motion inserts its parts into madlib_mop.state_inbox. The trigger of that table hands
each one to the writer's process at the receiving segment (`mop_backend.dispatched`), and nothing is stored. So no bytes
of a state come to the coordinator, where the writer (`mop_backend.writer`) runs these statements in the one transaction
of its visit.

Keys are literals: only then does a statement go to one segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import plpy

from mop_backend.refusals import STATE_GONE, damaged

if TYPE_CHECKING:
    from mop_backend.frames import Blob, Header
    from mop_backend.messages import StateWrite

_PARTS = "select __dist_key__, part from madlib_mop.model_state where {state} order by part"
_HERE = (
    "select madlib_mop_internal.dispatch_keep({pull}, part, data) from madlib_mop.model_state"
    " where __dist_key__ = {key} and {state}"
)
_HOP = (
    "insert into madlib_mop.state_inbox (__dist_key__, pull, part, data)"
    " select {here}, {pull}, part, data from madlib_mop.model_state where __dist_key__ = {key} and {state}"
)
_PUT = "insert into madlib_mop.model_state (run_id, mst_key, slot, version, part, segment_id, data, __dist_key__)"
_FROM_TRAINER = (
    _PUT + " select {place}, madlib_mop_internal.dispatch_get({number}), __dist_key__"
    " from madlib_mop.segment_key where __dist_key__ = {key}"
)
_FROM_HERE = _PUT + " values ({place}, $1, {key})"


@dataclass(frozen=True)
class ArrivedPart:
    """A part of a state that the process at the segment has, for its trainer."""

    pull: int
    part: int


class AnsweredPart:
    """A blob of the trainer's answer that the process at the segment has; `bytes` brings it here.

    Parameters
    ----------
    number : int
        Which one of the answer.
    n_bytes : int
    fetch : callable
        Returns a blob of the answer by its number.
    """

    def __init__(self, number: int, n_bytes: int, fetch: Callable[[int], bytes]):
        self.number = number
        self._n_bytes = n_bytes
        self._fetch = fetch

    def __len__(self) -> int:
        return self._n_bytes

    def __bytes__(self) -> bytes:
        return self._fetch(self.number)


class SegmentStates:
    """The states of a run, for the writer of a segment.

    Parameters
    ----------
    run_id : int
    key : int
        A ``__dist_key__`` of the segment.
    """

    def __init__(self, run_id: int, key: int):
        self._run_id = int(run_id)
        self._key = int(key)
        self._n_pulls = 0

    def pull(self, model: Header, n_parts: int | None = None) -> list[ArrivedPart]:
        """Bring the parts of a model's newest state to this segment; the first ``n_parts``, where those are enough.

        The process there has them until the next pull.

        Raises
        ------
        Refused
            If the state is not there, or not whole.
        """
        if model["digest"] is None:
            return []
        place = {"slot": "state_slot", "mst_key": "mst_key", "version": "state_version"}
        state = " and ".join([f"{column} = {int(model[name])}" for column, name in place.items()])
        state += f" and run_id = {self._run_id} and segment_id is null"
        if n_parts is not None:
            state += f" and part < {int(n_parts)}"
        found = [(int(row["__dist_key__"]), int(row["part"])) for row in plpy.execute(_PARTS.format(state=state))]
        if not found or [part for _, part in found] != list(range(len(found) if n_parts is None else n_parts)):
            raise damaged(STATE_GONE)
        self._n_pulls += 1
        for key in sorted({key for key, _ in found}):
            query = _HERE if key == self._key else _HOP
            plpy.execute(query.format(here=self._key, pull=self._n_pulls, key=key, state=state))
        return [ArrivedPart(self._n_pulls, part) for _, part in found]

    def put(self, write: StateWrite, number: int, part: Blob | AnsweredPart, segment_id: int | None) -> None:
        """Write one part of a new state at this segment."""
        keys = [self._run_id, write.mst_key, write.slot, write.version, number, segment_id]
        place = ", ".join("null" if key is None else str(int(key)) for key in keys)
        if isinstance(part, AnsweredPart):
            plpy.execute(_FROM_TRAINER.format(place=place, number=part.number, key=self._key))
        else:
            plpy.execute(plpy.prepare(_FROM_HERE.format(place=place, key=self._key), ["bytea"]), [bytes(part)])
