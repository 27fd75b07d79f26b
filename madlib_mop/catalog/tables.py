"""The extension's tables in SQLAlchemy, as created by sql/20-catalog.sql (a test compares the two)."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeEngine, UserDefinedType


class Role(UserDefinedType[str]):
    """A role, by its oid: written as a number, selected as its current name."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the SQL type."""
        return "regrole"

    def column_expression(self, column: ColumnElement[str]) -> ColumnElement[str]:
        """Return the column's expression in a SELECT; ``unknown (OID=...)`` once the role was dropped."""
        return func.pg_catalog.pg_get_userbyid(column)


_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": BigInteger(), "boolean": Boolean(), "bytea": LargeBinary(), "float8": Float(), "integer": Integer(),
    "json": JSON(), "jsonb": JSONB(none_as_null=True), "regrole": Role(), "text": Text(),
    "timestamptz": DateTime(timezone=True), "_integer": ARRAY(Integer), "_text": ARRAY(Text),
}  # fmt: skip
metadata = MetaData(schema="madlib_mop")


def _table(name: str, **columns: str) -> Table:
    """Declare a table by the names of its columns of each type; that of an array has a ``_`` before it."""
    found = [Column(column, _TYPES[kind]) for kind, names in columns.items() for column in names.split()]
    return Table(name, metadata, *found)


setting = _table("setting", text="name value")
run = _table(
    "run", bigint="run_id seed parent_run_id",
    text="kind state state_detail source_table validation_table model_output_table model_selection_table"
    " model_arch_table schedule login_role cancelled_by paused_by",
    regrole="owner",
    integer="num_iterations metrics_compute_frequency n_models n_segments n_threads driver_pid caller_pid",
    boolean="warm_start use_caching reopened", jsonb="arguments plan versions faults baselines",
    timestamptz="created_at ended_at asked_at admitted_at", float8="training_s makespan_s lower_bound_s idle_share",
)  # fmt: skip
segment = _table(
    "segment", bigint="run_id n_rows n_bytes", text="data_set engine place fingerprint", integer="segment_id",
    jsonb="task", timestamptz="task_since",
)  # fmt: skip
model = _table(
    "model", bigint="run_id state_version state_slot state_bytes model_bytes command_id multiplications",
    integer="mst_key ordinal model_id first_epoch last_epoch epoch position forward_parts seed_key",
    text="compile_params fit_params start_weights state state_detail digest weights_digest loss_type state_server",
    json="model_arch", _text="metrics_type", boolean="pinned",
    jsonb="taken_over early_stopping best_state cloned_from hyper_parameters home_state",
)  # fmt: skip
start_weights = _table("start_weights", bigint="run_id", text="origin", bytea="weights")
custom_function = _table("custom_function", bigint="run_id", text="name", bytea="object")
caller_setting = _table("caller_setting", bigint="run_id", text="name value")
run_policy = _table("run_policy", bigint="run_id", text="policy")
preprocessor = _table("preprocessor", bigint="run_id", text="digest document")
model_state = _table("model_state", bigint="slot run_id version", integer="mst_key part segment_id", bytea="data")
state_copy = _table(
    "state_copy", bigint="run_id version state_bytes", integer="mst_key epoch position segment_id forward_parts",
    text="server digest weights_digest", boolean="released",
)  # fmt: skip
visit = _table(
    "visit", bigint="visit_id run_id n_rows state_bytes", integer="mst_key epoch position segment_id attempt",
    timestamptz="started_at ended_at", text="digest_in digest_out", float8="loss", jsonb="timing",
)  # fmt: skip
metric = _table(
    "metric", bigint="run_id", integer="mst_key epoch ordinal", text="data_set name", float8="value elapsed_s work_s",
    timestamptz="at",
)  # fmt: skip
visit_metric = _table(
    "visit_metric", bigint="run_id visits n_rows", integer="mst_key epoch position ordinal", text="data_set name",
    float8="value",
)  # fmt: skip
evaluation = _table(
    "evaluation", bigint="run_id n_rows", integer="mst_key epoch shard segment_id", text="data_set",
    timestamptz="started_at ended_at", float8="loss", jsonb="timing",
)  # fmt: skip
search_event = _table(
    "search_event", bigint="run_id", integer="ordinal mst_key epoch", text="event", float8="loss", timestamptz="at",
)  # fmt: skip
change = _table(
    "change", bigint="change_id run_id", text="source change command state detail", jsonb="work arguments visits",
    integer="event number ordinal", regrole="issued_by", timestamptz="issued_at settled_at", _integer="mst_keys",
)  # fmt: skip
reserved_table = _table(
    "reserved_table", text="table_schema table_name virtualxid", integer="pid", timestamptz="session_start",
    bigint="txid",
)  # fmt: skip

#: Tables with the rows of a run, except its states.
OF_RUN = (
    segment, model, start_weights, custom_function, caller_setting, run_policy, preprocessor, visit, metric,
    visit_metric, evaluation, search_event, change,
)  # fmt: skip
