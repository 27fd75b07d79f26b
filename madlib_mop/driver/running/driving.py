"""Drives a run from its current state to its end: takes its lock, opens its segments, trains, and cleans up."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass

import psycopg2.errors
from mop_backend.frames import PeerGone
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.catalog.sessions.connection import local_keywords
from madlib_mop.driver.changes.deciders import Decider, Deciders
from madlib_mop.driver.changes.replay import RepeatedCommands
from madlib_mop.driver.changes.time_limit import make_time_limit
from madlib_mop.driver.data.custom_functions import check_openable, pickles_on
from madlib_mop.driver.estimates.expected import expected_time
from madlib_mop.driver.running.admission import admit
from madlib_mop.driver.running.averaging import Averaging
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.running.policy import Policy, PolicyCommands
from madlib_mop.driver.running.segment_sessions import SegmentSessions
from madlib_mop.driver.running.segments import Segments
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.driver.session.messages import record_failed
from madlib_mop.driver.session.opening import reopened
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.driver.session.stopping import SESSION_ENDED, sigterm_delayed, was_cancelled
from madlib_mop.engines.sessions.access import Access
from madlib_mop.engines.sessions.ending import clean, end_old_writers, end_run, left_of, sweep
from madlib_mop.engines.sessions.login import RunLogin, create_login
from madlib_mop.engines.sessions.options import options_of
from madlib_mop.errors import Cancelled, MopError, NotReady
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.schedule import Visit
from madlib_mop.schedule.bounds import Efficiency
from madlib_mop.schedule.bulk import AVERAGING

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
        progress, decider = _make_decider(call, record, run)
        progress.started(_expected_time(record, run))
        access, stop_fd = _access(call.info, record, run, login), call.session.stop_fd
        segments = SegmentSessions(record, access, run, progress, rule.reading_limit_s, call.info.pid, stop_fd)
        if run.schedule == AVERAGING:
            hopper = Averaging(record, segments, run, progress, decider)
        else:
            policy = _make_policy(call, record, run, segments, progress)
            hopper = Hopper(record, segments, run, progress, recorded, decider, policy)
        hopper.run()
        if not record.end_training(run_id):
            raise was_cancelled(run_id, record.cancelled_by(run_id) or "somebody")
        models = record.models(run_id)
        state, detail = RunState.TRAINED, decider.time_over
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


def _make_decider(call: Call, record: Record, run: RunRow) -> tuple[ProgressReporter, Decider]:
    """Create the progress and the decider of a run."""
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
    if not run.is_search:  # that of a search has its limit
        deciders.append(make_time_limit(record, run, lambda: progress.elapsed_s))
    return progress, Deciders(*deciders)


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
