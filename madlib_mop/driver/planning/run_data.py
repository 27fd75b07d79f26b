"""The packed tables of a run, read and checked, with their data for its plan, record and outputs.

Called by `planning.plan`, and when a recorded run is continued or repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from madlib_mop.catalog.drivers import n_segment_sessions
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import HopPlan, OutputName, OutputSummary, Plan, PreprocessorRow, SamplePlan
from madlib_mop.catalog.rows.run import SAMPLE, RunRow, SegmentRow
from madlib_mop.driver.data.gpus import require_gpus
from madlib_mop.driver.data.packed import PackedTable, gpus_of_run, read_packed_table, read_preprocessor_row
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import not_committed
from madlib_mop.driver.session.settings import Settings, read_backend
from madlib_mop.engines.sessions.login import check_limit
from madlib_mop.errors import InvalidParameter, NotReady, OutOfResources, Unsupported

# Read from the catalogs only: a function such as pg_partition_tree would wait for the lock that this query looks for.
_LOCKED = """
WITH RECURSIVE part AS (
    SELECT %s::pg_catalog.oid AS oid
    UNION SELECT i.inhrelid FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
)
SELECT 1 FROM pg_catalog.pg_locks l JOIN part ON part.oid = l.relation
WHERE l.pid = %s AND l.mode = 'AccessExclusiveLock' AND l.granted
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""


# Custom settings have a dot in their names. The run's role gets the caller's values of the built-in settings
# (engines/sessions/access.py).
_POLICY_SETTINGS = """
SELECT DISTINCT m[1] AS name FROM pg_catalog.pg_policy p CROSS JOIN LATERAL
    pg_catalog.regexp_matches(pg_catalog.pg_get_expr(p.polqual, p.polrelid), $re$current_setting\\('([^']+[.][^']+)'$re$, 'g') m
WHERE p.polrelid = $1::pg_catalog.oid
"""  # noqa: E501


#: The most bytes of all rows of a run, validation data included, that each of its trainers keeps.
_FEW_BYTES = 64 << 20


@dataclass(frozen=True)
class Data:
    """The packed tables of a run.

    Attributes
    ----------
    source, validation : PackedTable
    gpus : mapping of int to int
        The GPU of each segment's trainer that uses one.
    settings : mapping of str to str
        The caller's values of the settings that row policies of these tables read; not part of the plan, because
        all roles that see the run can read the plan.
    preprocessor : PreprocessorRow or None
        Of tables that pack_columns packed.
    """

    source: PackedTable
    validation: PackedTable | None
    gpus: Mapping[int, int]
    settings: Mapping[str, str] = field(repr=False)
    preprocessor: PreprocessorRow | None = None

    @property
    def tables(self) -> dict[str, Relation | None]:
        """The tables by the arguments that named them."""
        validation = self.validation.relation if self.validation else None
        return {"source_table": self.source.relation, "validation_table": validation}

    def segments(self, sample: SamplePlan | None = None) -> list[SegmentRow]:
        """Return the segments as rows; the sample is one more, of the data set ``sample``."""
        found = [
            SegmentRow(
                data_set=data_set,
                segment_id=shard.segment_id,
                engine=packed.engine,
                place=shard.place.server,
                n_rows=shard.n_rows,
                n_bytes=shard.n_bytes,
            )
            for data_set, packed in (("training", self.source), ("validation", self.validation))
            if packed is not None
            for shard in packed.shards
        ]
        if sample is None:
            return found
        (of,) = (s for s in found if (s.data_set, s.segment_id) == (sample.data_set, sample.segment_id))
        return [*found, replace(of, data_set=SAMPLE, n_rows=sample.n_rows, n_bytes=None)]

    def run_columns(self) -> dict[str, Any]:
        """Return the columns of `madlib_mop.run` that name them."""
        return {
            "source_table": str(self.source.relation),
            "validation_table": str(self.validation.relation) if self.validation else None,
            "n_segments": len(self.source.shards),
        }

    def plan(
        self, settings: Settings, output: Relation, may_stay: bool, hops: HopPlan | None = None, **others: Any
    ) -> Plan:
        """Return a run's plan: data for the workers, output tables, and other fields.

        ``may_stay`` is whether its models gain by staying with one trainer, if each trainer has room for all rows;
        ``hops``, how its models hop from host to host if they do; None if they may not.
        """
        plan = Plan(
            training=self.source.as_plan(),
            validation=self.validation.as_plan() if self.validation else None,
            trainer=settings.trainer_start(),
            # defence: settings-in-the-plan = self.settings
            shares={server: settings.share_at_host(n) for server, n in self.source.n_at_hosts.items()},
            gpus=self.gpus,
            worker_host=settings.worker_host,
            host_wait_s=settings.host_wait_s,
            trainer_idle_s=settings.trainer_idle_s,
            output=OutputName.of(output),
            **others,
        )
        shards = [shard for packed in plan.data_sets.values() for shard in packed.segments]
        have_room = sum(shard.n_bytes for shard in shards) <= min(_FEW_BYTES, settings.shard_cache_bytes)
        any_trainer = may_stay and have_room and plan.all_here and not self.gpus
        has_hosts = any(shard.server is not None for shard in plan.training.segments)
        return replace(plan, any_trainer=any_trainer, direct_hops=hops if settings.direct_hops and has_hosts else None)

    def summary(self, **others: Any) -> OutputSummary:
        """Return the summary of a run's output: the columns that describe the tables, and others."""
        source = self.source
        return OutputSummary(
            dependent_varname=source.dependent,
            independent_varname=source.independent,
            dependent_vartype=source.dependent_vartype,
            num_classes=source.num_classes,
            class_values=source.class_values,
            class_counts=[list(counts) if counts else None for counts in source.class_counts],
            normalizing_const=source.normalizing_const,
            preprocessor_digest=self.preprocessor.digest if self.preprocessor is not None else None,
            **others,
        )


def read_data(call: Call, record: Record) -> Data:
    """Read the packed tables that a call names; assign a GPU to each segment with ``use_gpus``.

    Raises
    ------
    MopError
        If there is no GPU; if a table does not exist or is not packed, does not match the other, or is not visible to
        the workers.
    """
    a, session = call.arguments, call.session
    n_gpus = 0
    if a.get("use_gpus"):  # before the tables are read: the check is fast and applies to all of them
        n_gpus = require_gpus("use_gpus => true", read_backend(record, session))
    source = read_packed_table(session, a.get("source_table"), "source_table")
    validation = None
    if (a.get("validation_table") or "").strip():
        validation = read_packed_table(session, a["validation_table"], "validation_table")
        _check_same_data(source, validation)
    for what, packed in (("source_table", source), ("validation_table", validation)):
        if packed is not None:
            _check_seen_by_workers(record, packed, what, call.info.pid)
    settings: dict[str, str] = {}
    for packed in (source, validation):
        if packed is not None and packed.row_security:
            settings |= _policy_settings(session, packed.relation)
    preprocessor = _preprocessor(session, source, validation)
    return Data(source, validation, gpus_of_run(n_gpus, source), settings, preprocessor)


def check_tables(session: CallerSession, run: RunRow) -> None:
    """Check a recorded run's packed tables like those named in a call: workers read them with the caller's rights.

    Raises
    ------
    InsufficientPrivilege, InvalidParameter
        If the caller cannot read one, or it has columns of user-defined types.
    """
    arguments = {"training": "source_table", "validation": "validation_table"}
    for data_set, packed in run.plan.data_sets.items():
        session.existing(packed.sql_name, arguments[data_set])


def _preprocessor(
    session: CallerSession, source: PackedTable, validation: PackedTable | None
) -> PreprocessorRow | None:
    """Return the preprocessor of the source table, which must be that of the validation table."""
    found = [
        read_preprocessor_row(session, packed.summary.relation, packed.summary.types)
        for packed in (source, validation)
        if packed is not None
    ]
    if len(set(found)) > 1:
        raise InvalidParameter(
            "validation_table: its columns were encoded by another preprocessor than those of source_table",
            hint="Pack both by one call of madlib_mop.pack_columns, with validation => 0.2; or validation_table by"
            " validation_preprocessor_dl with source_table as training_preprocessor_table.",
        )
    return found[0]


def _policy_settings(session: CallerSession, relation: Relation) -> dict[str, str]:
    """Return the caller's values of the settings that a table's row policies read, so readers can set them too."""
    values = {}
    for row in session.execute(_POLICY_SETTINGS, [relation.oid], ["pg_catalog.int8"]):
        value = session.caller_setting(row["name"])
        if value is not None:
            values[row["name"]] = value
    return values


def _check_same_data(source: PackedTable, validation: PackedTable) -> None:
    """Raise InvalidParameter if the validation table was not packed like the source table."""
    checks: tuple[tuple[str, object, object], ...] = (
        ("number of inputs", len(source.independent), len(validation.independent)),
        ("number of outputs", len(source.dependent), len(validation.dependent)),
        ("shape of a row", source.shapes, validation.shapes),
        *_classes(source, validation),
        ("normalizing_const", source.normalizing_const, validation.normalizing_const),
    )
    for what, ours, theirs in checks:
        if ours != theirs:
            raise InvalidParameter(
                f"validation_table: its {what} differs from that of source_table. Received: {theirs}, expected: {ours}",
                hint="Pack it by validation_preprocessor_dl with source_table as training_preprocessor_table.",
            )


def _classes(source: PackedTable, validation: PackedTable) -> list[tuple[str, object, object]]:
    """Pair the class values of each output; labels from one-hot arrays have none to compare."""
    pairs = zip(source.class_values, validation.class_values, strict=False)
    return [("list of class values", a, b) for (_, a), (_, b) in pairs if a is not None and b is not None]


def _check_seen_by_workers(record: Record, packed: PackedTable, what: str, caller_pid: int) -> None:
    """Reject tables that the workers, which are separate sessions, could not see or would wait for."""
    relation: Relation = packed.relation
    if relation.is_temp:
        raise Unsupported(
            f"{what}: {relation} is a temporary table, which other sessions cannot read. Received: {relation.name!r}",
            hint="Pack the data into an ordinary table: the segments' workers are separate sessions.",
        )
    if not record.execute("SELECT 1 FROM pg_catalog.pg_class WHERE oid = %s", [relation.oid]):
        raise not_committed(what, relation)
    if packed.row_security and packed.limits.row_security is not None:
        raise Unsupported(
            f"{what}: {relation} has row-level security, which cannot be enforced: {packed.limits.row_security}."
            f" Received: {relation.name!r}",
            hint="Pack the rows to train on into a table of your own, or into segments on this server:"
            " SET madlib_mop.hosts = 'here';",
        )
    if record.execute(_LOCKED, [relation.oid, caller_pid]):
        raise NotReady(
            f"{what}: this transaction holds a lock on {relation} that blocks other sessions. Received: "
            f"{relation.name!r}",
            hint="COMMIT first: the segments' workers are separate sessions and would wait for the lock.",
        )


def check_connections(record: Record, source: PackedTable, role: str, n_more: int = 0) -> None:
    """Raise OutOfResources if there are too few connections for a run's sessions.

    ``n_more`` sessions log in as a reader does.
    """
    n_segments = len(source.shards)
    n_sessions = n_segment_sessions(n_segments, sum(source.n_at_hosts.values())) + n_more
    free = record.free_connections()
    if free < n_sessions:
        raise OutOfResources(
            f"a run on {n_segments} segments needs {n_sessions} connections, but only {max(0, free)} are free",
            hint="Raise max_connections, close idle sessions, or pack the data into fewer segments.",
        )
    check_limit(record.raw, role, n_sessions - n_segments)
