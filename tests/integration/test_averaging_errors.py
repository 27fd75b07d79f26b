"""Promise 8 for madlib_keras_fit: one clear error before any work; and warm starts without weights in a table."""

from contextlib import closing

import pytest

from madlib_mop.driver.planning.plan import add_run, plan_fit, plan_fit_multiple
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import MopError, NotReady
from tests.helpers.bad_averages import CASES, GOOD
from tests.helpers.bad_inputs import COMPILE, write_tables
from tests.helpers.direct import record_on
from tests.helpers.direct_session import DirectSession
from tests.helpers.faults import assert_nothing_left
from tests.helpers.security.attacks import refusal_of

pytestmark = pytest.mark.one_session

FIT = "madlib_keras_fit"
OVER_1_GB = 1_500_000_000
NAMES = {plan_fit: FIT, plan_fit_multiple: "madlib_keras_fit_multiple_model"}


@pytest.fixture(scope="module")
def bench(db):
    write_tables(db)
    db.rows("INSERT INTO arch SELECT 2, model_arch, NULL FROM arch WHERE model_id = 1 LIMIT 1")
    db.rows("CREATE TABLE multi (mst_key integer, model_weights bytea, model_arch json)")
    db.rows("CREATE TABLE lone (model_weights bytea, model_arch json, more text)")
    db.rows("INSERT INTO lone VALUES ('', '{}', ''); CREATE TABLE lone_summary (a integer)")
    return db


@pytest.fixture
def planner(bench):
    """Return a function that plans a run in this process, which is faster than a driver process."""
    connection, catalog = bench.connect(autocommit=False), bench.connect()
    record = record_on(catalog)
    session = DirectSession(connection)

    def plan(planned=plan_fit, good=GOOD, **arguments):
        return planned(Call.read(NAMES[planned], good | arguments, session), record), session.notices

    yield plan
    connection.close()
    catalog.close()


@pytest.mark.one_case
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_argument_is_named(planner, case):
    with pytest.raises(MopError) as caught:
        planner(**case.arguments)
    error = caught.value
    assert error.sqlstate == case.sqlstate and error.message.startswith(case.message), (error.sqlstate, error.message)
    assert "\n" not in error.message and len(error.message) < 600
    assert case.hint in (error.hint or ""), error.hint


def call(**arguments) -> tuple[str, list]:
    """Return a call of fit that is valid except for these arguments."""
    arguments = GOOD | arguments
    slots = ", ".join(f"{name} := %s" for name in arguments)
    return f"SELECT madlib.{FIT}({slots})", list(arguments.values())


def test_an_error_reaches_who_calls_by_sql_under_the_functions_name(bench):
    error = refusal_of(bench, *call(num_iterations=0))
    assert error.message == f"{FIT}: num_iterations must be at least 1. Received: 0" and error.sqlstate == "22023"
    assert bench.value("SELECT count(*) FROM madlib_mop.run WHERE kind = 'fit'") == 0


def test_a_model_that_cannot_be_trained_fails_the_call_with_its_reason(bench):
    """No other model remains, so the run ends."""
    error = refusal_of(bench, *call(compile_params=COMPILE.replace("Adam(lr=0.01)", "SGD(lr=3e38)")))
    assert error.message.startswith(f"{FIT}: ") and "while training" in error.message, error
    assert "(epoch 1, position 1, segment 0)" in error.message and error.sqlstate == "38000" and error.hint
    (row,) = bench.rows(
        "SELECT r.state, m.state, m.state_detail, run_id FROM madlib_mop.run r JOIN madlib_mop.model m USING (run_id)"
        " WHERE kind = 'fit'"
    )
    assert row[:2] == ("failed", "failed") and "while training" in row[2]
    again = refusal_of(bench, "SELECT madlib_mop.resume(%s)", [row[3]])
    assert again.message.startswith(f"resume: run {row[3]}: its only model failed") and row[2] in again.message
    assert bench.value("SELECT to_regclass('never')") is None
    assert_nothing_left(bench)


@pytest.fixture
def too_large(bench):
    """Two output tables as runs leave them whose weights are above 1 GB: NULL there, in the record only."""
    record = record_on(bench.connect())
    bench.rows("DROP TABLE IF EXISTS huge, huge_summary, huge_many, huge_many_info, huge_many_summary")
    bench.rows(
        "CREATE TABLE huge AS SELECT NULL::bytea AS model_weights, model_arch::json FROM arch WHERE model_id = 1;"
        " CREATE TABLE huge_many AS SELECT 1 AS mst_key, NULL::bytea AS model_weights, model_arch::json, 0 AS"
        " __dist_key__ FROM arch WHERE model_id = 1; CREATE TABLE huge_many_info (a int)"
    )
    session = DirectSession(bench.connect(autocommit=False))
    runs = {}
    for planned, good, table in ((plan_fit, GOOD, "huge"), (plan_fit_multiple, MANY, "huge_many")):
        argument = "model" if planned is plan_fit else "model_output_table"
        run_id = add_run(record, planned(Call.read(NAMES[planned], good | {argument: f"{table}_new"}, session), record))
        record.set_run(run_id, state="finished", model_output_table=f"public.{table}")
        record.set_model(
            run_id, 1, state="trained", epoch=2, position=1, state_slot=7, state_bytes=1, model_bytes=OVER_1_GB,
            digest="a", weights_digest="b",
        )  # fmt: skip
        runs[table] = run_id
    session.connection.close()
    yield runs
    record.raw.close()


MANY = {
    "source_table": "train", "model_output_table": "never", "model_selection_table": "mst", "num_iterations": 2,
}  # fmt: skip


@pytest.fixture
def loose(monkeypatch):
    """Accept output tables made by hand as those of a run."""
    monkeypatch.setattr("madlib_mop.driver.planning.plan.check_replaceable", lambda *_: None)


def test_weights_above_1_gb_go_on_from_the_recorded_state(too_large, planner, loose):
    one, _ = planner(model="huge", warm_start=True)
    many, _ = planner(plan_fit_multiple, MANY, model_output_table="huge_many", warm_start=True)
    for plan, table in ((one, "huge"), (many, "huge_many")):
        assert plan.warm.run_id == too_large[table]
        assert plan.warm.models[1].next_epoch == 3 and plan.warm.models[1].state.digest == "a"
        assert plan.models[0].first_epoch == 3 and not plan.weights


def test_weights_above_1_gb_that_cannot_go_on_are_told_so(bench, too_large, planner, loose):
    other = "optimizer='sgd', loss='categorical_crossentropy'"
    bench.rows("UPDATE mst SET compile_params = %s", [other])
    bench.rows("DELETE FROM madlib_mop.run WHERE model_output_table = 'public.huge'")
    with pytest.raises(NotReady, match="model: public.huge has no weights .* none of your recorded runs has its state"):
        planner(model="huge", warm_start=True)
    message = "model_output_table: mst_key 1 of public.huge_many has no weights .* different compile parameters"
    with pytest.raises(NotReady, match=message):
        planner(plan_fit_multiple, MANY, model_output_table="huge_many", warm_start=True)


def test_a_warm_start_says_that_a_custom_function_has_changed(bench, planner, loose):
    """The functions of the earlier run are used, as for many models."""
    source = "def near(y_true, y_pred): return {}"
    bench.rows("SELECT madlib.load_custom_function('averaged', %s, 'near')", [source.format("y_pred").encode()])
    good = GOOD | {"compile_params": "optimizer='sgd', loss='near'", "object_table": "averaged"}
    plan, _ = planner(good=good, model="near_first")
    with closing(bench.connect()) as catalog:
        record = record_on(catalog)
        record.set_run(add_run(record, plan), state="finished", model_output_table="public.near_out")
    bench.rows("CREATE TABLE near_out AS SELECT ''::bytea AS model_weights, model_arch::json FROM arch LIMIT 1")
    before, said = planner(good=good, model="near_out", warm_start=True)
    assert before.functions == plan.functions and not any("custom function" in line for line in said)
    bench.rows("UPDATE madlib.averaged SET object = %s", [source.format("y_true").encode()])
    after, said = planner(good=good, model="near_out", warm_start=True)
    assert after.functions == plan.functions
    changed = "custom function near: the earlier run's version is used; madlib.averaged has changed since"
    assert f"warm start: {changed}" in said
