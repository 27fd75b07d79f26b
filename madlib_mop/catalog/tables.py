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
    Interval,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import UserDefinedType


class Role(UserDefinedType[str]):
    """A role, by its oid: written as a number, selected as its current name."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the SQL type."""
        return "regrole"

    def column_expression(self, column: ColumnElement[str]) -> ColumnElement[str]:
        """Return the column's expression in a SELECT; ``unknown (OID=...)`` once the role was dropped."""
        return func.pg_catalog.pg_get_userbyid(column)


metadata = MetaData(schema="madlib_mop")

setting = Table("setting", metadata, Column("name", Text, primary_key=True), Column("value", Text))

run = Table(
    "run",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("kind", Text),
    Column("state", Text),
    Column("state_detail", Text),
    Column("owner", Role),
    Column("source_table", Text),
    Column("validation_table", Text),
    Column("model_output_table", Text),
    Column("model_selection_table", Text),
    Column("model_arch_table", Text),
    Column("num_iterations", Integer),
    Column("metrics_compute_frequency", Integer),
    Column("warm_start", Boolean),
    Column("use_caching", Boolean),
    Column("seed", BigInteger),
    Column("schedule", Text),
    Column("n_models", Integer),
    Column("n_segments", Integer),
    Column("n_threads", Integer),
    Column("parent_run_id", BigInteger),
    Column("arguments", JSONB),
    Column("plan", JSONB),
    Column("versions", JSONB),
    Column("created_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("training_s", Float),
    Column("makespan_s", Float),
    Column("lower_bound_s", Float),
    Column("idle_share", Float),
    Column("driver_pid", Integer),
    Column("caller_pid", Integer),
    Column("login_role", Text),
    Column("cancelled_by", Text),
    Column("faults", JSONB),
    Column("paused_by", Text),
    Column("reopened", Boolean),
    Column("asked_at", DateTime(timezone=True)),
    Column("admitted_at", DateTime(timezone=True)),
)

segment = Table(
    "segment",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("data_set", Text, primary_key=True),
    Column("segment_id", Integer, primary_key=True),
    Column("engine", Text),
    Column("place", Text),
    Column("n_rows", BigInteger),
    Column("n_bytes", BigInteger),
    Column("fingerprint", Text),
    Column("task", JSONB),
    Column("task_since", DateTime(timezone=True)),
)

model = Table(
    "model",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("mst_key", Integer, primary_key=True),
    Column("ordinal", Integer),
    Column("model_id", Integer),
    Column("compile_params", Text),
    Column("fit_params", Text),
    Column("model_arch", JSON),
    Column("start_weights", Text),
    Column("state", Text),
    Column("state_detail", Text),
    Column("first_epoch", Integer),
    Column("last_epoch", Integer),
    Column("epoch", Integer),
    Column("position", Integer),
    Column("state_version", BigInteger),
    Column("state_slot", BigInteger),
    Column("state_bytes", BigInteger),
    Column("model_bytes", BigInteger),
    Column("forward_parts", Integer),
    Column("digest", Text),
    Column("weights_digest", Text),
    Column("loss_type", Text),
    Column("metrics_type", ARRAY(Text)),
    Column("taken_over", JSONB(none_as_null=True)),
    Column("early_stopping", JSONB(none_as_null=True)),
    Column("best_state", JSONB(none_as_null=True)),
    Column("seed_key", Integer),
    Column("pinned", Boolean),
    Column("cloned_from", JSONB(none_as_null=True)),
    Column("command_id", BigInteger),
    Column("hyper_parameters", JSONB),
)

start_weights = Table(
    "start_weights",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("origin", Text, primary_key=True),
    Column("weights", LargeBinary),
)

custom_function = Table(
    "custom_function",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("object", LargeBinary),
)

caller_setting = Table(
    "caller_setting",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text),
)

run_policy = Table(
    "run_policy",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("policy", Text),
)

preprocessor = Table(
    "preprocessor",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("digest", Text),
    Column("document", Text),
)

model_state = Table(
    "model_state",
    metadata,
    Column("slot", BigInteger),
    Column("run_id", BigInteger),
    Column("mst_key", Integer),
    Column("version", BigInteger),
    Column("part", Integer),
    Column("data", LargeBinary),
    Column("segment_id", Integer),
)

visit = Table(
    "visit",
    metadata,
    Column("visit_id", BigInteger, primary_key=True),
    Column("run_id", BigInteger),
    Column("mst_key", Integer),
    Column("epoch", Integer),
    Column("position", Integer),
    Column("segment_id", Integer),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("n_rows", BigInteger),
    Column("state_bytes", BigInteger),
    Column("digest_in", Text),
    Column("digest_out", Text),
    Column("attempt", Integer),
    Column("loss", Float),
    Column("timing", JSONB),
)

metric = Table(
    "metric",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("mst_key", Integer, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("data_set", Text, primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("name", Text),
    Column("value", Float),
    Column("elapsed_s", Float),
    Column("work_s", Float),
    Column("at", DateTime(timezone=True)),
)

visit_metric = Table(
    "visit_metric",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("mst_key", Integer, primary_key=True),
    Column("visits", BigInteger, primary_key=True),
    Column("epoch", Integer),
    Column("position", Integer),
    Column("data_set", Text),
    Column("n_rows", BigInteger),
    Column("ordinal", Integer, primary_key=True),
    Column("name", Text),
    Column("value", Float),
)

evaluation = Table(
    "evaluation",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("mst_key", Integer, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("data_set", Text, primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("segment_id", Integer),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("n_rows", BigInteger),
    Column("loss", Float),
    Column("timing", JSONB),
)

search_event = Table(
    "search_event",
    metadata,
    Column("run_id", BigInteger, primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("event", Text),
    Column("mst_key", Integer),
    Column("epoch", Integer),
    Column("loss", Float),
    Column("at", DateTime(timezone=True)),
)

change = Table(
    "change",
    metadata,
    Column("change_id", BigInteger, primary_key=True, autoincrement=True),
    Column("run_id", BigInteger, primary_key=True),
    Column("source", Text),
    Column("change", Text),
    Column("work", JSONB),
    Column("event", Integer),
    Column("number", Integer),
    Column("command", Text),
    Column("arguments", JSONB),
    Column("issued_by", Role),
    Column("issued_at", DateTime(timezone=True)),
    Column("state", Text),
    Column("detail", Text),
    Column("ordinal", Integer),
    Column("mst_keys", ARRAY(Integer)),
    Column("visits", JSONB),
    Column("settled_at", DateTime(timezone=True)),
)

reserved_table = Table(
    "reserved_table",
    metadata,
    Column("table_schema", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("pid", Integer),
    Column("session_start", DateTime(timezone=True)),
    Column("virtualxid", Text),
    Column("txid", BigInteger),
)

#: Interval columns are written from text and compared in SQL only.
job_record = Table(
    "job_record",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("series_id", BigInteger),
    Column("name", Text),
    Column("function", Text),
    Column("statement_id", BigInteger),
    Column("owner", Role),
    Column("submitted_by", Role),
    Column("as_superuser", Boolean),
    Column("priority", Integer),
    Column("submitted_at", DateTime(timezone=True)),
    Column("due_at", DateTime(timezone=True)),
    Column("every", Text),
    Column("series_start", DateTime(timezone=True)),
    Column("after", BigInteger),
    Column("if_running", Text),
    Column("time_limit", Interval),
    Column("state", Text),
    Column("detail", Text),
    Column("attempt", Integer),
    Column("run_id", BigInteger),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("cancelled_by", Text),
    Column("worker_pid", Integer),
    Column("worker_start", DateTime(timezone=True)),
    Column("session_pid", Integer),
    Column("login_role", Text),
)

job_statement = Table(
    "job_statement",
    metadata,
    Column("statement_id", BigInteger, primary_key=True),
    Column("owner", Role),
    Column("statement", Text),
    Column("arguments", JSONB),
    Column("settings", JSONB),
)

job_done = Table(
    "job_done",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("attempt", Integer),
)

job_worker = Table(
    "job_worker",
    metadata,
    Column("pid", Integer, primary_key=True),
    Column("session_start", DateTime(timezone=True), primary_key=True),
    Column("slots", Integer),
    Column("started_at", DateTime(timezone=True)),
)

#: Tables with the rows of a run, except its states.
OF_RUN = (
    segment, model, start_weights, custom_function, caller_setting, run_policy, preprocessor, visit, metric,
    visit_metric, evaluation, search_event, change,
)  # fmt: skip
