"""Issues a command to a run for a caller: records it, and waits until the run's driver has obeyed or refused it."""

import select
import time
from collections.abc import Mapping

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.command import CommandRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import CommandState, RunState
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.stopping import sigterm_delayed
from madlib_mop.driver.steering.ended import obey_without_driver
from madlib_mop.engines.sessions.ending import end_lost_run
from madlib_mop.engines.sessions.old_writers import end_old_writers
from madlib_mop.errors import Cancelled

_TICK_S = 0.5


def issue(
    call: Call, record: Record, run: RunRow, command: CommandRow, weights: Mapping[str, bytes] | None = None
) -> CommandRow:
    """Record a command, wait for its outcome, and return it as settled.

    Raises
    ------
    Cancelled
        If the caller's statement is cancelled before the command was obeyed: it is withdrawn.
    """
    record.listen_for_outcomes()
    command_id = record.issue(command, weights)
    try:
        return _await(call, record, run.run_id, command_id)
    except BaseException:
        with sigterm_delayed():
            record.withdraw(run.run_id, command_id)
        raise


def _await(call: Call, record: Record, run_id: int, command_id: int) -> CommandRow:
    poller = select.poll()
    poller.register(record.raw.fileno(), select.POLLIN)
    poller.register(call.session.stop_fd, select.POLLIN)
    look_at = 0.0
    while True:
        settled = record.command(run_id, command_id)
        if settled.state is not CommandState.PENDING:
            return settled
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + _TICK_S
            if not record.is_live(run_id):
                _obey_here(record, run_id, call.info.pid)
                continue
        for fd, _ in poller.poll(_TICK_S * 1000):
            if fd != record.raw.fileno():
                raise Cancelled("the command was cancelled before the run's driver had obeyed it")
        record.raw.poll()
        record.raw.notifies.clear()


def _obey_here(record: Record, run_id: int, asks: int) -> None:
    """Obey the pending commands of a run that no process drives, unless one begins to just now.

    ``asks`` is the session of this call.
    """
    run = record.known_run(run_id)
    # its backend starts a new driver
    restarts = run.state is RunState.RUNNING and record.is_at_work(run.caller_pid, asks)
    if restarts or (run.state is RunState.RUNNING and not end_lost_run(record, run_id)) or not record.lock_run(run_id):
        return
    try:
        end_old_writers(record, run_id)
        obey_without_driver(record, record.known_run(run_id))
    finally:
        record.unlock_run(run_id)
