"""A call that is a run: plans and records it, reserves its output tables' names, drives it to its end, writes them.

`drive` takes a run from its current state to its end: it takes the run's lock, opens its segments, trains, and cleans
up. Called by the commands that train, resume or replay.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg2
import psycopg2.errors
from mop_backend.frames import PeerGone
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from madlib_mop.calls import find_function, recorded_arguments
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.catalog.sessions.connection import local_keywords
from madlib_mop.driver.changes.deciders import Decider, make_time_limit
from madlib_mop.driver.changes.replay import RepeatedCommands
from madlib_mop.driver.data.custom_functions import check_openable, pickles_on
from madlib_mop.driver.estimates.estimate import expected_time
from madlib_mop.driver.outputs.tables import keep_when_prepared, reserve_outputs, telling_how_to_resume
from madlib_mop.driver.outputs.writers import outputs_of, write_outputs
from madlib_mop.driver.planning.plan import RunPlan, add_run
from madlib_mop.driver.planning.replay import recorded_visits
from madlib_mop.driver.running.admission import admit
from madlib_mop.driver.running.averaging import Averaging
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.running.policy import Policy, PolicyCommands
from madlib_mop.driver.running.segment_sessions import SegmentSessions
from madlib_mop.driver.running.segments import Segments
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.driver.session.messages import record_failed
from madlib_mop.driver.session.opening import open_record, reopened
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.driver.session.stopping import SESSION_ENDED, sigterm_delayed, was_cancelled
from madlib_mop.engines.sessions.access import Access, options_of
from madlib_mop.engines.sessions.ending import clean, end_old_writers, end_run, left_of, sweep
from madlib_mop.engines.sessions.login import RunLogin, create_login
from madlib_mop.errors import Cancelled, MopError, NotReady
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.schedule import Visit
from madlib_mop.schedule.bounds import Efficiency
from madlib_mop.schedule.bulk import AVERAGING


def _make_deciders(call: Call, record: Record, run: RunRow) -> tuple[ProgressReporter, Sequence[Decider]]:
    """Create the progress and the deciders of a run."""
    models = record.models(run.run_id)
    deciders: list[Decider] = []
    if run.is_search:
        from madlib_mop.driver.changes.search import make_searcher
        from madlib_mop.driver.changes.search_progress import SearchProgress

        progress: ProgressReporter = SearchProgress(call.session, run, models, record.search_events(run.run_id))
        deciders.append(make_searcher(record, run, lambda: progress.elapsed_s))
    else:
        progress = ProgressReporter(call.session, run, models)
    if run.kind == "replay" and run.parent_run_id is not None:
        deciders.append(RepeatedCommands(record.models(run.parent_run_id)))
    if not run.is_search and run.plan.time_limit_s is not None:  # that of a search has its limit
        deciders.append(make_time_limit(record, run, lambda: progress.elapsed_s))
    return progress, deciders


def train(call: Call, plan_it: Callable[[Call, Record], RunPlan]) -> None:
    """Plan and record a run, train its models, and write its output tables.

    If a driver of this call was killed, this one continues its run.
    """
    record = open_record(call.info)
    if call.continue_run is None:
        run_id = _begin(call, record, plan_it(call, record))
    else:
        run_id = call.continue_run
        run = record.known_run(run_id)
        reserve_outputs(call.session, record, run, outputs_of(run.schedule).SUFFIXES)
    finish_run(call, record, run_id)


def _begin(call: Call, record: Record, plan: RunPlan) -> int:
    """Record a planned run with the call's arguments, and reserve its output tables' names; return its run_id."""
    reserve_outputs(call.session, record, plan.run, outputs_of(plan.run.schedule).SUFFIXES)
    run = replace(plan.run, caller_pid=call.info.pid)
    if run.kind != "replay":  # a replay has the arguments of the original run
        run = replace(run, arguments=recorded_arguments(find_function(call.function), call.arguments))
    return add_run(record, replace(plan, run=run))


def finish_run(call: Call, record: Record, run_id: int) -> None:
    """Train a run's models, if not trained yet, and write its output tables.

    If a driver was killed while it wrote these, the backend has rolled them back.
    """
    run, models = record.known_run(run_id), None
    recorded = recorded_visits(record, run) if run.kind == "replay" and not run.state.is_trained else None
    with logged(record, run):
        if not run.state.is_trained:
            models = drive(call, record, run_id, recorded)
        else:
            call.session.run_started(run_id)  # this driver, too, may be killed
            record.set_end_if_unknown(run_id)
        with telling_how_to_resume(run):
            write_outputs(call.session, record, run_id, models)
            keep_when_prepared(call.session, record)


_LOCK_WITHIN_S = 10.0
_SWEPT_WITHIN_S = 1.0
_ESTIMATE_WAITS_MS = 200


def drive(call: Call, record: Record, run_id: int, recorded: list[Visit] | None = None) -> list[ModelRow]:
    """Train a run's models until all are done; return them, as they are before a later command changes them.

    Parameters
    ----------
    call : Call
        The call, which gets NOTICEs and can cancel the run.
    record : Record
    run_id : int
    recorded : list of Visit or None
        For a replay: the visits to repeat.

    Raises
    ------
    Cancelled, MopError
        The run is marked as cancelled, interrupted or failed; committed work is kept.
    """
    become_driver(record, run_id)
    call.session.run_started(run_id)
    record.count_lost_seconds(run_id)
    run = record.known_run(run_id)
    state: RunState = RunState.INTERRUPTED
    detail: str | None = SESSION_ENDED
    segments = progress = None
    hopper: Hopper | Averaging | None = None
    try:
        check_openable(CustomFunctions(record.custom_functions(run_id), pickles_on(record.settings())))
        rule = admit(call, record, run)
        sweep(record, call.info.pid, but=run_id)
        end_old_writers(record, run_id)
        run = record.known_run(run_id)  # its owner may have been renamed while it waited
        with sigterm_delayed():
            login = create_login(record.raw, run_id, run.owner)
        record.set_run(
            run_id,
            state=RunState.RUNNING,
            state_detail=None,
            ended_at=None,
            login_role=login.role if login is not None else None,
            driver_pid=os.getpid(),
            caller_pid=call.info.pid,
        )
        progress, deciders = _make_deciders(call, record, run)
        access, stop_fd = _access(call.info, record, run, login), call.session.stop_fd
        segments = SegmentSessions(record, access, run, progress, rule.reading_limit_s, call.info.pid, stop_fd)
        segments.open()
        progress.started(_expected_time(record, run))  # while they open
        if run.schedule == AVERAGING:
            hopper = Averaging(record, segments, run, progress, deciders)
        else:
            policy = _make_policy(call, record, run, segments, progress)
            hopper = Hopper(record, segments, run, progress, recorded, deciders, policy)
        hopper.run()
        if not record.end_training(run_id):
            raise was_cancelled(run_id, record.cancelled_by(run_id) or "somebody")
        models = record.models(run_id)
        state, detail = RunState.TRAINED, next((why for each in deciders if (why := each.time_over)), None)
    except Cancelled as error:
        by_caller = record.cancelled_by(run_id) is None
        state, detail = (RunState.INTERRUPTED if by_caller else RunState.CANCELLED), error.message
        raise
    except MopError as error:
        state, detail = RunState.FAILED, error.message
        raise
    except PeerGone:
        raise
    except (psycopg2.Error, SQLAlchemyError) as error:
        failure = record_failed(error)
        failure.hint = f"{failure.hint or ''} SELECT madlib_mop.resume({run_id}); continues the run.".strip()
        if record.is_lost:
            with sigterm_delayed():
                record = reopened(call.info, record)
        else:
            state = RunState.FAILED
        if not record.is_lost and (by := record.cancelled_by(run_id)) is not None:
            state, failure = RunState.CANCELLED, was_cancelled(run_id, by)
        detail = failure.message
        raise failure from None
    except Exception as error:
        detail = f"internal error: {type(error).__name__}: {error}"
        raise
    finally:
        with sigterm_delayed():
            if segments is not None:
                segments.close(releases_trainers=state is RunState.TRAINED)
            spent_s = progress.spent_s if progress is not None else 0.0
            efficiency = hopper.efficiency() if hopper is not None else None
            _finish(call.info, record, run, RunEnd(state, detail, spent_s, efficiency))
    return models


@dataclass(frozen=True)
class RunEnd:
    """How a run ends: its state, the reason, the seconds of training by this driver, and its use of the segments."""

    state: RunState
    detail: str | None
    spent_s: float
    efficiency: Efficiency | None


def _finish(info: SessionInfo, record: Record, run: RunRow, end: RunEnd) -> None:
    """Write the end of a run, then end what is left of it; an error here must not hide the cause of the end.

    If the session was lost, such as in a crash of the server, another one does it.
    """
    with suppress(psycopg2.Error, SQLAlchemyError, MopError):
        try:
            _end(record, run, end)
        except (psycopg2.Error, SQLAlchemyError):
            if not record.is_lost:
                raise
            _end(reopened(info, record), run, end)


def _end(record: Record, run: RunRow, end: RunEnd) -> None:
    if not record.lock_run(run.run_id):  # in a new session: another driver has taken the run over
        return
    left = left_of(record, run.run_id)
    try:
        with record.transaction():
            if end.efficiency is not None:
                _write_times(record, run, end.efficiency)
            end_run(record, run.run_id, end.state, end.detail, end.spent_s)
    finally:  # also on a full disk
        clean(record, left)
        record.wake_waiting()


def _make_policy(
    call: Call, record: Record, run: RunRow, segments: Segments, progress: ProgressReporter
) -> Policy | None:
    """Create the policy of a run, if it has one."""
    if run.plan.policy is None:
        return None
    commands = PolicyCommands(record, run, call.session)
    return Policy(run.plan.policy, run.run_id, commands, segments, progress.tell)


def _expected_time(record: Record, run: RunRow) -> str | None:
    """Return the words for the time that a run will take. An estimate that fails, or waits for a lock on the record,
    must not stop the run: the caller's own transaction may hold the lock, which only the run's segments report."""
    try:
        with record.transaction():
            record.execute(f"SET LOCAL lock_timeout = {_ESTIMATE_WAITS_MS}")
            return expected_time(record, run, record.models(run.run_id))
    except (psycopg2.Error, SQLAlchemyError) as error:
        if isinstance(getattr(error, "orig", error), psycopg2.errors.LockNotAvailable):
            return None
        raise
    except Exception:
        return None


def _access(info: SessionInfo, record: Record, run: RunRow, login: RunLogin | None) -> Access:
    """Return how the sessions of a run's segments log in."""
    catalog = local_keywords(info.sockets, info.port, info.database)
    where = run.plan.worker_host, info.port, info.database
    settings = record.caller_settings(run.run_id)
    return Access(run.run_id, catalog, *where, options_of(record.raw), login, run.owner_oid, settings)


def become_driver(record: Record, run_id: int, anew: bool = False) -> None:
    """Become the run's driver, after waiting for an ending driver; ``anew`` clears an earlier cancel.

    A run that does not train may be locked for a moment, while another run's driver drops its spare slots.

    Raises
    ------
    NotReady
        If another driver is running.
    """
    began = time.monotonic()
    while True:
        state = record.known_run(run_id).state  # before the attempt: an ending driver writes it and unlocks at once
        if record.lock_run_anew(run_id) if anew else record.lock_run(run_id):
            return
        if time.monotonic() > began + (_LOCK_WITHIN_S if state is RunState.RUNNING else _SWEPT_WITHIN_S):
            raise NotReady(
                f"run {run_id} is in progress in another session",
                hint=f"madlib_mop.progress shows it; SELECT madlib_mop.cancel({run_id}); stops it.",
            )
        time.sleep(0.1)


def _write_times(record: Record, run: RunRow, efficiency: Efficiency) -> None:
    """Add this driver's makespan and lower bound to those of the run's earlier drivers."""
    if efficiency.work_s:
        record.set_run(
            run.run_id,
            makespan_s=(run.makespan_s or 0.0) + efficiency.makespan_s,
            lower_bound_s=(run.lower_bound_s or 0.0) + efficiency.lower_bound_s,
            idle_share=efficiency.idle_share,
        )


_WRITE = "SELECT madlib_mop_internal.log_line(%s)"


@contextmanager
def logged(record: Record, run: RunRow) -> Iterator[None]:
    """Write the lines of a run before and after a block that trains it and writes its output tables.

    Parameters
    ----------
    record : Record
    run : RunRow
        As it is before the block. If an earlier driver has begun it, it is resumed.
    """
    is_new = run.asked_at is None and run.admitted_at is None and not run.training_s
    _write(record, line(run, "started" if is_new else "resumed"))
    try:
        yield
    finally:
        with sigterm_delayed(), suppress(psycopg2.Error, DBAPIError):  # the server may be gone
            ended = record.run(run.run_id)
            if ended is not None:
                _write(record, line(ended, "ended"))


def line(run: RunRow, what: str) -> str:
    """Return a line about a run.

    Names are JSON strings in ASCII. So a name with a line break or a control character cannot forge another line.

    Parameters
    ----------
    run : RunRow
    what : str
        ``started``, ``resumed`` or ``ended``.

    Returns
    -------
    str
        ``madlib_mop: run 7 ended kind=... owner="..." output="..." state=... seconds=...``; the seconds are those of
        all its drivers.
    """
    owner, output = _quoted(run.owner), _quoted(run.model_output_table)
    values = f"kind={run.kind} owner={owner} output={output} state={run.state} seconds={run.training_s:.3f}"
    return f"madlib_mop: run {run.run_id} {what} {values}"


def _quoted(name: str) -> str:
    return json.dumps(name).replace("\x7f", "\\u007f")  # defence: names-in-the-log = f'"{name}"'


def _write(record: Record, text: str) -> None:
    record.execute(_WRITE, [text])
