"""Control of recorded runs: resume, cancel, replay, report and drop_run."""

import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import psycopg2
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog.names import statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import OutputName
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.catalog.state_slots import sweep_slots
from madlib_mop.driver.data.moved_shards import follow_shards
from madlib_mop.driver.data.packed import check_versions, new_segments
from madlib_mop.driver.outputs.earlier_runs import newer_run
from madlib_mop.driver.outputs.tables import check_some_trained, find_models, reserve_outputs
from madlib_mop.driver.outputs.writers import check_outputs, check_parts, has_outputs, outputs_of
from madlib_mop.driver.planning.replay import plan_replay
from madlib_mop.driver.planning.run_data import check_tables
from madlib_mop.driver.running.driving import become_driver, finish_run, train
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import find_run, open_record
from madlib_mop.driver.session.stopping import was_cancelled
from madlib_mop.engines.sessions.ending import end_forcibly, end_old_writers, sweep
from madlib_mop.errors import DuplicateTable, InsufficientPrivilege, NotReady, Unsupported

_REACTS_WITHIN_S = 4.0
_TELLS_CALLER_WITHIN_S = 1.0
_PAUSE_S = 0.05


def resume(call: Call) -> None:
    """Continue a run that was interrupted, cancelled or has failed, and write its output tables.

    For a trained run, only missing output tables are written; a finished run with its tables is an
    error.
    """
    record = open_record(call.info)
    run = find_run(record, call)
    run_id = run.run_id
    if call.info.role_oid != run.owner_oid:
        raise _not_the_owner(record, run, call.info.role)
    if run.state is RunState.FINISHED and has_outputs(call.session, record, run):
        check_parts(call.session, run)
        call.session.notice(
            f"run {run_id} is finished, and its output table {run.plan.output.relation} exists: there is nothing to "
            f"resume"
        )
        return
    if run.kind == "replay" and call.arguments.get("max_seconds") is not None:
        raise Unsupported(
            f"run {run_id} is a replay, which makes all visits of run {run.parent_run_id}: its time cannot be limited."
            f" Received: max_seconds {call.arguments['max_seconds']:g}",
            hint=f"Omit max_seconds: SELECT madlib_mop.resume({run_id});",
        )
    if call.continue_run is None and not run.state.is_trained:
        check_versions(call.session, record.raw, run)
    become_driver(record, run_id, anew=call.continue_run is None)
    try:
        run = record.known_run(run_id)
        check_some_trained(run_id, record.models(run_id))
        if call.arguments.get("output_table") is not None:
            run = _rename(call, record, run)
        _check_not_taken(call, record, run)
        reserve_outputs(call.session, record, run, outputs_of(run.schedule).SUFFIXES)
        check_outputs(call.session, run)
        if not run.state.is_trained:
            check_tables(call.session, run)
            _notice_new_segments(call, run)
            follow_shards(call, record, run)
            _limit_time(call, record, run_id)
        finish_run(call, record, run_id)
    finally:
        record.unlock_run(run_id)


def replay(call: Call) -> None:
    """Repeat the visits of a run, in the same order for each model, as a new run."""
    train(call, plan_replay)


def cancel(call: Call) -> bool:
    """Request the driver of a run to stop; return False, with a NOTICE, if the run is not training."""
    record = open_record(call.info)
    run = find_run(record, call)
    run_id = run.run_id
    if record.ask_to_cancel(run_id, call.info.role, call.info.pid):
        _make_stop(record, run, call.info.role)
        return True
    sweep(record, call.info.pid)
    call.session.notice(f"run {run_id} is not training: it is {record.known_run(run_id).state}")
    return False


def _make_stop(record: Record, run: RunRow, by: str) -> None:
    """Wait until a run has stopped; if its driver does not react, such as one that is suspended, end the run here."""
    asked_at: datetime = record.execute("SELECT pg_catalog.clock_timestamp()")[0][0]
    if _has_stopped(record, run.run_id, _REACTS_WITHIN_S):
        return
    reason = was_cancelled(run.run_id, by).message
    end_forcibly(record, run.run_id, RunState.CANCELLED, reason)
    time.sleep(_TELLS_CALLER_WITHIN_S)  # a driver that only waited for a lock now tells the caller why it ends
    record.end_statement(run.caller_pid, asked_at)


def _has_stopped(record: Record, run_id: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while record.known_run(run_id).state is RunState.RUNNING:
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def end_lost_run(call: Call) -> str | None:
    """End a run whose driver the caller's backend has killed or found dead; return who has cancelled the run.

    Only the backend calls it, with the number of a run whose driver it has started.
    """
    record = open_record(call.info)
    run_id = call.arguments["run_id"]
    record.execute("SELECT pg_catalog.set_config('lock_timeout', '2000', false)")
    by = None
    with suppress(psycopg2.Error, SQLAlchemyError):  # another session may have locked the table
        by = record.cancelled_by(run_id)
    state = RunState.INTERRUPTED if by is None else RunState.CANCELLED
    reason = call.arguments["reason"] if by is None else was_cancelled(run_id, by).message
    end_forcibly(record, run_id, state, reason)
    return by


def report(call: Call) -> str:
    """Return a run as one HTML page, read in the caller's session; nothing is written.

    Raises
    ------
    InvalidParameter
        If the caller may see no run of this number, or of this registered model.
    """
    # The library of figures is large: it is imported for this command only, not by every driver.
    from madlib_mop.catalog.facts.reader import SessionReader
    from madlib_mop.catalog.facts.registered import run_of
    from madlib_mop.reports.page import report as report_of

    reader, run_id = SessionReader(call.session), call.arguments["run_id"]
    return report_of(reader, run_of(reader, run_id) if isinstance(run_id, str) else run_id)


def drop_run(call: Call) -> None:
    """Drop the record and states of a run; output tables stay.

    A run whose driver has died is locked for a moment, while another session ends it.
    """
    record = open_record(call.info)
    run = find_run(record, call)
    run_id = run.run_id
    if not record.lock_run(run_id):
        if run.state is RunState.RUNNING and record.is_at_work(run.caller_pid, call.info.pid):
            raise NotReady(f"run {run_id} is running", hint=f"SELECT madlib_mop.cancel({run_id}); stops it.")
        become_driver(record, run_id)
    end_old_writers(record, run_id)
    record.delete_run(run_id)
    sweep_slots(record, [call.info.pid])
    record.unlock_run(run_id)


def drop_models(call: Call) -> list[str]:
    """Drop the output table of a fit function with its companions; return the names of the dropped tables."""
    call.session.check_may_write(call.arguments.get("model_table"), "model_table")
    tables = find_models(call.session, call.arguments.get("model_table"))
    for table in tables:
        call.session.execute(statement("DROP TABLE {t}", t=table))
    return [str(table) for table in tables]


def _check_not_taken(call: Call, record: Record, run: RunRow) -> None:
    """Raise DuplicateTable if a run would replace the models of a newer run with the same output table."""
    replaces = run.arguments.get("replace") or run.replaces_rows
    newer = newer_run(call.session, record, run) if replaces else None
    if newer is not None:
        raise DuplicateTable(
            f"run {run.run_id} would replace the models of run {newer.run_id}, which has written"
            f" {run.model_output_table} since",
            hint=f"Give another name: SELECT madlib_mop.resume({run.run_id}, output_table => '...');",
        )


def _rename(call: Call, record: Record, run: RunRow) -> RunRow:
    """Change the name of a run's output tables in its record; return the run."""
    suffixes = outputs_of(run.schedule).SUFFIXES
    output = call.session.output(call.arguments["output_table"], suffixes, "output_table")
    summary = replace(run.plan.summary, model=call.arguments["output_table"])
    plan = replace(run.plan, output=OutputName.of(output), summary=summary)
    record.set_run(run.run_id, plan=plan, model_output_table=str(output))
    return record.known_run(run.run_id)


def _limit_time(call: Call, record: Record, run_id: int) -> None:
    """Give a run the seconds of training of its call, from now on; without them, it has what was left of its own."""
    seconds = call.arguments.get("max_seconds")
    if seconds is not None and call.continue_run is None:
        record.count_lost_seconds(run_id)
        run = record.known_run(run_id)
        record.set_run(run_id, plan=replace(run.plan, time_limit_s=run.training_s + seconds))


def _notice_new_segments(call: Call, run: RunRow) -> None:
    """Warn of segments that the packed table got after the start of the run. A resumed run does not use them, because
    it must end with the same bits as an uninterrupted one."""
    training = run.plan.training
    for segment_id in new_segments(call.session, training):
        call.session.warning(
            f"run {run.run_id}: {training.table} got segment {segment_id} after the start of the run;"
            " the run continues on its original segments. A warm start uses all segments"
        )


def _not_the_owner(record: Record, run: RunRow, role: str) -> InsufficientPrivilege:
    """Return the error of a role that may see a run, but would not own its output tables."""
    if record.has_role(run.owner_oid):
        owner, hint = f"role {run.owner}, who will own its output tables", f"Log in as {run.owner} to resume it."
    else:
        owner = f"role {run.owner}, which was dropped"
        hint = f"Nobody can resume it. SELECT madlib_mop.drop_run({run.run_id}); deletes it."
    return InsufficientPrivilege(f"run {run.run_id} belongs to {owner}. Received a call by role {role}", hint=hint)
