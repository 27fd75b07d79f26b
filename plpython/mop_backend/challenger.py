"""Challengers: versions that predict beside the version of an alias, for a share of the calls; called by predict.py.

What both answered is recorded, without the inputs, for the calls of the model's owner and of roles that have agreed
(`registered.look_up`). This never makes a prediction fail: it happens after the answer is
known, its errors are logged and end it for a while, and it is left out where a write could harm the caller's
transaction: in read-only and serializable ones.

predict is STABLE, so it may not write; the function madlib_mop_calls._record_challenger is VOLATILE and may. It has the
rights of the extension's owner, and takes what it writes from this module's memory, as in registered.py.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import plpy

from mop_backend.call import CallError
from mop_backend.frames import Blob
from mop_backend.process import ChildDied
from mop_backend.registered import Found
from mop_backend.rights import Moment
from mop_backend.sql_errors import SQL_ERRORS, is_stop

_MOST_ROWS = 1024  # that wait to be written; each write of a transaction costs it a subtransaction
_MOST_OF_A_CALL = 10_000
_PAUSE_S = 60.0  # after an error; also until the rows of a challenger that has enough are counted again
_COUNT_AGAIN = 1000  # rows of this session after which the rows of all sessions are counted again
_MAY_WRITE = """
select current_setting('transaction_read_only') = 'off' and current_setting('transaction_isolation') <> 'serializable'
    as yes
"""
_COUNT = "select coalesce(sum(n_rows), 0)::int8 as n from madlib_mop.challenger_batch where challenger_id = $1"
# Rows of an earlier statement may be of a challenger that was dropped, and their name another model's by now.
_INSERT = """
insert into madlib_mop.challenger_batch (name, alias, challenger_id, version, challenger_version, n_rows, outputs,
    challenger_outputs)
select $1, $2, $3, $4, $5, $6, $7, $8
where exists (select from madlib_mop.model_challenger c where c.challenger_id = $3)
"""
_INSERT_TYPES = ["text", "text", "int8", "int4", "int4", "int4", "float8[]", "float8[]"]

Rows = Sequence[Sequence[float]]


class ChallengedCall(NamedTuple):
    """What a challenger needs of a call.

    Attributes
    ----------
    inputs : sequence of bytes-like
        They decide whether the call is chosen.
    outputs : callable
        Takes the result of the call's work with a model; returns its rows of outputs, or None if they are not to be
        compared.
    """

    inputs: Sequence[Blob]
    outputs: Callable[[Any], Rows | None]

    def is_chosen(self, share: float) -> bool:
        """Return whether the call is one of this share of all calls. Calls with the same inputs are all chosen or not.

        The CRC-32 of the inputs decides.
        """
        code = 0
        for blob in self.inputs:
            code = zlib.crc32(blob, code)
        return code < share * 2**32


class PendingBatch:
    """Rows that wait to be written: the outputs of the version that answered, and of its challenger."""

    def __init__(self, found: Found):
        self.found = found
        self.outputs: list[Sequence[float]] = []
        self.challenger_outputs: list[Sequence[float]] = []


_plans: dict[str, plpy.Plan] = {}
_pending: PendingBatch | None = None  # what _record_challenger is to write
_counted: dict[int, tuple[int, int]] = {}  # by challenger: rows of all sessions at the last count, rows of this since
_full_until: dict[int, float] = {}  # challengers with enough rows, of which some may be rolled back


class Recorder:
    """The challengers of a session."""

    def __init__(self) -> None:
        self._batch: PendingBatch | None = None
        self._n_next = 1
        self._statement: float | None = None
        self._may_write = False
        self._off_until = 0.0

    def observe(
        self, found: Found, observed: ChallengedCall, moment: Moment, result: Any, challenge: Callable[[], Any]
    ) -> None:
        """Let the challenger predict a call that its share includes, and record both results.

        Parameters
        ----------
        found : Found
            An alias with a challenger.
        observed : ChallengedCall
            The call.
        moment : Moment
        result : Any
            Of the version that answered.
        challenge : callable
            Returns the result of the challenger.

        Raises
        ------
        plpy.SPIError, plpy.Error
            If the statement is cancelled; other errors are logged.
        """
        try:
            if self._wants(found, observed, moment):
                self._add(found, observed.outputs(result), observed.outputs(challenge()))
        except SQL_ERRORS as error:
            if is_stop(error):
                raise
            self._failed(found, error)
        except (CallError, ChildDied) as error:
            self._failed(found, error)

    def _wants(self, found: Found, observed: ChallengedCall, moment: Moment) -> bool:
        """Return whether the challenger is to predict this call."""
        challenger = found.challenger
        if challenger is None or challenger.version == found.version or not observed.is_chosen(challenger.share):
            return False
        if time.monotonic() < max(self._off_until, _full_until.get(challenger.challenger_id, 0.0)):
            return False
        if moment.statement != self._statement:
            self._statement = moment.statement
            self._may_write = plpy.execute(_plan(_MAY_WRITE))[0]["yes"]  # defence: challengers-that-write = True
            self._n_next = 1
            if self._may_write:
                self._write()  # the rows that an earlier statement has left
        return self._may_write

    def _add(self, found: Found, outputs: Rows | None, challenger_outputs: Rows | None) -> None:
        """Record a call. Few rows are written at once, of many rows of a statement always as many as before."""
        if not outputs or not challenger_outputs:
            return
        if self._batch is not None and self._batch.found != found or len(_widths(self._batch, outputs)) > 1:
            self._write()
        if self._batch is None:
            self._batch = PendingBatch(found)
        self._batch.outputs += outputs[:_MOST_OF_A_CALL]
        self._batch.challenger_outputs += challenger_outputs[:_MOST_OF_A_CALL]
        if len(self._batch.outputs) >= self._n_next:
            self._n_next = min(2 * self._n_next, _MOST_ROWS)
            self._write()

    def _failed(self, found: Found, error: Exception) -> None:
        """Log an error, and let no challenger predict for a while."""
        self._batch = None
        self._off_until = time.monotonic() + _PAUSE_S
        plpy.log(f"madlib_mop: the challenger of {found.name} was left out for {_PAUSE_S:.0f} s: {error}")

    def _write(self) -> None:
        global _pending
        if self._batch is None:
            return
        _pending, self._batch = self._batch, None
        try:
            plpy.execute(_plan("select madlib_mop_calls._record_challenger()"))
        finally:
            _pending = None


def write_pending() -> None:
    """Write the rows that `Recorder` has left; the body of madlib_mop_calls._record_challenger."""
    if _pending is None or _pending.found.challenger is None:
        return
    found, challenger, n_rows = _pending.found, _pending.found.challenger, len(_pending.outputs)
    number = challenger.challenger_id
    before, own = _counted.get(number, (None, 0))
    if before is None or own >= _COUNT_AGAIN:
        before, own = plpy.execute(_plan(_COUNT, "int8"), [number])[0]["n"], 0
    _counted[number] = before, own + n_rows
    if before + own >= challenger.max_rows:
        _full_until[number] = time.monotonic() + _PAUSE_S
        del _counted[number]
        return
    values = [found.name.name, found.name.alias, number, found.version, challenger.version, n_rows]
    plpy.execute(_plan(_INSERT, *_INSERT_TYPES), [*values, _pending.outputs, _pending.challenger_outputs])


def _widths(batch: PendingBatch | None, outputs: Rows) -> set[int]:
    return {len(rows[0]) for rows in (outputs, batch.outputs if batch else ()) if rows}


def _plan(query: str, *types: str) -> plpy.Plan:
    if query not in _plans:
        _plans[query] = plpy.prepare(query, types)
    return _plans[query]
