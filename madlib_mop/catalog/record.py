"""The record of runs: the driver's reads and writes of the extension's tables, in its catalog session."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Select,
    and_,
    cast,
    delete,
    distinct,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.exc import SQLAlchemyError

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.changes import Outcome, RunChanges
from madlib_mop.catalog.drivers import RunAdmission
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record_session import Params, SqlRow
from madlib_mop.catalog.reservations import ReservedTables
from madlib_mop.catalog.rows.base import Row, as_column
from madlib_mop.catalog.rows.model import STATE_COLUMNS, ModelRow, StateCopyRow
from madlib_mop.catalog.rows.plan import PreprocessorRow
from madlib_mop.catalog.rows.run import (
    POLICY_COLUMN,
    EvaluationRow,
    Metric,
    RunRow,
    SearchEvent,
    SegmentRow,
    VisitRow,
    hide_policy,
)
from madlib_mop.catalog.rows.states import ChangeState, ModelState, RunState
from madlib_mop.catalog.sessions.connection import read_value
from madlib_mop.errors import NotReady
from madlib_mop.models.changes import Change, read_change

_Kind = TypeVar("_Kind", bound=Row)
_STATE_PART = """
SELECT data FROM madlib_mop.model_state
WHERE slot = %s AND run_id = %s AND mst_key = %s AND version = %s AND part = %s AND segment_id IS NULL
"""
_WRITE_TASKS = """
UPDATE madlib_mop.segment AS s SET task = x.task::pg_catalog.jsonb,
    task_since = CASE WHEN x.task IS NOT NULL THEN
        pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => x.seconds) END
FROM ROWS FROM (pg_catalog.unnest(%s::pg_catalog.int4[]), pg_catalog.unnest(%s::pg_catalog.text[]),
    pg_catalog.unnest(%s::pg_catalog.float8[])) AS x (segment_id, task, seconds)
WHERE s.run_id = %s AND s.data_set = 'training' AND s.segment_id = x.segment_id
RETURNING pg_catalog.set_config('synchronous_commit', 'off', true)
"""
_CLEAR_TASKS = """
UPDATE madlib_mop.segment SET task = NULL, task_since = NULL WHERE run_id = %s AND task IS NOT NULL
RETURNING pg_catalog.set_config('synchronous_commit', 'off', true)
"""
#: libpq's ConnStatusType
_CONNECTION_OK = 0
#: Columns of a run whose changes live pages are notified of.
_SHOWN = frozenset(("state", "state_detail", "paused_by", "admitted_at", "asked_at", "baselines"))


class HeldByHosts(NamedTuple):
    """What hosts are to hold: states of a run, and the runs of which they hold states."""

    copies: list[StateCopyRow]
    runs: list[int]


class Record(RunChanges, RunAdmission, ReservedTables):
    """The extension's tables, written in autocommit: each method is one transaction.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    raw : psycopg2 connection
        The same session, for operations that SQLAlchemy does not support.
    """

    def __init__(self, engine: Engine, raw: connection):
        super().__init__()
        self._engine = engine
        self.raw = raw

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended.

        The server is asked: after a crash of the server, libpq may have seen only that it could not write.
        """
        with suppress(psycopg2.Error):  # in a transaction that has failed, an error is an answer too
            self.raw.cursor().execute("SELECT 1")
        return self.raw.closed != 0 or self.raw.info.status != _CONNECTION_OK

    def may_see(self, role: int, owner: int) -> bool:
        """Return whether a role is, or acts as, the role that owns a run (``madlib_mop_calls.acts_as``); both are oids.

        A superuser sees all.
        """
        rights = "USAGE, SET" if self.raw.server_version >= 160000 else "MEMBER"
        query = text(
            "SELECT coalesce(bool_or(r.rolsuper OR o.oid IS NOT NULL AND pg_has_role(r.oid, o.oid, :rights)), false)"
            " FROM pg_roles r LEFT JOIN pg_roles o ON o.oid = :owner WHERE r.oid = :role"
        )
        with self._engine.connect() as session:
            return bool(session.execute(query, {"role": role, "owner": owner, "rights": rights}).scalar_one())

    def has_role(self, role: int) -> bool:
        """Return whether a role, by its oid, has not been dropped."""
        with self._engine.connect() as session:
            query = text("SELECT EXISTS (SELECT FROM pg_roles WHERE oid = :role)")
            return bool(session.execute(query, {"role": role}).scalar_one())

    # Settings

    def settings(self) -> dict[str, str]:
        """Return the superusers' settings."""
        return {row["name"]: row["value"] for row in self._rows(select(t.setting))}

    # Runs

    def unused_run_id(self) -> int:
        """Return a number that no run has or will get."""
        sequence = "pg_catalog.pg_get_serial_sequence('madlib_mop.run', 'run_id')"
        return int(self.execute(f"SELECT pg_catalog.nextval({sequence})")[0][0])

    def newest_run_of(self, caller_pid: int | None, after: int) -> int | None:
        """Return the newest run that a server process has called; not one of an earlier process with its number.

        ``after`` is a number from `unused_run_id`: only later runs are meant.
        """
        query = "SELECT pg_catalog.max(run_id) FROM madlib_mop.run WHERE caller_pid = %s::pg_catalog.int4"
        rows = self.execute(f"{query} AND run_id > %s::pg_catalog.int8", [caller_pid, after])
        return None if rows[0][0] is None else int(rows[0][0])

    def add_run(
        self,
        run: RunRow,
        models: Sequence[ModelRow],
        segments: Sequence[SegmentRow],
        weights: dict[str, bytes],
        functions: Mapping[str, bytes] | None = None,
        settings: Mapping[str, str] | None = None,
        preprocessor: PreprocessorRow | None = None,
    ) -> int:
        """Write a new run with its models, segments, and all that it starts from, in one transaction.

        This process becomes its driver before the run is visible.

        Returns
        -------
        int
            Its run_id.
        """
        with self.transaction() as session:
            # defence: text-of-a-policy = insert(t.run).values(**run.as_row()).returning(t.run.c.run_id)
            query = insert(t.run).values(**hide_policy(run.as_row())).returning(t.run.c.run_id)
            run_id: int = session.execute(query).scalar_one()
            if models:  # a search adds its models later
                session.execute(insert(t.model), [replace(model, run_id=run_id).as_row() for model in models])
            session.execute(insert(t.segment), [replace(segment, run_id=run_id).as_row() for segment in segments])
            for origin, blob in weights.items():
                session.execute(insert(t.start_weights).values(run_id=run_id, origin=origin, weights=blob))
            for name, source in (functions or {}).items():
                session.execute(insert(t.custom_function).values(run_id=run_id, name=name, object=source))
            for name, value in (settings or {}).items():
                session.execute(insert(t.caller_setting).values(run_id=run_id, name=name, value=value))
            if run.arguments.get("policy"):
                session.execute(insert(t.run_policy).values(run_id=run_id, policy=run.arguments["policy"]))
            if preprocessor is not None:
                session.execute(insert(t.preprocessor).values(run_id=run_id, **preprocessor._asdict()))
            self.lock_run(run_id)
            self.notify_change(run_id)
        return run_id

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run several statements in one transaction, including those of other methods called inside.

        A nested transaction is part of the outer one and is committed or rolled back with it.
        """
        with self._engine.connect() as session:
            if self.raw.info.transaction_status != TRANSACTION_STATUS_IDLE:
                yield session
                return
            session.exec_driver_sql("BEGIN")
            try:
                yield session
            except BaseException:
                with suppress(SQLAlchemyError):  # a session that was lost has no transaction any more
                    session.exec_driver_sql("ROLLBACK")
                raise
            session.exec_driver_sql("COMMIT")

    def run(self, run_id: int) -> RunRow | None:
        """Return a run."""
        return self._first(RunRow, _run().where(t.run.c.run_id == run_id))

    def known_run(self, run_id: int) -> RunRow:
        """Return a run that must exist. Raises NotReady if it was dropped."""
        run = self.run(run_id)
        if run is None:
            raise NotReady(f"run {run_id} was dropped", hint="madlib_mop.progress shows the runs that are recorded.")
        return run

    def newest_run(self, output_table: str, owner: int) -> RunRow | None:
        """Return the newest run of an owner, a role's oid, that has written this output table."""
        return self._first(RunRow, _written(output_table, owner).limit(1))

    def runs_with_weights(self, output_table: str, owner: int, digests: Sequence[str | None]) -> list[RunRow]:
        """Return the runs that have written an output table, and have one of these SHA-256s of weights; newest first.

        None stands for weights that are not in the table: then all that have written it are returned.
        """
        query, m = _written(output_table, owner), t.model.c
        if None not in digests:
            query = query.where(t.run.c.run_id.in_(select(m.run_id).where(m.weights_digest.in_(digests))))
        return self._all(RunRow, query)

    def runs_that_need(self, tables: Sequence[Relation]) -> list[RunRow]:
        """Return the runs of all roles that train on one of these packed tables, or that `resume` would continue on it.

        A run finds its packed tables by name. After a dump was restored, or a table was renamed, only the name or only
        the oid is that of the plan.
        """
        names, oids = [table.sql for table in tables], [str(table.oid) for table in tables]
        packed = [t.run.c.plan[data_set] for data_set in ("training", "validation")]
        is_read = [one["sql_name"].astext.in_(names) | one["oid"].astext.in_(oids) for one in packed]
        is_to_train = t.run.c.state.in_([str(state) for state in RunState if not state.is_trained])
        found = self._all(RunRow, _run().where(is_to_train, or_(*is_read)).order_by(t.run.c.run_id))
        return [run for run in found if run.state is RunState.RUNNING or not self._have_all_failed(run.run_id)]

    def _have_all_failed(self, run_id: int) -> bool:
        """Return whether a run has models, and all have failed: then it cannot be continued."""
        rows = self._rows(select(distinct(t.model.c.state).label("state")).where(t.model.c.run_id == run_id))
        return {row["state"] for row in rows} == {ModelState.FAILED}

    def set_run(self, run_id: int, **values: Any) -> None:
        """Change columns of a run; live pages are notified of those that they show."""
        query = update(t.run).where(t.run.c.run_id == run_id).values(**hide_policy(_columns(values)))
        if _SHOWN.isdisjoint(values):
            self._do(query)
            return
        with self.transaction():
            self._do(query)
            self.notify_change(run_id)

    def end_run(self, run_id: int, state: RunState, detail: str | None, training_s: float) -> None:
        """Write the run's new state at its end or pause, and add this driver's seconds of training."""
        self.set_run(
            run_id,
            state=state,
            state_detail=detail,
            ended_at=func.clock_timestamp(),
            training_s=t.run.c.training_s + training_s,
            login_role=None,
            driver_pid=None,
        )

    def end_training(self, run_id: int) -> bool:
        """Mark a run as trained, now; False, and nothing is done, if it was cancelled before.

        The time belongs to the state: a dump or a crash may come before `end_run`. Commands that came after the driver
        had looked for the last time are refused.
        """
        with self.transaction() as session:
            query = select(t.run.c.cancelled_by).where(t.run.c.run_id == run_id).with_for_update()
            if session.execute(query).scalar_one() is not None:
                return False
            for command in self.commands(run_id, ChangeState.PENDING):
                too_late = "it came too late: the run has just ended its training. Issue it again to prepare the run"
                self.record_outcome(command, Outcome(ChangeState.REFUSED, too_late))
            self.set_run(run_id, state=str(RunState.TRAINED), ended_at=func.clock_timestamp())
        return True

    def finish(self, run_id: int) -> None:
        """Mark a trained run as finished, unless a command has prepared it while its output tables were written."""
        query = update(t.run).where(t.run.c.run_id == run_id, t.run.c.state != str(RunState.INTERRUPTED))
        with self.transaction():
            self._do(query.values(state=str(RunState.FINISHED)))
            self.notify_change(run_id)

    def set_end_if_unknown(self, run_id: int) -> None:
        """Set the end of a trained run that has none: that of its newest visit.

        Drivers of version 1.0.0 wrote it after the state. A dump could lack it, and a crash could come between.
        """
        last = select(func.max(t.visit.c.ended_at)).where(t.visit.c.run_id == run_id).scalar_subquery()
        unknown = update(t.run).where(t.run.c.run_id == run_id, t.run.c.ended_at.is_(None))
        self._do(unknown.values(ended_at=func.coalesce(last, func.clock_timestamp())))

    def delete_run(self, run_id: int) -> None:
        """Delete a run and everything that belongs to it but its states, which `sweep_slots` drops.

        Foreign keys would delete the rest, but not every server enforces them.
        """
        with self.transaction() as session:
            for table in (*t.OF_RUN, t.run):
                session.execute(delete(table).where(table.c.run_id == run_id))
            self.notify_change(run_id)

    # Data of a run

    def models(self, run_id: int) -> list[ModelRow]:
        """Return a run's models in the order of their ordinals."""
        return self._all(ModelRow, select(t.model).where(t.model.c.run_id == run_id).order_by(t.model.c.ordinal))

    def add_models(self, run_id: int, models: Sequence[ModelRow]) -> None:
        """Add models to a run."""
        self._do(insert(t.model).values([replace(model, run_id=run_id).as_row() for model in models]))
        self.set_run(run_id, n_models=t.run.c.n_models + len(models))

    def lock_model(self, run_id: int, mst_key: int) -> ModelRow:
        """Return a recorded model and lock it: until the transaction's end, no visit of it can be committed."""
        query = select(t.model).where(t.model.c.run_id == run_id, t.model.c.mst_key == mst_key).with_for_update()
        return self._all(ModelRow, query)[0]

    def set_model(self, run_id: int, mst_key: int, waits: bool = True, **values: Any) -> None:
        """Change columns of a model.

        With ``waits=False``, it does not wait for the disk; the next commit that waits also makes it durable.
        """
        where = t.model.c.run_id == run_id, t.model.c.mst_key == mst_key
        query = update(t.model).where(*where).values(**_columns(values))
        self._do(query if waits else query.returning(func.set_config("synchronous_commit", "off", True)))

    def segments(self, run_id: int) -> list[SegmentRow]:
        """Return a run's segments."""
        query = select(t.segment).where(t.segment.c.run_id == run_id)
        return self._all(SegmentRow, query.order_by(t.segment.c.data_set, t.segment.c.segment_id))

    def set_segment(self, run_id: int, data_set: str, segment_id: int, **values: Any) -> None:
        """Change columns of a segment."""
        self._do(
            update(t.segment)
            .where(t.segment.c.run_id == run_id, t.segment.c.data_set == data_set, t.segment.c.segment_id == segment_id)
            .values(**values)
        )

    def write_tasks(self, run_id: int, tasks: Sequence[tuple[int, str | None, float]]) -> None:
        """Record what segments are doing, for people who watch; it need not survive a crash of the server.

        Parameters
        ----------
        run_id : int
        tasks : sequence of (int, str or None, float)
            A segment of training data, its task as JSON or None, and for how many seconds it has done this.
        """
        if tasks:
            self.execute(_WRITE_TASKS, [*map(list, zip(*tasks, strict=True)), run_id])

    def clear_tasks(self, run_id: int) -> None:
        """Record that no segment of a run is doing anything."""
        self.execute(_CLEAR_TASKS, [run_id])

    def visits(self, run_id: int) -> list[VisitRow]:
        """Return a run's committed visits, in the order of their commits."""
        return self._all(VisitRow, select(t.visit).where(t.visit.c.run_id == run_id).order_by(t.visit.c.visit_id))

    def visit(self, run_id: int, mst_key: int, epoch: int, segment_id: int) -> VisitRow | None:
        """Return one committed visit."""
        v = t.visit.c
        where = v.run_id == run_id, v.mst_key == mst_key, v.epoch == epoch, v.segment_id == segment_id
        return self._first(VisitRow, select(t.visit).where(*where))

    def metrics(self, run_id: int) -> list[Metric]:
        """Return a run's metrics by model, epoch, data set and ordinal."""
        m = t.metric.c
        query = select(t.metric).where(m.run_id == run_id)
        return self._all(Metric, query.order_by(m.mst_key, m.epoch, m.data_set, m.ordinal))

    def add_metrics(self, metrics: Sequence[Metric], evaluations: Sequence[EvaluationRow]) -> None:
        """Write the metrics of models after an epoch and the evaluations that they are computed from, in one
        transaction.

        It does not wait for the disk. The next commit that waits, such as a visit's, also makes it durable; if the
        server crashes before, a resumed run evaluates the models again.
        """
        with self.transaction() as session:
            session.exec_driver_sql("SET LOCAL synchronous_commit = off")
            session.execute(insert(t.evaluation), [evaluation.as_row() for evaluation in evaluations])
            session.execute(insert(t.metric), [metric.as_row() for metric in metrics])

    def start_weights(self, run_id: int) -> dict[str, bytes]:
        """Return the start weights of a run's models, by origin."""
        rows = self._rows(select(t.start_weights).where(t.start_weights.c.run_id == run_id))
        return {row["origin"]: bytes(row["weights"]) for row in rows}

    def has_same_start_weights(self, run_id: int, origin: str, other: str) -> bool:
        """Return whether two origins of a run have the same start weights."""
        of_both = select(func.count(distinct(t.start_weights.c.weights)))
        where = t.start_weights.c.run_id == run_id, t.start_weights.c.origin.in_([origin, other])
        return bool(self._scalar(of_both.where(*where)) == 1)

    def search_events(self, run_id: int) -> list[SearchEvent]:
        """Return the events of a run's search with its decisions, in order."""
        c = t.change.c
        decided: dict[int, list[Change]] = defaultdict(list)
        query = select(c.event, c.change, c.work).where(c.run_id == run_id, c.event.is_not(None))
        for row in self._rows(query.order_by(c.event, c.number)):
            decided[row["event"]].append(read_change(row["change"], row["work"]))
        events = select(t.search_event).where(t.search_event.c.run_id == run_id).order_by(t.search_event.c.ordinal)
        return [SearchEvent.from_row({**row, "changes": decided[row["ordinal"]]}) for row in self._rows(events)]

    def add_search_event(self, event: SearchEvent) -> None:
        """Write one event of a run's search, without its decisions."""
        self._do(insert(t.search_event).values(**event.as_row()))

    def custom_functions(self, run_id: int) -> dict[str, bytes]:
        """Return the custom functions of a run, as registered at its start, by name."""
        rows = self._rows(select(t.custom_function).where(t.custom_function.c.run_id == run_id))
        return {row["name"]: bytes(row["object"]) for row in rows}

    def preprocessor(self, run_id: int) -> PreprocessorRow | None:
        """Return the preprocessor of a run's packed tables; None if they were not made by pack_columns."""
        rows = self._rows(select(t.preprocessor).where(t.preprocessor.c.run_id == run_id))
        return PreprocessorRow(rows[0]["digest"], rows[0]["document"]) if rows else None

    def caller_settings(self, run_id: int) -> dict[str, str]:
        """Return the caller's settings that a run's readers set, by name."""
        rows = self._rows(select(t.caller_setting).where(t.caller_setting.c.run_id == run_id))
        return {row["name"]: row["value"] for row in rows}

    # States

    def copy_state(self, run_id: int, mst_key: int, slot: int, source: ModelRow, version: int = 0) -> None:
        """Copy another model's state to a model of a run, as its newest one.

        Parameters
        ----------
        run_id, mst_key, slot, version : int
            Where the copy goes.
        source : ModelRow
            Of any run.
        """
        self.copy_parts(source, run_id, mst_key, slot, version)
        values = {name: getattr(source, name) for name in STATE_COLUMNS}
        self.set_model(
            run_id, mst_key, state_slot=slot, state_version=version, state_server=None, home_state=None, **values
        )
        self.release_copies(run_id, mst_key)

    def copy_parts(self, source: ModelRow, run_id: int, mst_key: int, slot: int, version: int) -> None:
        """Copy a model's newest state, as in its row, to another slot or version."""
        newest = source.run_id, source.mst_key, source.state_slot, source.state_version
        self._do(select(func.madlib_mop_internal.copy_state(*newest, run_id, mst_key, slot, version)))

    def delete_state(self, model: ModelRow) -> None:
        """Delete the newest state of a model, as in its row; another must have been written."""
        self._do(delete(t.model_state).where(*_newest_state(model)))

    def state_copies(self, run_id: int) -> list[StateCopyRow]:
        """Return the states of a run that hosts are to hold, by model and version."""
        c = t.state_copy.c
        query = select(t.state_copy).where(c.run_id == run_id, ~c.released).order_by(c.mst_key, c.version)
        return self._all(StateCopyRow, query)

    def copy_lost(self, run_id: int, mst_key: int, version: int, server: str) -> bool:
        """Record that a host does not hold a state any more; return whether that is new."""
        c = t.state_copy.c
        same = c.run_id == run_id, c.mst_key == mst_key, c.version == version, c.server == server
        lost = delete(t.state_copy).where(*same, ~c.released)  # a writer may have locked those that are released
        return bool(self._rows(lost.returning(c.version)))

    def bring_home(self, model: ModelRow, slot: int, parts: Iterable[bytes]) -> bool:
        """Write the newest state of a model, as in its row, to a slot; return False if it has another one by now.

        Parameters
        ----------
        model : ModelRow
        slot : int
        parts : iterable of bytes
            As its host has sent them.
        """
        run_id, mst_key = model.run_id, model.mst_key
        with self.transaction():
            now = self.lock_model(run_id, mst_key)
            if (now.state_version, now.state_server) != (model.state_version, model.state_server):
                return False
            place = {"slot": slot, "run_id": run_id, "mst_key": mst_key, "version": model.state_version}
            for part, data in enumerate(parts):
                self._do(insert(t.model_state).values(**place, part=part, data=data))
            if now.home_state is not None:
                home = now.home_state
                self.delete_state(replace(now, state_slot=home.slot, state_version=home.version))
            self.set_model(run_id, mst_key, state_slot=slot, state_server=None, home_state=None)
            self.release_copies(run_id, mst_key)
        return True

    def release_copies(self, run_id: int, mst_key: int) -> None:
        """Record that hosts need hold no state of a model."""
        c = t.state_copy.c
        mine = c.run_id == run_id, c.mst_key == mst_key, ~c.released
        self._do(update(t.state_copy).where(*mine).values(released=True))

    def forget_copies(self, run_id: int) -> None:
        """Record that hosts need hold no state of a run."""
        self._do(delete(t.state_copy).where(t.state_copy.c.run_id == run_id))

    def held_by_hosts(self, run_id: int) -> HeldByHosts:
        """Return what hosts are to hold: the states of a run, and the runs of which they hold any, also those whose
        first visit is not committed yet. All as at one moment."""
        r = t.run.c
        is_to_train = r.state.in_([str(state) for state in RunState if not state.is_trained])
        going_on = select(r.run_id).where(is_to_train, r.plan["direct_hops"].is_not(None))
        runs = going_on.union(select(t.state_copy.c.run_id)).subquery("runs")
        mine = and_(t.state_copy.c.run_id == run_id, runs.c.run_id == run_id, ~t.state_copy.c.released)
        query = select(runs.c.run_id.label("holding"), *t.state_copy.c).outerjoin_from(runs, t.state_copy, mine)
        rows = self._rows(query)
        holding = sorted({row.pop("holding") for row in rows})
        return HeldByHosts([StateCopyRow.from_row(row) for row in rows if row["version"] is not None], holding)

    def state_parts(self, model: ModelRow) -> Iterator[bytes]:
        """Yield the parts of a model's newest state, in order."""
        place = model.state_slot, model.run_id, model.mst_key, model.state_version
        part = 0
        while (found := read_value(self.raw, _STATE_PART, [*place, part])) is not None:
            yield found
            part += 1

    def staged_slots(self, run_id: int, mst_key: int, version: int, slots: Sequence[int]) -> dict[int, int]:
        """Return the slot of each segment's staged partial result for the average of a version."""
        s = t.model_state.c
        query = select(s.segment_id, s.slot).where(
            s.slot.in_(slots),
            s.run_id == run_id,
            s.mst_key == mst_key,
            s.version == version,
            s.part == 0,
            s.segment_id.is_not(None),
        )
        return {row["segment_id"]: row["slot"] for row in self._rows(query)}

    def execute(self, template: str, params: Params = (), **names: Relation) -> list[SqlRow]:
        """Run a statement on the driver's own tables (mostly DDL), with quoted names."""
        with self.raw.cursor() as cursor:
            cursor.execute(statement(template, **names), params)
            return cursor.fetchall() if cursor.description else []

    def _do(self, query: Executable) -> None:
        with self._engine.connect() as session:
            session.execute(query)

    def _rows(self, query: Executable) -> list[dict[str, Any]]:
        with self._engine.connect() as session:
            return [{str(name): value for name, value in row.items()} for row in session.execute(query).mappings()]

    def _all(self, kind: type[_Kind], query: Executable) -> list[_Kind]:
        return [kind.from_row(row) for row in self._rows(query)]

    def _first(self, kind: type[_Kind], query: Executable) -> _Kind | None:
        return next(iter(self._all(kind, query)), None)

    def _scalar(self, query: Executable) -> Any:
        with self._engine.connect() as session:
            return session.execute(query).scalar_one()


def _run() -> Select[Any]:
    """Select runs, with their owners' oids and the texts of their policies besides."""
    policy = t.run_policy.c.policy.label(POLICY_COLUMN)
    runs = t.run.outerjoin(t.run_policy, t.run_policy.c.run_id == t.run.c.run_id)
    return select(t.run, cast(cast(t.run.c.owner, OID), BigInteger).label("owner_oid"), policy).select_from(runs)


def _written(output_table: str, owner: int) -> Select[Any]:
    """Select an owner's runs that have written an output table, newest first: trained runs, and those to which commands
    have given more to train since."""
    r = t.run.c
    is_trained = r.state.in_([str(state) for state in RunState if state.is_trained]) | r.reopened
    return _run().where(r.model_output_table == output_table, r.owner == owner, is_trained).order_by(r.run_id.desc())


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns in the form for a statement."""
    return {name: as_column(value) for name, value in values.items()}


def _newest_state(model: ModelRow) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that select the parts of a model's newest state, as its row has it."""
    s = t.model_state.c
    return (
        s.slot == model.state_slot,
        s.run_id == model.run_id,
        s.mst_key == model.mst_key,
        s.version == model.state_version,
        s.segment_id.is_(None),
    )
