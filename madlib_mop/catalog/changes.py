"""The changes of runs in the record, and the commands among them; mixed into `Record`.

The driver of a run writes the changes that a search, early stopping or a replay decides on as it makes them. A
caller's driver records a command as pending, and notifies the driver of the run, which applies it and settles it in one
transaction. If the run has no driver, the caller's driver becomes it for the time of the command.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, insert, select, text, update

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.drivers import CHANNEL, RunDrivers
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.states import ChangeState

#: Sessions that wait for the outcome of a command listen here.
SETTLED_CHANNEL = "madlib_mop_settled"

#: The columns of a change that the driver makes; one statement writes all of a decision, however many they are.
_MADE = ("run_id", "source", "change", "work", "event", "number", "state", "mst_keys", "visits")
_ADD_CHANGES = text(f"""
INSERT INTO madlib_mop.change ({", ".join(_MADE)})
SELECT {", ".join(f"c.{name}" for name in _MADE)}
FROM pg_catalog.jsonb_to_recordset(CAST(:made AS pg_catalog.jsonb)) AS c (
    run_id bigint, source text, change text, work jsonb, event integer, number integer, state text, mst_keys integer[],
    visits jsonb)
ORDER BY c.number
""")


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    Attributes
    ----------
    state : ChangeState
    detail : str
        What it did, or why it was refused.
    mst_keys : tuple of int
        The models that it changed or added.
    visits : mapping
        See `ChangeRow`.
    """

    state: ChangeState
    detail: str
    mst_keys: tuple[int, ...] = ()
    visits: Mapping[str, Sequence[int]] = field(default_factory=dict)


class RunChanges(RunDrivers):
    """The changes of runs, and the commands among them; mixed into `Record`."""

    def add_changes(self, rows: Sequence[ChangeRow]) -> None:
        """Write changes, in the caller's transaction with what they change."""
        if rows:
            made = json.dumps([{name: getattr(row, name) for name in _MADE} for row in rows])
            with self.transaction() as session:
                session.execute(_ADD_CHANGES, {"made": made})

    def issue(self, command: ChangeRow, weights: Mapping[str, bytes] | None = None) -> int:
        """Record a command, and wake the run's driver; return its number.

        Parameters
        ----------
        command : ChangeRow
        weights : mapping of str to bytes, optional
            Start weights of the models that it adds, by origin.
        """
        with self.transaction() as session:
            # a driver that ends its training waits for this row lock, and then sees the command
            session.execute(select(t.run.c.run_id).where(t.run.c.run_id == command.run_id).with_for_update(read=True))
            query = insert(t.change).values(**command.as_row()).returning(t.change.c.change_id)
            command_id: int = session.execute(query).scalar_one()
            for origin, blob in (weights or {}).items():
                row = {"run_id": command.run_id, "origin": f"command {command_id}, {origin}", "weights": blob}
                session.execute(insert(t.start_weights).values(**row))
            self._scalar(select(func.pg_notify(CHANNEL, str(command.run_id))))
            self.notify_change(command.run_id)
        return command_id

    def commands(self, run_id: int, state: ChangeState) -> list[ChangeRow]:
        """Return a run's commands in one state: obeyed ones in the order in which they were applied."""
        c = t.change.c
        query = select(t.change).where(c.run_id == run_id, c.state == str(state), c.command.is_not(None))
        rows = self._rows(query.order_by(c.ordinal, c.change_id))
        return [ChangeRow.from_row(row) for row in rows]

    def command(self, run_id: int, command_id: int) -> ChangeRow:
        """Return a command."""
        c = t.change.c
        (row,) = self._rows(select(t.change).where(c.run_id == run_id, c.change_id == command_id))
        return ChangeRow.from_row(row)

    def record_outcome(self, command: ChangeRow, outcome: Outcome) -> bool:
        """Write the outcome of a pending command, and wake the session that waits for it.

        In a transaction with what it changes, it is applied exactly once. Return False, and change nothing, if the
        command is no longer pending: its call was cancelled.
        """
        c = t.change.c
        where = c.run_id == command.run_id, c.change_id == command.change_id
        values = {"state": str(outcome.state), "detail": outcome.detail, "settled_at": func.clock_timestamp()}
        if outcome.state is ChangeState.OBEYED:
            of_run = select(func.count()).where(
                c.run_id == command.run_id, c.state == str(ChangeState.OBEYED), c.command.is_not(None)
            )
            values |= {"ordinal": of_run.scalar_subquery(), "mst_keys": list(outcome.mst_keys)}
            values["visits"] = dict(outcome.visits)
        with self.transaction() as session:
            query = update(t.change).where(*where, c.state == str(ChangeState.PENDING)).values(**values)
            if session.execute(query).rowcount != 1:
                return False
            self._scalar(select(func.pg_notify(SETTLED_CHANNEL, str(command.change_id))))
            self.notify_change(command.run_id)
        return True

    def withdraw(self, run_id: int, command_id: int) -> None:
        """Withdraw a pending command, unless it is being applied at this moment; never waits for its driver."""
        c = t.change.c
        where = c.run_id == run_id, c.change_id == command_id, c.state == str(ChangeState.PENDING)
        free = select(c.change_id).where(*where).with_for_update(skip_locked=True).scalar_subquery()
        told = "its call was cancelled before it was obeyed"
        values = {"state": str(ChangeState.WITHDRAWN), "detail": told, "settled_at": func.clock_timestamp()}
        self._do(update(t.change).where(c.run_id == run_id, c.change_id == free).values(**values))

    def lock_command(self, command: ChangeRow) -> bool:
        """Lock a command until the transaction's end; return whether it is still pending."""
        c = t.change.c
        where = c.run_id == command.run_id, c.change_id == command.change_id
        return bool(self._scalar(select(c.state).where(*where).with_for_update()) == ChangeState.PENDING)

    def listen_for_outcomes(self) -> None:
        """Subscribe to notifications of settled commands."""
        with self.raw.cursor() as cursor:
            cursor.execute(f"LISTEN {SETTLED_CHANNEL}")
