"""The SQL functions by which people steer a run: each checks its arguments, issues a command and awaits its outcome.

If no process drives the run, this one applies the command; otherwise the run's driver does.
"""

import json
import select
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from madlib_mop.calls import check_storable, find_function, read_arguments
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.base import Json
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ChangeState, RunState
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.checks import check_command
from madlib_mop.driver.changes.side import RunSide
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import find_run, open_record
from madlib_mop.driver.session.stopping import sigterm_delayed
from madlib_mop.engines.sessions.ending import end_lost_run, end_old_writers
from madlib_mop.errors import Cancelled, InvalidParameter, MopError, NotReady, Unsupported
from madlib_mop.models.changes import BY_FUNCTION, Add, Clone
from madlib_mop.schedule.bulk import AVERAGING

_TICK_S = 0.5


def steer(call: Call) -> Any:
    """Run one of the functions of ``calls/steering.py``; return what its SQL function returns."""
    done = _steer(call)
    if done.state is not ChangeState.OBEYED:
        raise _refusal(call.function, done)
    call.session.notice(f"run {done.run_id}: {done.detail}")
    keys = list(done.mst_keys or [])
    if call.function == Clone.function:
        return keys[0]
    return keys if call.function == Add.function else None


def command(call: Call) -> Json:
    """Issue a command that was written as a row of view `madlib_mop.command`; return its outcome for the row."""
    name, given = call.arguments["command"], _json(call.arguments["arguments"])
    if name not in BY_FUNCTION:
        raise InvalidParameter(f"unknown command. Received: {name!r}", hint=f"Choose one of {', '.join(BY_FUNCTION)}.")
    if not isinstance(given, dict) or "run_id" in given:
        raise InvalidParameter(
            f"arguments must be a JSON object of the command's arguments, without run_id. Received:"
            f" {call.arguments['arguments']}",
            hint="""For example '{"mst_key": 3}'.""",
        )
    check_storable("arguments", given)
    done = _steer(replace(call, function=name, arguments={**given, "run_id": call.arguments["run_id"]}), raises=False)
    return {"command_id": done.change_id, "state": str(done.state), "detail": done.detail, "mst_keys": done.mst_keys}


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None


def _steer(call: Call, raises: bool = True) -> ChangeRow:
    """Check and issue a command; a command that is wrong is recorded as refused."""
    record = open_record(call.info)
    run = find_run(record, call)  # defence: owner-steers = record.known_run(call.arguments['run_id'])
    given = {name: value for name, value in call.arguments.items() if name != "run_id" and value is not None}
    row = ChangeRow.asked(run.run_id, call.function, given, call.info.role_oid)
    try:
        if run.schedule == AVERAGING:
            raise Unsupported(
                f"run {run.run_id} was started by madlib_keras_fit, which averages one model: it cannot be steered",
                hint="madlib_mop.cancel() stops it. Runs of madlib_keras_fit_multiple_model can be steered.",
            )
        if not raises:
            function = find_function(call.function)
            function.check_known(call.arguments)
            call = replace(call, arguments=read_arguments(function, call.arguments))
        if run.kind == "replay":
            raise Unsupported(
                f"run {run.run_id} is a replay, which repeats the visits of run {run.parent_run_id}: it cannot be"
                " steered",
                hint=f"Steer run {run.parent_run_id}, or start a new run.",
            )
        change, weights = check_command(call, record, run)
    except MopError as error:
        refused = row.as_refused(error.message)
        number = record.issue(refused)
        if raises:
            raise
        return replace(refused, change_id=number)
    return issue(call, record, run, row.checked(change), weights)


def _refusal(function: str, done: ChangeRow) -> MopError:
    return NotReady(
        f"{function}: run {done.run_id}: {done.detail}",
        hint=f"SELECT * FROM madlib_mop.steering WHERE run_id = {done.run_id}; shows all commands to the run.",
    )


def issue(
    call: Call, record: Record, run: RunRow, command: ChangeRow, weights: Mapping[str, bytes] | None = None
) -> ChangeRow:
    """Record a command, wait until the run's driver has applied or refused it, and return it as settled.

    Raises
    ------
    Cancelled
        If the caller's statement is cancelled before the command was applied: it is withdrawn.
    """
    record.listen_for_outcomes()
    command_id = record.issue(command, weights)
    try:
        return _await(call, record, run.run_id, command_id)
    except BaseException:
        with sigterm_delayed():
            record.withdraw(run.run_id, command_id)
        raise


def _await(call: Call, record: Record, run_id: int, command_id: int) -> ChangeRow:
    poller = select.poll()
    poller.register(record.raw.fileno(), select.POLLIN)
    poller.register(call.session.stop_fd, select.POLLIN)
    look_at = 0.0
    while True:
        settled = record.command(run_id, command_id)
        if settled.state is not ChangeState.PENDING:
            return settled
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + _TICK_S
            if not record.is_live(run_id):
                _apply_here(record, run_id, call.info.pid)
                continue
        for fd, _ in poller.poll(_TICK_S * 1000):
            if fd != record.raw.fileno():
                raise Cancelled("the command was cancelled before the run's driver had obeyed it")
        record.raw.poll()
        record.raw.notifies.clear()


def _apply_here(record: Record, run_id: int, asks: int) -> None:
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
        changes = Changes(RunSide(record, record.known_run(run_id)))
        changes.apply(record.commands(run_id, ChangeState.PENDING))
    finally:
        record.unlock_run(run_id)
