"""The SQL functions that steer a run: each checks its arguments, and issues a command to the run."""

import json
from dataclasses import replace
from typing import Any

from madlib_mop.calls import check_storable, find_function, read_arguments
from madlib_mop.catalog.rows.base import Json
from madlib_mop.catalog.rows.command import CommandRow
from madlib_mop.catalog.rows.states import CommandState
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import find_run, open_record
from madlib_mop.driver.steering.checking import check_command
from madlib_mop.driver.steering.issuing import issue
from madlib_mop.driver.steering.verbs import VERBS
from madlib_mop.errors import InvalidParameter, MopError, NotReady, Unsupported
from madlib_mop.schedule.bulk import AVERAGING


def steer(call: Call) -> Any:
    """Run one of the functions of this module; return what its SQL function returns."""
    done = _steer(call)
    if done.state is not CommandState.OBEYED:
        raise _refusal(call.function, done)
    call.session.notice(f"run {done.run_id}: {done.detail}")
    keys = list(done.mst_keys or [])
    if call.function == "clone_model":
        return keys[0]
    return keys if call.function == "add_models" else None


def command(call: Call) -> Json:
    """Issue a command that was written as a row of view `madlib_mop.command`; return its outcome for the row."""
    name, given = call.arguments["command"], _json(call.arguments["arguments"])
    if name not in VERBS:
        raise InvalidParameter(f"unknown command. Received: {name!r}", hint=f"Choose one of {', '.join(VERBS)}.")
    if not isinstance(given, dict) or "run_id" in given:
        raise InvalidParameter(
            f"arguments must be a JSON object of the command's arguments, without run_id. Received:"
            f" {call.arguments['arguments']}",
            hint="""For example '{"mst_key": 3}'.""",
        )
    check_storable("arguments", given)
    done = _steer(replace(call, function=name, arguments={**given, "run_id": call.arguments["run_id"]}), raises=False)
    return {"command_id": done.command_id, "state": str(done.state), "detail": done.detail, "mst_keys": done.mst_keys}


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None


def _steer(call: Call, raises: bool = True) -> CommandRow:
    """Check and issue a command; a command that is wrong is recorded as refused."""
    record = open_record(call.info)
    run = find_run(record, call)
    given = {name: value for name, value in call.arguments.items() if name != "run_id" and value is not None}
    row = CommandRow(run_id=run.run_id, command=call.function, arguments=given, issued_by=call.info.role_oid)
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
        verb, weights = check_command(call, record, run)
    except MopError as error:
        refused = replace(row, state=CommandState.REFUSED, detail=error.message)
        number = record.issue(refused)
        if raises:
            raise
        return replace(refused, command_id=number)
    return issue(call, record, run, replace(row, work=verb.as_json()), weights)


def _refusal(function: str, done: CommandRow) -> MopError:
    return NotReady(
        f"{function}: run {done.run_id}: {done.detail}",
        hint=f"SELECT * FROM madlib_mop.steering WHERE run_id = {done.run_id}; shows all commands to the run.",
    )
