"""States of models at Greenplum's segments: each is where it was made, and comes from there to the next segment.

The table model_state is distributed by ``__dist_key__``, a key of the segment where the state was made. A new state is
inserted by a statement of that segment alone, which takes it from the process with the trainer. For a visit elsewhere,
a statement with one redistribute motion inserts its parts into madlib_mop.state_inbox. The trigger of that table hands
each one to the writer's process at the receiving segment (`mop_backend.dispatched`), and nothing is stored. So no bytes
of a state come to the coordinator, where the writer (`mop_backend.writer`) runs these statements in the one transaction
of its visit.

A process that sends rows below a motion has a snapshot without the subtransactions in progress: it takes their rows for
rolled back ones, and marks them so for all others. That is so for each query of any session that redistributes rows of
these tables. PL/Python runs each statement in a subtransaction. So all that a visit or an average writes is written by
SQL function writer_do, after Python has returned.

Keys are literals: only then does a statement go to one segment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import plpy

from mop_backend.frames import BlobElsewhere
from mop_backend.record import LaterStatement
from mop_backend.refusals import STATE_GONE, damaged
from mop_backend.states import AnsweredPart, ArrivedPart, NewStates, States, Trainer

if TYPE_CHECKING:
    from mop_backend.frames import Header, SomeBlob
    from mop_backend.messages import StateWrite
    from mop_backend.record import RunRecord

_PARTS = (
    "select __dist_key__, part, pg_catalog.octet_length(data) as n_bytes from madlib_mop.model_state"
    " where {state} order by part"
)
_HERE = (
    "select madlib_mop_internal.dispatch_keep({pull}, {first} + part, data) from madlib_mop.model_state"
    " where __dist_key__ = {key} and {state}"
)
_HOP = (
    "insert into madlib_mop.state_inbox (__dist_key__, pull, part, data)"
    " select {here}, {pull}, {first} + part, data from madlib_mop.model_state where __dist_key__ = {key} and {state}"
)
_PUT = "insert into madlib_mop.model_state (run_id, mst_key, slot, version, part, segment_id, data, __dist_key__)"
_FROM_TRAINER = (
    _PUT + " select {place}, madlib_mop_internal.dispatch_get({number}), __dist_key__"
    " from madlib_mop.segment_key where __dist_key__ = {key}"
)
_FROM_HERE = _PUT + " values ({place}, $1, {key})"
_PLACE = {"slot": "state_slot", "mst_key": "mst_key", "version": "state_version"}


class SegmentStates(States):
    """The states of a run, for the writer of a segment.

    Parameters
    ----------
    record : RunRecord
    run_id : int
    segment_id : int
    keys : mapping of int to int
        A ``__dist_key__`` of each segment, by its number.
    """

    def __init__(self, record: RunRecord, run_id: int, segment_id: int, keys: Mapping[int, int]):
        super().__init__(record)
        self._run_id = int(run_id)
        self._key = int(keys[segment_id])
        self._keys = keys
        self._n_pulls = 0
        self._pull_s = 0.0
        self._later: list[LaterStatement] = []
        self._parts: dict[int, bytes] = {}  # of averages
        record.later = self._later

    def bring(
        self, models: Sequence[Header | None], n_parts: Sequence[int | None]
    ) -> list[Iterable[SomeBlob]]:
        """As `States.bring`; the segment's process has the parts until the next call."""
        began = time.monotonic()
        self._n_pulls += 1
        found: list[list[ArrivedPart]] = []
        for model, most in zip(models, n_parts, strict=True):
            first = sum(map(len, found))
            found.append([] if model is None or model["digest"] is None else self._pull(model, most, first))
        self._pull_s = time.monotonic() - began
        return [*found]

    def train(
        self,
        trainer: Trainer,
        request: Header,
        models: Sequence[Header | None],
        blobs: Iterable[SomeBlob],
        new: NewStates | None,
    ) -> tuple[Header, Iterable[SomeBlob], dict[str, float]]:
        """As `States.train`; the parts of the new states are still at the segment."""
        answer, parts, _ = super().train(trainer, request, models, blobs, new)
        return answer, parts, {"pull_s": self._pull_s}

    def take_statements(self) -> list[LaterStatement]:
        """As `States.take_statements`."""
        later = list(self._later)
        self._later.clear()
        return later

    def take_part(self, number: int) -> bytes:
        """As `States.take_part`."""
        return self._parts.pop(number)

    def drop_statements(self) -> None:
        """As `States.drop_statements`."""
        self._later.clear()
        self._parts.clear()

    def _pull(self, model: Header, n_parts: int | None, first: int) -> list[ArrivedPart]:
        """Bring the parts of a model's newest state to this segment, with numbers from ``first``. Raises Refused."""
        state = " and ".join([f"{column} = {int(model[name])}" for column, name in _PLACE.items()])
        state += f" and run_id = {self._run_id} and segment_id is null"
        if n_parts is not None:
            state += f" and part < {int(n_parts)}"
        likely = self._keys.get(model["made_at"])  # a copy, such as a clone's, is elsewhere
        found = [] if likely is None else _parts(f"__dist_key__ = {int(likely)} and {state}")
        found = found or _parts(state)
        if not found or [part for _, part, _ in found] != list(range(len(found) if n_parts is None else n_parts)):
            raise damaged(f"{STATE_GONE} (at keys and with numbers: {[place for *place, _ in found]})")
        for key in sorted({key for key, _, _ in found}):
            query = _HERE if key == self._key else _HOP
            plpy.execute(query.format(here=self._key, pull=self._n_pulls, first=first, key=key, state=state))
        return [ArrivedPart(n_bytes, self._n_pulls, first + part) for _, part, n_bytes in found]

    def _put_part(self, write: StateWrite, number: int, part: SomeBlob, segment_id: int | None) -> None:
        """As `States._put_part`; at this segment."""
        assert write.slot is not None, "no host holds it"
        keys = [self._run_id, write.mst_key, write.slot, write.version, number, segment_id]
        place = ", ".join("null" if key is None else str(int(key)) for key in keys)
        if isinstance(part, AnsweredPart):
            self._later.append(LaterStatement(_FROM_TRAINER.format(place=place, number=part.number, key=self._key)))
        else:  # an average
            assert not isinstance(part, BlobElsewhere), "it is not sent back"
            self._parts[number] = bytes(part)
            self._later.append(LaterStatement(_FROM_HERE.format(place=place, key=self._key), number))


def _parts(state: str) -> list[tuple[int, int, int]]:
    """Return the key, the number and the bytes of each part of a state, in order."""
    rows = plpy.execute(_PARTS.format(state=state))
    return [(int(row["__dist_key__"]), int(row["part"]), int(row["n_bytes"])) for row in rows]
