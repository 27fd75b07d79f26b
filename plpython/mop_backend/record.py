"""A writer session's reads and writes of a run's record; static SQL, with the rights of the server's own user.

Called by `mop_backend.writer`. What is kept of a visit is kept by functions of sql/24-writer.sql and 28-averaging.sql.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import plpy

from mop_backend.frames import BlobsInTurn
from mop_backend.messages import to_json
from mop_backend.refusals import STATE_GONE, damaged

if TYPE_CHECKING:
    from mop_backend.frames import Blob, Header
    from mop_backend.messages import AverageStates, StateDescription, StateWrite, Train, VisitFigures

_STATEMENTS: dict[str, tuple[str, list[str]]] = {
    "plan": (
        "select pg_catalog.json_build_object('plan', plan, 'seed', seed, 'owner', owner::pg_catalog.oid,"
        " 'created', pg_catalog.date_part('epoch', created_at))::text as value"
        " from madlib_mop.run where run_id = $1",
        [],
    ),
    "custom_functions": ("select madlib_mop_internal.custom_functions_of($1)::text as value", []),
    "host_access": ("select madlib_mop_internal.host_access($1, $2)::text as value", ["text"]),
    "model": ("select madlib_mop_internal.model_of($1, $2)::text as value", ["int4"]),
    "start_weights": ("select madlib_mop_internal.start_weights_of($1, $2) as value", ["int4"]),
    "state_part": (
        "select madlib_mop_internal.state_part_of($1, $2, $3, $4, $5) as value",
        ["int4", "int8", "int8", "int4"],
    ),
    "state_lengths": (
        "select madlib_mop_internal.state_lengths_of($1, $2, $3, $4, $5) as value",
        ["int4", "int8", "int8", "int4"],
    ),
    "put_part": (
        "insert into madlib_mop.model_state (run_id, mst_key, slot, version, part, data, segment_id)"
        " values ($1, $2, $3, $4, $5, $6, $7)",
        ["int4", "int8", "int8", "int4", "bytea", "int4"],
    ),
    "keep_visit": ("select madlib_mop_internal.keep_visit($1, $2, $3) as value", ["int4", "json"]),
    "state_at": ("select madlib_mop_internal.state_at($1, $2, $3)::text as value", ["int4", "int8"]),
    "keep_again": ("select madlib_mop_internal.keep_again($1, $2, $3)", ["int4", "json"]),
    "released_copies": ("select madlib_mop_internal.released_copies($1, $2)::text as value", ["text"]),
    "copies_gone": ("select madlib_mop_internal.copies_gone($1, $2, $3)", ["text", "json"]),
    "fail_member": ("select madlib_mop_internal.fail_member($1, $2, $3, $4)", ["int4", "int8", "text"]),
    "keep_staged": ("select madlib_mop_internal.keep_staged($1, $2, $3) as value", ["int4", "json"]),
    "staged_digests": (
        "select pg_catalog.json_object_agg(segment_id, digest_out)::text as value from madlib_mop.visit"
        " where run_id = $1 and mst_key = $2 and epoch = $3",
        ["int4", "int4"],
    ),
    "staged_part": (
        "select data as value from madlib_mop.model_state where run_id = $1 and mst_key = $2 and version = $3"
        " and slot = any ($4) and segment_id = $5 and part = $6",
        ["int4", "int8", "int8[]", "int4", "int4"],
    ),
    "average_part": (
        "select madlib_mop.average_state(p.data, p.n_rows order by p.segment_id) as value"
        " from madlib_mop_internal.staged_parts($1, $2, $3, $4, $5, $6) p",
        ["int4", "int4", "int8", "int8[]", "int4"],
    ),
    "keep_average": ("select madlib_mop_internal.keep_average($1, $2, $3)", ["int4", "json"]),
}
_FIGURES_OF_VISIT = (
    "n_rows", "model_bytes", "forward_parts", "digest_in", "digest_out", "weights_digest", "loss", "timing",
)  # fmt: skip


class LaterStatement(NamedTuple):
    """A statement that SQL function writer_do executes, about one row; ``part`` is the number of its ``$1``, if any."""

    text: str
    part: int | None = None


class RunRecord:
    """One run's rows; a statement is prepared when it is first used.

    Parameters
    ----------
    run_id : int

    Attributes
    ----------
    later : list of LaterStatement or None
        If it is a list, what is kept of a visit or an average is added to it, for SQL function writer_do.
    """

    def __init__(self, run_id: int):
        self.later: list[LaterStatement] | None = None
        self._run_id = run_id
        self._plans: dict[str, plpy.Plan] = {}

    def plan(self) -> Header:
        """Return ``plan``, ``seed``, ``owner``, an oid, and ``created``, seconds since 1970, of the run."""
        return self._object("plan")

    def custom_functions(self) -> Header | None:
        """Return the run's custom functions in the form for a trainer, or None."""
        found: str | None = self._value("custom_functions")
        functions: Header | None = json.loads(found) if found else None
        return functions

    def host_access(self, server: str) -> Header:
        """Return the connection parameters of a segment's host. Raises plpy.SPIError if the run's owner has no right
        to it."""
        return self._object("host_access", server)

    def model(self, mst_key: int) -> Header:
        """Return one configuration, and the location of its newest state."""
        return self._object("model", mst_key)

    def model_at(self, mst_key: int, version: int) -> Header:
        """Return one configuration, and the location of one of its states."""
        return {**self.model(mst_key), **self._object("state_at", mst_key, version)}

    def start_weights(self, mst_key: int) -> bytes:
        """Return the start weights of a model."""
        weights: bytes = self._value("start_weights", mst_key)
        return weights

    def state(self, model: Header, n_parts: int | None = None) -> list[bytes]:
        """Return the parts of a model's newest state; the first ``n_parts``, where those are known to be enough.

        Raises Refused if it has none, or fewer.
        """
        parts: list[bytes] = []
        if model["digest"] is None:
            return parts
        while n_parts is None or len(parts) < n_parts:
            place = model["state_slot"], model["state_version"], len(parts)
            part = self._value("state_part", model["mst_key"], *place)
            if part is None and (not parts or n_parts is not None):
                raise damaged(STATE_GONE)
            if part is None:
                return parts
            parts.append(part)
        return parts

    def state_in_turn(self, model: Header, n_parts: int | None = None) -> BlobsInTurn[bytes]:
        """Return the same parts, each of which is read when it is asked for. Raises Refused, then too."""
        place = model["mst_key"], model["state_slot"], model["state_version"]
        lengths = self._value("state_lengths", *place, n_parts) or []
        if not lengths or (n_parts is not None and len(lengths) < n_parts):
            raise damaged(STATE_GONE)
        return _StoredParts(lengths, lambda number: self._value("state_part", *place, number))

    def staged_digests(self, order: AverageStates) -> dict[int, str]:
        """Return the digest of what each segment has trained in an iteration of model averaging."""
        found = self._object("staged_digests", order.write.mst_key, order.epoch)
        return {int(segment): digest for segment, digest in found.items()}

    def staged_state(self, order: AverageStates, segment_id: int) -> Iterator[bytes]:
        """Yield the parts of what a segment has trained."""
        place = order.write.mst_key, order.write.version, list(order.slots), segment_id
        number = 0
        while (part := self._value("staged_part", *place, number)) is not None:
            yield part
            number += 1

    def keep(
        self,
        order: Train,
        write: StateWrite,
        model: Header,
        figures: VisitFigures,
        state_bytes: int,
        started_at: str,
        at: int,
        server: str | None = None,
    ) -> None:
        """Write a model's visit; its new state is written already (`mop_backend.states`).

        Parameters
        ----------
        order : Train
        write : StateWrite
            The model's entry in the order.
        model : dict
            As `model` returned it before the visit.
        figures : VisitFigures
            The trainer's.
        state_bytes : int
            The size of the new state.
        started_at : str
            When the visit began.
        at : int
            The segment whose trainer made it; written to ``timing`` as ``trainer`` if it is not the shard's own.
        server : str or None
            The host that holds the new state; None for this server.
        """
        segment_id = order.shard.segment_id
        elsewhere = {} if at == segment_id else {"trainer": at}
        visit = {
            "epoch": order.epoch,
            "position": order.position,
            "segment_id": segment_id,
            "attempt": order.attempt,
            "slot": write.slot,
            "version": write.version,
            **{name: getattr(figures, name) for name in _FIGURES_OF_VISIT},
            "old_version": model["state_version"],
            "timing": {**figures.timing, **elsewhere},
            "started_at": started_at,
            "state_bytes": state_bytes,
            "sample": _as_text(figures.sample),
            "server": server,
        }
        keep = "keep_staged" if order.is_staged else "keep_visit" if order.again_from is None else "keep_again"
        self._write(keep, write.mst_key, json.dumps(visit))

    def released_copies(self, server: str) -> list[list[int]]:
        """Return mst_key and version of states that a host is to let go."""
        found: str | None = self._value("released_copies", server)
        return json.loads(found) if found else []

    def copies_gone(self, server: str, copies: Sequence[Sequence[int]]) -> None:
        """Remove released states from the record: their host has let them go."""
        self._run("copies_gone", server, json.dumps(copies))

    def put_part(self, write: StateWrite, number: int, part: Blob, segment_id: int | None) -> None:
        """Write one part of a new state; with ``segment_id``, of one that is to be averaged with other segments'."""
        assert write.slot is not None, "it is written on this server"
        self._run("put_part", write.mst_key, write.slot, write.version, number, part, segment_id)

    def fail_member(self, model: Header, reason: str) -> None:
        """Fail one model of a group that is trained together."""
        self._write("fail_member", model["mst_key"], model["state_version"], reason)

    def average_part(self, order: AverageStates, number: int) -> bytes | None:
        """Return the average of one part of what the segments have trained, or None after the last."""
        write = order.write
        place = write.mst_key, order.epoch, write.version, list(order.slots)
        part: bytes | None = self._value("average_part", *place, number)
        return part

    def keep_average(self, order: AverageStates, described: StateDescription, state_bytes: int) -> None:
        """Make an average, of this size in bytes, the model's newest state."""
        average = {
            "epoch": order.epoch,
            "slot": order.write.slot,
            "version": order.write.version,
            "slots": order.slots,
            "n_visits": order.n_visits,
            **to_json(described),
            "state_bytes": state_bytes,
        }
        self._write("keep_average", order.write.mst_key, json.dumps(average))

    def _write(self, name: str, *values: object) -> None:
        """Run a statement, or leave it for later."""
        if self.later is None:
            self._run(name, *values)
            return
        query, types = _STATEMENTS[name]
        pairs = zip([self._run_id, *values], ["int8", *types], strict=True)
        literals = [f"{plpy.quote_nullable(None if value is None else str(value))}::{kind}" for value, kind in pairs]
        self.later.append(LaterStatement(re.sub(r"\$(\d+)", lambda found: literals[int(found[1]) - 1], query)))

    def _object(self, name: str, *values: object) -> Header:
        found: Header = json.loads(self._value(name, *values))
        return found

    def _value(self, name: str, *values: object) -> Any:
        rows = self._run(name, *values)
        return rows[0]["value"] if rows.nrows() else None

    def _run(self, name: str, *values: object) -> plpy.Result:
        query, types = _STATEMENTS[name]
        if name not in self._plans:
            self._plans[name] = plpy.prepare(query, ["int8", *types])
        return plpy.execute(self._plans[name], [self._run_id, *values])


class _StoredParts(BlobsInTurn[bytes]):
    """Parts of a state, each of which is read when it is asked for."""

    def __init__(self, lengths: Sequence[int], read: Callable[[int], bytes | None]):
        self.lengths = lengths
        self._read = read

    def __iter__(self) -> Iterator[bytes]:
        for number, length in enumerate(self.lengths):
            part = self._read(number)
            if part is None or len(part) != length:
                raise damaged(STATE_GONE)
            yield part
            del part  # before the next one is read


def _as_text(values: Mapping[str, float] | None) -> list[list[str]] | None:
    """Return metrics by name as pairs of texts, in their order: JSON has no NaN."""
    return None if values is None else [[name, repr(value)] for name, value in values.items()]
