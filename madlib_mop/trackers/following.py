"""Writes a run to a tracker, once or until it has ended; called by the commands of the trackers."""

from types import TracebackType
from typing import Any, Protocol

import psycopg

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.models import ModelFacts, read_all_models
from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.tracked import TrackedRun, TrackedState, read_points, read_tracked
from madlib_mop.catalog.live.following import RunFollower, RunListener, wait_for_output
from madlib_mop.catalog.live.words import state_of
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.errors import NAME_THE_SERVER, InvalidParameter, NotReady, cannot_log_in, connection_lost
from madlib_mop.reports.page import report
from madlib_mop.trackers.exported import OutputTable, export_model, find_table
from madlib_mop.trackers.weights import Weights, read_weights

#: Metrics can be committed later than they were known. So metrics of this many seconds before are read again.
_OVERLAP_S = 60.0


class RunSession:
    """A session that reads one run with the rights of an ordinary login, and hears of its changes.

    Parameters
    ----------
    dsn : str
        URI or keywords of libpq; PGHOST and the other variables of libpq supply the rest.
    run_id : int

    Raises
    ------
    NotReady
        If the login fails.
    """

    def __init__(self, dsn: str, run_id: int):
        self.run_id = run_id
        self._known: set[tuple[Any, ...]] = set()
        self._newest: float | None = None
        self._was_running = False
        check_dsn(dsn)
        try:
            self._connection = psycopg.connect(dsn, connect_timeout=10, application_name="madlib-mop", autocommit=True)
        except psycopg.Error as error:
            raise cannot_log_in(error, NAME_THE_SERVER) from None
        try:
            self._connection.execute("SET search_path = pg_catalog, pg_temp")
            self._connection.execute("SET jit = off")
        except psycopg.Error:
            self._connection.close()
            raise _lost() from None
        self.news = RunFollower(RunListener(self._connection, self._connection.close), run_id)

    def __enter__(self) -> "RunSession":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.news.close()

    def read(self) -> TrackedState:
        """Return the state of the run, with the metrics that were not returned before.

        Raises
        ------
        InvalidParameter
            If there is no such run, or the role may not see it.
        NotReady
            If the connection is lost.
        """
        with self.news.pace.reading():
            return self._state()

    def _state(self) -> TrackedState:
        since = None if self._newest is None else self._newest - _OVERLAP_S
        try:
            with one_snapshot(self._connection) as reader:
                run = read_tracked(reader, self.run_id)
                models = read_all_models(reader, self.run_id)
                points = read_points(reader, self.run_id, since)
        except psycopg.Error:
            raise _lost() from None
        self._was_running |= not run.has_ended
        new = tuple(point for point in points if _identity(point) not in self._known)
        self._known.update(map(_identity, new))
        self._newest = max([point.at for point in points], default=self._newest)
        return TrackedState(run, models, new)

    def report(self) -> str:
        """Return the report of the run as an HTML document."""
        try:
            with one_snapshot(self._connection) as reader:
                return report(reader, self.run_id)
        except psycopg.Error:
            raise _lost() from None

    def weights(self, mst_key: int) -> Weights | None:
        """Return the newest weights of a model; None if it has none, or the role may not read training states."""
        try:
            return read_weights(self._connection, self.run_id, mst_key)
        except psycopg.Error:
            raise _lost() from None

    def output_table(self, run: TrackedRun, of_others: bool) -> OutputTable:
        """Return the run's output table. Raises NotReady or InsufficientPrivilege; see `find_table`."""
        if self._was_running and run.state == RunState.FINISHED:
            wait_for_output(lambda: self._table(run, of_others, is_there=False))
        found = self._table(run, of_others, is_there=True)
        assert found is not None, "otherwise it was an error"
        return found

    def _table(self, run: TrackedRun, of_others: bool, is_there: bool) -> OutputTable | None:
        """Return the run's output table; if it is not there, raise NotReady, or return None."""
        try:
            return find_table(self._connection, run, of_others)
        except NotReady:
            if is_there:
                raise
            return None
        except psycopg.Error:
            raise _lost() from None

    def export(self, table: OutputTable, model: ModelFacts) -> bytes:
        """Return a model of the output table as a Keras file. Raises MopError; see `export_model`."""
        try:
            return export_model(self._connection, table, model)
        except psycopg.Error:
            raise _lost() from None


class Tracker(Protocol):
    """A program that tracks experiments, and gets one run."""

    def start(self, record: TrackedState) -> None:
        """Check that the run can be written, before anything of it is.

        Raises
        ------
        InvalidParameter, InsufficientPrivilege, NotReady
            If it cannot.
        """

    def write(self, record: TrackedState) -> None:
        """Write what has changed since the last call, or what an earlier process has not written."""

    def finish(self, record: TrackedState, session: RunSession) -> None:
        """Write what is there once, after the last call of `write`."""


def track(session: RunSession, tracker: Tracker, follow: bool) -> TrackedState:
    """Write a run to a tracker, and return its last state.

    Parameters
    ----------
    session : RunSession
    tracker : Tracker
    follow : bool
        Go on until the run has ended, or its session was lost; otherwise write its present state.

    Raises
    ------
    InvalidParameter
        If there is no such run, the role may not see it, or it has no metrics and gets none.
    """
    record = session.read()
    if not record.points and (record.run.has_ended or not follow):
        raise InvalidParameter(
            f"run {session.run_id} has no metrics; it is {state_of(record.run)}",
            hint=f"No process trains it. SELECT madlib_mop.resume({session.run_id}); continues it."
            if record.run.is_lost
            else "Metrics are known after an iteration that is evaluated (metrics_compute_frequency)."
            if record.run.has_ended
            else "Its first metrics are known after an iteration. --follow waits for them.",
        )
    tracker.start(record)
    tracker.write(record)
    while follow and not record.run.has_ended:
        session.news.wait()
        record = session.read()
        tracker.write(record)
    tracker.finish(record, session)
    return record


def _identity(point: MetricPoint) -> tuple[Any, ...]:
    return point.mst_key, point.data_set, point.name, point.is_sample, point.step


def _lost() -> NotReady:
    return connection_lost("Run the command again.")
