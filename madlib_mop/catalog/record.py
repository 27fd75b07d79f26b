"""The record of runs: what the driver writes and reads in the extension's tables, through its catalog session."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from psycopg2.extensions import connection
from sqlalchemy import BigInteger, Connection, Engine, Select, cast, delete, func, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import OID

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.drivers import RunDrivers
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.reservations import ReservedTables


class Record(RunDrivers, ReservedTables):
    """The extension's tables, written in autocommit: each method is one transaction.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    raw : psycopg2 connection
        The same session, for what SQLAlchemy does not do.
    """

    def __init__(self, engine: Engine, raw: connection):
        super().__init__()
        self._engine = engine
        self.raw = raw

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
            return session.execute(query, {"role": role, "owner": owner, "rights": rights}).scalar_one()

    # settings

    def settings(self) -> dict[str, str]:
        """Return the settings that superusers made."""
        return {row["name"]: row["value"] for row in self._rows(select(t.setting))}

    # runs

    def add_run(
        self,
        run: dict,
        models: Sequence[dict],
        segments: Sequence[dict],
        weights: dict[str, bytes],
        functions: Mapping[str, bytes] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> int:
        """Write a new run with its models, segments, start weights, custom functions and settings, in one transaction.

        This process is its driver before anybody sees it.

        Returns
        -------
        int
            Its run_id.
        """
        with self.transaction() as session:
            run_id = session.execute(insert(t.run).values(**run).returning(t.run.c.run_id)).scalar_one()
            if models:  # a search adds its own later
                session.execute(insert(t.model), [{"run_id": run_id, **row} for row in models])
            session.execute(insert(t.segment), [{"run_id": run_id, **row} for row in segments])
            for origin, blob in weights.items():
                session.execute(insert(t.start_weights).values(run_id=run_id, origin=origin, weights=blob))
            for name, value in (functions or {}).items():
                session.execute(insert(t.custom_function).values(run_id=run_id, name=name, object=value))
            for name, value in (settings or {}).items():
                session.execute(insert(t.caller_setting).values(run_id=run_id, name=name, value=value))
            self.take(run_id)
        return run_id

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Make several statements one transaction; those of other methods called meanwhile belong to it."""
        with self._engine.connect() as session:
            session.exec_driver_sql("BEGIN")
            try:
                yield session
            except BaseException:
                session.exec_driver_sql("ROLLBACK")
                raise
            session.exec_driver_sql("COMMIT")

    def run(self, run_id: int) -> dict | None:
        """Return a run's row: its owner's name, and ``owner_oid``, by which roles are compared."""
        rows = self._rows(_run().where(t.run.c.run_id == run_id))
        return rows[0] if rows else None

    def newest_run(self, output_table: str, owner: int) -> dict | None:
        """Return the newest run of an owner, a role's oid, that was to write an output table and trained its models."""
        query = (
            _run()
            .where(
                t.run.c.model_output_table == output_table,
                t.run.c.owner == owner,
                t.run.c.state.in_(("finished", "trained")),
            )
            .order_by(t.run.c.run_id.desc())
            .limit(1)
        )
        rows = self._rows(query)
        return rows[0] if rows else None

    def set_run(self, run_id: int, **values) -> None:
        """Change columns of a run."""
        self._do(update(t.run).where(t.run.c.run_id == run_id).values(**values))

    def end_run(self, run_id: int, state: str, detail: str | None, training_s: float) -> None:
        """Write how the run has ended, or paused, and the seconds of training that this driver added."""
        self._do(
            update(t.run)
            .where(t.run.c.run_id == run_id)
            .values(
                state=state,
                state_detail=detail,
                ended_at=func.clock_timestamp(),
                training_s=t.run.c.training_s + training_s,
                login_role=None,
                driver_pid=None,
                caller_pid=None,
            )
        )

    def delete_run(self, run_id: int) -> None:
        """Delete a run and all that belongs to it; its states' partitions must have been dropped.

        Foreign keys would delete the rest with the run, but not every server has them.
        """
        with self.transaction() as session:
            for table in (*t.OF_RUN, t.run):
                session.execute(delete(table).where(table.c.run_id == run_id))

    # what belongs to a run

    def models(self, run_id: int) -> list[dict]:
        """Return a run's models in the order of their ordinals."""
        return self._rows(select(t.model).where(t.model.c.run_id == run_id).order_by(t.model.c.ordinal))

    def add_models(self, run_id: int, models: Sequence[dict]) -> None:
        """Write more models of a run."""
        self._do(insert(t.model).values([{"run_id": run_id, **row} for row in models]))
        self.set_run(run_id, n_models=t.run.c.n_models + len(models))

    def lock_model(self, run_id: int, mst_key: int) -> dict:
        """Return a model's row; until the transaction's end no visit of it can be kept."""
        query = select(t.model).where(t.model.c.run_id == run_id, t.model.c.mst_key == mst_key).with_for_update()
        return self._rows(query)[0]

    def set_model(self, run_id: int, mst_key: int, **values) -> None:
        """Change columns of a model."""
        self._do(update(t.model).where(t.model.c.run_id == run_id, t.model.c.mst_key == mst_key).values(**values))

    def segments(self, run_id: int) -> list[dict]:
        """Return a run's segments."""
        query = select(t.segment).where(t.segment.c.run_id == run_id)
        return self._rows(query.order_by(t.segment.c.data_set, t.segment.c.segment_id))

    def set_segment(self, run_id: int, data_set: str, segment_id: int, **values) -> None:
        """Change columns of a segment."""
        self._do(
            update(t.segment)
            .where(t.segment.c.run_id == run_id, t.segment.c.data_set == data_set, t.segment.c.segment_id == segment_id)
            .values(**values)
        )

    def visits(self, run_id: int) -> list[dict]:
        """Return a run's kept visits, in the order in which they were kept."""
        return self._rows(select(t.visit).where(t.visit.c.run_id == run_id).order_by(t.visit.c.visit_id))

    def visit(self, run_id: int, mst_key: int, epoch: int, segment_id: int) -> dict | None:
        """Return one kept visit."""
        v = t.visit.c
        rows = self._rows(
            select(t.visit).where(
                v.run_id == run_id, v.mst_key == mst_key, v.epoch == epoch, v.segment_id == segment_id
            )
        )
        return rows[0] if rows else None

    def metrics(self, run_id: int) -> list[dict]:
        """Return a run's metrics by model, epoch, data set and ordinal."""
        m = t.metric.c
        query = select(t.metric).where(m.run_id == run_id)
        return self._rows(query.order_by(m.mst_key, m.epoch, m.data_set, m.ordinal))

    def add_metrics(self, rows: Sequence[dict], evaluations: Sequence[dict]) -> None:
        """Write the metrics of models after an epoch and the evaluations that they are from, all in one transaction."""
        with self.transaction() as session:
            session.execute(insert(t.evaluation).values(list(evaluations)))
            session.execute(insert(t.metric).values(list(rows)))

    def start_weights(self, run_id: int) -> dict[str, bytes]:
        """Return the weights that a run's models start from, by origin."""
        rows = self._rows(select(t.start_weights).where(t.start_weights.c.run_id == run_id))
        return {row["origin"]: bytes(row["weights"]) for row in rows}

    def search_events(self, run_id: int) -> list[dict]:
        """Return what a run's search was told and what it decided, in order."""
        query = select(t.search_event).where(t.search_event.c.run_id == run_id)
        return self._rows(query.order_by(t.search_event.c.ordinal))

    def add_search_event(self, run_id: int, event: dict) -> None:
        """Write one event of a run's search."""
        self._do(insert(t.search_event).values(run_id=run_id, **event))

    def custom_functions(self, run_id: int) -> dict[str, bytes]:
        """Return the custom functions that a run was begun with, by name."""
        rows = self._rows(select(t.custom_function).where(t.custom_function.c.run_id == run_id))
        return {row["name"]: bytes(row["object"]) for row in rows}

    def caller_settings(self, run_id: int) -> dict[str, str]:
        """Return the settings of the caller's session that a run's readers set, by name."""
        rows = self._rows(select(t.caller_setting).where(t.caller_setting.c.run_id == run_id))
        return {row["name"]: row["value"] for row in rows}

    # states

    def copy_state(self, run_id: int, mst_key: int, slot: int, source: dict, version: int = 0) -> None:
        """Give a model of a run another model's state as its own newest one.

        Parameters
        ----------
        run_id, mst_key, slot, version : int
            Where the copy goes.
        source : dict
            Row of `madlib_mop.model`, of any run.
        """
        self.copy_parts(source, run_id, mst_key, slot, version)
        kept = ("state_bytes", "model_bytes", "forward_parts", "digest", "weights_digest")
        values = {name: source[name] for name in kept}
        self.set_model(run_id, mst_key, state_slot=slot, state_version=version, **values)

    def copy_parts(self, source: dict, run_id: int, mst_key: int, slot: int, version: int) -> None:
        """Write a model's newest state, as its row has it, once more: in another place, or as another version."""
        s = t.model_state.c
        parts = select(literal(slot), literal(run_id), literal(mst_key), literal(version), s.part, s.data)
        columns = ["slot", "run_id", "mst_key", "version", "part", "data"]
        self._do(insert(t.model_state).from_select(columns, parts.where(*_newest_state(source))))

    def delete_state(self, model: dict) -> None:
        """Delete the newest state of a model as its row has it; another must have been written."""
        self._do(delete(t.model_state).where(*_newest_state(model)))

    def state_parts(self, run_id: int, model: dict) -> Iterator[bytes]:
        """Yield the parts of a model's newest state, in order."""
        s = t.model_state.c
        part = 0
        while True:
            query = select(s.data).where(
                s.slot == model["state_slot"],
                s.run_id == run_id,
                s.mst_key == model["mst_key"],
                s.version == model["state_version"],
                s.part == part,
                s.segment_id.is_(None),
            )
            rows = self._rows(query)
            if not rows:
                return
            yield bytes(rows[0]["data"])
            part += 1

    def staged_slots(self, run_id: int, mst_key: int, version: int, slots: Sequence[int]) -> dict[int, int]:
        """Tell in which of a run's slots each segment's staged part-result is that is to be averaged into a version."""
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

    def execute(self, template: str, params: Sequence = (), **names: Relation) -> list[tuple]:
        """Run a statement of the driver's own about its tables (DDL, mostly), with names quoted into it."""
        with self.raw.cursor() as cursor:
            cursor.execute(statement(template, **names), params)
            return cursor.fetchall() if cursor.description else []

    def _do(self, query) -> None:
        with self._engine.connect() as session:
            session.execute(query)

    def _rows(self, query) -> list[dict]:
        with self._engine.connect() as session:
            return [dict(row) for row in session.execute(query).mappings()]

    def _scalar(self, query):
        with self._engine.connect() as session:
            return session.execute(query).scalar_one()


def _run() -> Select:
    """Select runs, with their owners' oids besides."""
    return select(t.run, cast(cast(t.run.c.owner, OID), BigInteger).label("owner_oid"))


def _newest_state(model: dict) -> tuple:
    """Return the conditions that select the parts of a model's newest state, as its row has it."""
    s = t.model_state.c
    return (
        s.slot == model["state_slot"],
        s.run_id == model["run_id"],
        s.mst_key == model["mst_key"],
        s.version == model["state_version"],
        s.segment_id.is_(None),
    )
