"""Helpers of the tests of security: errors as the client gets them, users of the extension, invented records."""

import json
import os
from dataclasses import replace
from pathlib import Path

import psycopg2
from psycopg2 import sql

from madlib_mop.catalog.rows.plan import OutputName
from tests.helpers.sessions import Refusal
from tests.helpers.unit.rows import a_plan, packed

EXPECTED = Path(__file__).resolve().parents[2] / "security" / "expected"
UPDATE = "MOP_UPDATE_EXPECTED"
# The smallest network for the digits.
SOFTMAX = """{"class_name": "Sequential", "config": {"name": "softmax", "layers": [
    {"class_name": "InputLayer", "config": {"batch_shape": [null, 8, 8, 1], "name": "in"}},
    {"class_name": "Flatten", "config": {"name": "flat"}},
    {"class_name": "Dense", "config": {"name": "out", "units": 10, "activation": "softmax"}}]}}"""


def refusal(connection, statement, parameters=None, internal: bool = False) -> Refusal:
    """Run a statement that must be rejected; return the error. Only internal functions may show a Python error."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(statement, parameters)
        except psycopg2.Error as error:
            assert internal or "Traceback" not in str(error) and 'File "' not in str(error), str(error)
            return Refusal(error.pgcode, error.diag.message_primary, error.diag.message_hint)
    raise AssertionError(f"not refused: {statement} {parameters}")


def refusal_of(db, statement, parameters=None, role: str | None = None) -> Refusal:
    """Run a statement that must be rejected, in the role's kept session (`SqlSessions.caller`); return the error."""
    return refusal(db.caller(role), statement, parameters)


def user(db, role: str) -> str:
    """Create a role that may use the extension, with a schema of the same name; return its name."""
    db.cluster.create_role(role)
    with db.caller().cursor() as cursor:
        cursor.execute("SELECT madlib_mop.grant_use(%s)", [role])
        cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {0} AUTHORIZATION {0}").format(sql.Identifier(role)))
    return role


def insert(db, table: str, **values) -> None:
    """Write one row of the record by hand, as a superuser."""
    names, slots = ", ".join(f'"{name}"' for name in values), ", ".join(["%s"] * len(values))
    db.rows(
        f"INSERT INTO madlib_mop.{table} ({names}) VALUES ({slots})",
        [json.dumps(value) if isinstance(value, dict) else value for value in values.values()],
    )


def record_run(db, run_id: int, owner: str, state: str = "interrupted", **columns) -> int:
    """Write a whole run of one model, one segment and one visit by hand; return its run_id."""
    names = ("source_table", "model_output_table", "model_selection_table", "model_arch_table")
    plan = recorded_plan("public", f"out_{run_id}", "public.t")
    row = {
        "run_id": run_id, "kind": "fit_multiple_model", "state": state, "owner": owner, "num_iterations": 1, "seed": 1,
        "schedule": "rotation", "n_models": 1, "n_segments": 1, "plan": plan, **dict.fromkeys(names, "public.t"),
    }  # fmt: skip
    insert(db, "run", **row | columns)
    key = {"run_id": run_id, "mst_key": 1}
    slot = run_id * 1000
    insert(
        db, "model", **key, ordinal=0, model_id=1, compile_params="c", fit_params="f", model_arch={}, last_epoch=1,
        state_slot=slot, model_bytes=8, digest="d", state="training",
    )  # fmt: skip
    insert(db, "segment", run_id=run_id, data_set="training", segment_id=0)
    insert(db, "start_weights", run_id=run_id, origin="model_id 1", weights=b"weights")
    insert(db, "custom_function", run_id=run_id, name="f", object=b"def f(a, b): return a")
    insert(db, "caller_setting", run_id=run_id, name="app.tenant", value="7")
    insert(db, "run_policy", run_id=run_id, policy="SELECT 1 AS mst_key, NULL AS action")
    insert(db, "preprocessor", run_id=run_id, digest="d", document="levels of the training rows")
    insert(
        db, "visit", **key, epoch=1, position=1, segment_id=0, started_at="now", ended_at="now", n_rows=1,
        state_bytes=1, digest_in="a", digest_out="d", attempt=1,
    )  # fmt: skip
    insert(db, "metric", **key, epoch=1, data_set="training", ordinal=0, name="loss", value=0.5, elapsed_s=1.0)
    insert(
        db, "visit_metric", **key, visits=1, epoch=1, position=1, data_set="training", n_rows=1, ordinal=0, name="loss",
        value=0.5,
    )  # fmt: skip
    insert(
        db, "evaluation", **key, epoch=1, data_set="training", shard=0, segment_id=0, started_at="now", ended_at="now",
        n_rows=1,
    )  # fmt: skip
    insert(db, "search_event", run_id=run_id, ordinal=0, event="start")
    insert(
        db, "change", run_id=run_id, change="pause", command="pause", source="person", issued_by=owner, state="obeyed",
    )  # fmt: skip
    db.rows(
        f"CREATE TABLE madlib_mop.model_state_{run_id}_0 PARTITION OF madlib_mop.model_state FOR VALUES IN ({slot})"
    )
    insert(db, "model_state", **key, slot=slot, version=0, part=0, data=b"state")
    return run_id


def recorded_plan(schema: str, output: str, packed_table: str) -> dict:
    """Return the plan of a run without segments, with its output and its packed table by their SQL names."""
    return replace(a_plan(), output=OutputName(schema, output, False), training=packed((), packed_table)).as_json()


def fingerprint(db, run_id: int) -> str:
    """Return a digest of everything in the record of a run."""
    tables = ("run", "segment", "model", "start_weights", "custom_function", "caller_setting", "run_policy",
              "preprocessor", "model_state", "visit", "metric", "visit_metric", "evaluation", "search_event",
              "change")  # fmt: skip
    rows = [db.rows(f"SELECT t::text FROM madlib_mop.{t} t WHERE run_id = %s ORDER BY 1", [run_id]) for t in tables]
    return repr(rows)


def hold(name: str, text: str) -> None:
    """Compare a text with the expected file of that name, or write the file if the environment requests it."""
    file = EXPECTED / name
    if os.environ.get(UPDATE):
        file.write_text(text)
    assert text == file.read_text(), f"if this is what you want: {UPDATE}=1 make test ARGS=tests/security"
