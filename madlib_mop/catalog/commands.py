"""The commands to runs in the record; mixed into `Record`.

A caller's driver records a command as pending, and notifies the driver of the run, which applies it and settles it in
one transaction. If the run has no driver, the caller's driver becomes it for the time of the command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, insert, select, update

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.drivers import CHANNEL, RunDrivers
from madlib_mop.catalog.rows.command import CommandRow
from madlib_mop.catalog.rows.states import CommandState, RunState

#: Sessions that wait for the outcome of a command listen here.
SETTLED_CHANNEL = "madlib_mop_settled"


@dataclass(frozen=True)
class Outcome:
    """What became of a command.

    Attributes
    ----------
    state : CommandState
    detail : str
        What it did, or why it was refused.
    mst_keys : tuple of int
        The models that it changed or added.
    visits : mapping
        See `CommandRow`.
    """

    state: CommandState
    detail: str
    mst_keys: tuple[int, ...] = ()
    visits: Mapping[str, Sequence[int]] = field(default_factory=dict)


class RunCommands(RunDrivers):
    """The commands to runs; mixed into `Record`."""

    def issue(self, command: CommandRow, weights: Mapping[str, bytes] | None = None) -> int:
        """Record a command, and wake the run's driver; return its number.

        Parameters
        ----------
        command : CommandRow
        weights : mapping of str to bytes, optional
            Start weights of the models that it adds, by origin.
        """
        with self.transaction() as session:
            # a driver that ends its training waits for this row lock, and then sees the command
            session.execute(select(t.run.c.run_id).where(t.run.c.run_id == command.run_id).with_for_update(read=True))
            query = insert(t.steering_command).values(**command.as_row()).returning(t.steering_command.c.command_id)
            command_id: int = session.execute(query).scalar_one()
            for origin, blob in (weights or {}).items():
                row = {"run_id": command.run_id, "origin": f"command {command_id}, {origin}", "weights": blob}
                session.execute(insert(t.start_weights).values(**row))
            self._scalar(select(func.pg_notify(CHANNEL, str(command.run_id))))
            self.notify_change(command.run_id)
        return command_id

    def commands(self, run_id: int, state: CommandState) -> list[CommandRow]:
        """Return a run's commands in one state: obeyed ones in the order in which they were obeyed."""
        c = t.steering_command.c
        query = select(t.steering_command).where(c.run_id == run_id, c.state == str(state))
        rows = self._rows(query.order_by(c.ordinal, c.command_id))
        return [CommandRow.from_row(row) for row in rows]

    def command(self, run_id: int, command_id: int) -> CommandRow:
        """Return a command."""
        c = t.steering_command.c
        (row,) = self._rows(select(t.steering_command).where(c.run_id == run_id, c.command_id == command_id))
        return CommandRow.from_row(row)

    def record_outcome(self, command: CommandRow, outcome: Outcome) -> bool:
        """Write the outcome of a pending command, and wake the session that waits for it.

        In a transaction with what it changes, it is obeyed exactly once. Return False, and change nothing, if the
        command is no longer pending: its call was cancelled.
        """
        c = t.steering_command.c
        where = c.run_id == command.run_id, c.command_id == command.command_id
        values = {"state": str(outcome.state), "detail": outcome.detail, "settled_at": func.clock_timestamp()}
        if outcome.state is CommandState.OBEYED:
            of_run = select(func.count()).where(c.run_id == command.run_id, c.state == str(CommandState.OBEYED))
            values |= {"ordinal": of_run.scalar_subquery(), "mst_keys": list(outcome.mst_keys)}
            values["visits"] = dict(outcome.visits)
        with self.transaction() as session:
            query = update(t.steering_command).where(*where, c.state == str(CommandState.PENDING)).values(**values)
            if session.execute(query).rowcount != 1:
                return False
            self._scalar(select(func.pg_notify(SETTLED_CHANNEL, str(command.command_id))))
            self.notify_change(command.run_id)
        return True

    def withdraw(self, run_id: int, command_id: int) -> None:
        """Withdraw a pending command, unless it is being obeyed at this moment; never waits for its driver."""
        c = t.steering_command.c
        where = c.run_id == run_id, c.command_id == command_id, c.state == str(CommandState.PENDING)
        free = select(c.command_id).where(*where).with_for_update(skip_locked=True).scalar_subquery()
        told = "its call was cancelled before it was obeyed"
        values = {"state": str(CommandState.WITHDRAWN), "detail": told, "settled_at": func.clock_timestamp()}
        self._do(update(t.steering_command).where(c.run_id == run_id, c.command_id == free).values(**values))

    def lock_command(self, command: CommandRow) -> bool:
        """Lock a command until the transaction's end; return whether it is still pending."""
        c = t.steering_command.c
        where = c.run_id == command.run_id, c.command_id == command.command_id
        return bool(self._scalar(select(c.state).where(*where).with_for_update()) == CommandState.PENDING)

    def listen_for_outcomes(self) -> None:
        """Subscribe to notifications of settled commands."""
        with self.raw.cursor() as cursor:
            cursor.execute(f"LISTEN {SETTLED_CHANNEL}")

    def end_training(self, run_id: int) -> bool:
        """Mark a run as trained; False, and nothing is done, if it was cancelled before.

        Commands that came after the driver had looked for the last time are refused.
        """
        with self.transaction() as session:
            query = select(t.run.c.cancelled_by).where(t.run.c.run_id == run_id).with_for_update()
            if session.execute(query).scalar_one() is not None:
                return False
            for command in self.commands(run_id, CommandState.PENDING):
                too_late = "it came too late: the run has just ended its training. Issue it again to prepare the run"
                self.record_outcome(command, Outcome(CommandState.REFUSED, too_late))
            self.set_run(run_id, state=str(RunState.TRAINED))
        return True

    def finish(self, run_id: int) -> None:
        """Mark a trained run as finished, unless a command has prepared it while its output tables were written."""
        query = update(t.run).where(t.run.c.run_id == run_id, t.run.c.state != str(RunState.INTERRUPTED))
        with self.transaction():
            self._do(query.values(state=str(RunState.FINISHED)))
            self.notify_change(run_id)
