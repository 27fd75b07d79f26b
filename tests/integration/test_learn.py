"""`learn`: from a table to a registered model in one statement, which it repeats, and whose quality it measures."""

import re
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass

import psycopg2
import psycopg2.errors
import pytest

from tests.helpers.faults import BackgroundFit, newest_run, visits, wait_for
from tests.helpers.pages_of_runs import Page
from tests.helpers.security.attacks import user

pytestmark = pytest.mark.one_session

ROWS = """
CREATE TABLE customers AS
SELECT i AS id, CASE WHEN i % 9 > 0 THEN 20 + i * 7 % 50 END AS age, (ARRAY['gold', 'silver', NULL])[1 + i % 3] AS tier,
       date '2020-01-01' + i * 17 % 1000 AS joined, (i * 37 % 500)::float8 AS income,
       CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS churned
FROM generate_series(1, 400) AS i
"""
ANA, BEA = "ana", "bea"
SUFFIXES = ("_packed", "_packed_validation", "_packed_test", "_networks", "_models", "_models_info", "_best")


@pytest.fixture(scope="module")
def shop(db):
    """Return a database in which an ordinary role owns a table, which its calls pack for one segment."""
    user(db, ANA)
    connection = db.connect(ANA)
    with connection.cursor() as cursor:
        cursor.execute(f"SET madlib_mop.segments = 1; {ROWS}")
    yield db, connection
    connection.close()


def rows(connection, statement: str, params: tuple = ()) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params or None)
        return cursor.fetchall()


def learn(connection, arguments: str) -> dict[str, tuple]:
    found = rows(connection, f"SELECT item, value, baseline, note FROM madlib_mop.learn({arguments})")
    return {item: rest for item, *rest in found}


def left(db) -> tuple[int, int]:
    """Return the login roles and the sessions of calls that are still there."""
    roles = db.value("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'madlib_mop_run_%'")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'madlib_mop learn'"
    return roles, db.value(sessions)


@pytest.fixture(scope="module")
def learned(shop):
    return learn(shop[1], "'customers', 'churned', budget => '1 hour', n_configs => 2, seed => 3")


def test_the_model_is_registered_and_its_quality_is_that_of_rows_held_out(shop, learned):
    _, connection = shop
    version, _, example = learned["model"]
    assert version == "customers_churned@1"
    ((predicted,),) = rows(connection, example.rstrip(";").replace("FROM", "AS p FROM", 1) + " LIMIT 1")
    assert predicted in ("yes", "no")
    value, baseline, note = learned["accuracy"]
    ((n_test,),) = rows(connection, "SELECT sum(churned_shape[1]) FROM customers_churned_packed_test")
    assert f"{n_test} held-out rows" in note and 60 <= n_test <= 100
    assert float(value) > float(baseline)
    rows(
        connection,
        "SELECT madlib.madlib_keras_evaluate('customers_churned@1', 'customers_churned_packed_test', 'measured')",
    )
    ((loss, accuracy),) = rows(connection, "SELECT loss, metric FROM measured")
    assert (f"{loss:.3g}", f"{accuracy:.4g}") == (f"{float(learned['log loss'][0]):.3g}", value)
    assert {"AUC", "balanced accuracy", "run", "seconds"} <= learned.keys()
    assert list(learned).index("accuracy") < list(learned).index("balanced accuracy") and "threshold" not in learned


def test_the_held_out_rows_make_prediction_sets_possible(shop, learned):
    _, connection = shop
    size, _, note = learned["prediction set"]
    assert "madlib_mop.predict_set('customers_churned', t.*, 0.9)" in note and 0.8 < float(size) <= 2
    found = rows(connection, "SELECT madlib_mop.predict_set('customers_churned', c, 0.9) FROM customers AS c LIMIT 5")
    assert all(set(classes) <= {"yes", "no"} for (classes,) in found)


def test_the_linear_model_is_measured_beside_the_registered_one(shop, learned):
    _, connection = shop
    ((name, description),) = rows(
        connection,
        "SELECT name, description FROM customers_churned_networks JOIN customers_churned_models_info USING (model_id)"
        " WHERE mst_key = 1",
    )
    assert name == "linear" and "no hidden layer" in description
    rows(
        connection,
        "SELECT madlib.madlib_keras_evaluate('customers_churned_models', 'customers_churned_packed_test',"
        " 'measured_linear', mst_key => 1)",
    )
    ((loss, accuracy),) = rows(connection, "SELECT loss, metric FROM measured_linear")
    value, baseline, _ = learned["linear model: accuracy"]
    assert (f"{accuracy:.4g}", learned["accuracy"][1]) == (value, baseline)
    assert f"{loss:.3g}" == f"{float(learned['linear model: log loss'][0]):.3g}"


def test_gradient_boosting_is_measured_on_the_same_rows(shop, learned):
    _, connection = shop
    _, _, note = learned["gradient boosting"]
    assert "to compare with, not to predict with; scikit-learn " in note
    again = re.search(r"SELECT \* FROM madlib_mop.gradient_boosting\(.+\);", note)[0]
    found = rows(connection, again.replace("*", "metric, value, n_rows, data_set"))
    ((n_test,),) = rows(connection, "SELECT sum(churned_shape[1]) FROM customers_churned_packed_test")
    tested = [row for row in found if row[3] == "test"]
    for metric, figure, n_rows, _ in tested:
        value, baseline, note = learned[f"gradient boosting: {metric}"]
        assert (value, baseline) == (f"{figure:.4g}", learned[metric][1])
        assert (n_rows, note) == (n_test, f"of {n_test} held-out rows")
    measured = {"accuracy", "balanced accuracy", "log loss", "AUC"}
    assert {metric for metric, *_ in found} == measured == {metric for metric, *_ in tested}
    validated = {metric: figure for metric, figure, _, data_set in found if data_set == "validation"}
    board = "SELECT metric_name, validation_metric, validation_loss FROM madlib_mop.leaderboard WHERE run_id = %s"
    run_id = int(learned["run"][0])
    (row,) = rows(connection, f"{board} AND mst_key IS NULL", (run_id,))
    assert row == ("accuracy", validated["accuracy"], validated["log loss"])


def test_the_leaderboard_of_its_run_has_the_baselines_marked_as_such(shop, learned):
    db, connection = shop
    run_id = int(learned["run"][0])
    board = rows(
        connection,
        "SELECT rank, mst_key, state, baseline, metric_name, state_detail FROM madlib_mop.leaderboard"
        " WHERE run_id = %s ORDER BY rank",
        (run_id,),
    )
    *models, (rank, key, state, baseline, metric, what) = board
    assert (rank, key, state, baseline, metric) == (None, None, "baseline", "gradient boosting", "accuracy")
    assert what.startswith("to compare with, not to predict with; scikit-learn ")
    assert {mst_key: mark for _, mst_key, _, mark, *_ in models} == {
        mst_key: "linear model" if mst_key == 1 else None for _, mst_key, *_ in models
    }
    assert [row[0] for row in models] == list(range(1, len(models) + 1))
    ((document,),) = rows(connection, "SELECT madlib_mop.report(%s)", (run_id,))
    text = Page(document).text
    assert "gradient boosting, a baseline" in text and "to compare with, not to predict with" in text
    best = next(row[1] for row in models if row[2] == "trained")
    rows(connection, "BEGIN; SELECT madlib_mop.register('best_of_run', 'customers_churned_models')")
    found = rows(connection, "SELECT mst_key FROM madlib_mop.registry WHERE name = 'best_of_run'")
    rows(connection, "ROLLBACK; SELECT 1")
    assert found == [(best,)], "a baseline that cannot predict is not the best model"


def test_the_registered_model_is_the_simpler_one_unless_another_is_clearly_better(shop, learned):
    _, connection = shop
    value, _, note = learned["registered"]
    (step,) = [rest[2] for item, rest in learned.items() if "madlib_mop.register(" in (rest[2] or "")]
    is_linear, alone = value == "linear model", re.fullmatch(r"model with mst_key (\d+) alone", value)
    table, key = re.search(r"model_table => '(\w+)'(?:, mst_key => (\d+))?", step).groups()
    if is_linear or alone:
        assert (table, key) == ("customers_churned_models", "1" if is_linear else alone[1])
    else:
        assert re.fullmatch(r"average of [2-9]\d* models", value)
        assert (table, key) == ("customers_churned_ensemble", None)
    linear, other = map(float, re.search(r"linear model (\S+), average (\S+) \(", note).groups())
    assert is_linear == (other >= linear or "less than one standard error" in note)
    ((loss,),) = rows(connection, "SELECT validation_loss_final FROM customers_churned_models_info WHERE mst_key = 1")
    assert linear == pytest.approx(loss, rel=0.01)


def test_the_report_of_its_run_shows_the_held_out_rows_and_the_columns(shop, learned):
    _, connection = shop
    ((document,),) = rows(connection, "SELECT madlib_mop.report(%s)", (int(learned["run"][0]),))
    page = Page(document)
    ((n_rows,),) = rows(connection, "SELECT sum(churned_shape[1]) FROM customers_churned_packed_test")
    assert sum(cell["n"] for cell in page.data("confusion")["cells"]) == n_rows
    assert {bar["p"] for bar in page.data("column-importance")["bars"]} == {"age", "tier", "joined"}
    assert page.data("dependence-1")["values"] and "SQL that registers the best model" not in page.code


def test_all_that_it_made_is_ordinary_and_belongs_to_the_caller(shop, learned):
    db, _ = shop
    owner = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = %s"
    assert {db.value(owner, [f"customers_churned{suffix}"]) for suffix in SUFFIXES} == {ANA}
    run = db.rows("SELECT state, owner::text FROM madlib_mop.run WHERE run_id = %s", [int(learned["run"][0])])
    assert run == [("finished", ANA)]
    assert left(db) == (0, 0)


def test_its_steps_repeat_it(shop, learned):
    """Each is a statement that a person can run; with other names, and fewer iterations, they make another version."""
    _, connection = shop
    steps = [note for item, (_, _, note) in learned.items() if item.startswith("step ")]
    functions = [re.match(r"SELECT (\w+\.\w+)\(", step)[1] for step in steps]
    assert functions == [
        "madlib_mop.pack_columns", "madlib_mop.propose_networks", "madlib.madlib_keras_automl",
        "madlib_mop.make_ensemble", "madlib_mop.register", "madlib_mop.deploy",
    ]  # fmt: skip
    search = functions.index("madlib.madlib_keras_automl")
    assert "R=24, eta=2, r=24," in steps[search]
    steps[search] = steps[search].replace("R=24, eta=2, r=24,", "R=2, eta=2, r=2,")
    for step in steps:
        rows(connection, step.replace("customers_churned", "again"))
    digest = "SELECT preprocessor_digest FROM {}_packed_summary"
    assert rows(connection, digest.format("again")) == rows(connection, digest.format("customers_churned"))
    for name in ("again@newest", "again"):
        assert rows(connection, f"SELECT madlib_mop.predict_version('{name}')") == [(1,)]


@pytest.mark.slow
def test_its_tables_can_be_in_a_schema_of_their_own(shop):
    """The caller's schema then shows the caller's tables only; the name of the schema has to be quoted."""
    db, connection = shop
    in_schema = (
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = to_regnamespace(%s) ORDER BY 1"
    )
    apart = """ "It's apart" """.strip()
    db.rows(f"CREATE SCHEMA {apart} AUTHORIZATION {ANA}")
    before = db.rows(in_schema, [ANA])
    text = apart.replace("'", "''")
    arguments = f"'customers', 'churned', 'apart', budget => '1 hour', n_configs => 2, seed => 3, schema => '{text}'"
    found = learn(connection, arguments)
    assert found["model"][0] == "apart@1" and "linear model" in found
    assert db.rows(in_schema, [ANA]) == before
    assert {f"apart{suffix}" for suffix in SUFFIXES} <= {name for (name,) in db.rows(in_schema, [apart])}
    ((models,),) = rows(connection, f"SELECT count(*) FROM {apart}.apart_models")
    assert found["run"][2].startswith(f"{models} models were trained")
    rows(connection, found["run"][2].partition("; ")[2])
    rows(connection, "SELECT madlib_mop.predict_class('apart', c) FROM customers AS c LIMIT 1")
    row = "(SELECT c FROM customers c WHERE id = 7)"
    assert rows(connection, f"SELECT feature FROM madlib_mop.explain_prediction('apart', {row})"), "by the packed table"
    assert learn(connection, f"{arguments}, replace => true, ensemble => false")["model"][0] == "apart@2"
    assert db.rows(in_schema, [ANA]) == before


def test_its_tables_are_not_made_in_the_schema_of_another_role(shop):
    """Its owner could put a view in the place of a table between two steps, and run code with the caller's rights."""
    db, connection = shop
    db.rows(f"CREATE ROLE cleo; CREATE SCHEMA trap AUTHORIZATION cleo; GRANT USAGE, CREATE ON SCHEMA trap TO {ANA}")
    arguments = f"'{ANA}.customers', 'churned', 'trapped', budget => '10 s', n_configs => 1"
    with closing(db.connect(ANA)) as of_the_path:
        rows(of_the_path, "SELECT set_config('search_path', 'trap', false)")
        for session, schema in ((connection, ", schema => 'trap'"), (of_the_path, "")):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="schema: schema trap belongs to cleo"):
                learn(session, arguments + schema)
    assert db.value("SELECT count(*) FROM pg_class WHERE relnamespace = 'trap'::regnamespace") == 0


def test_its_predictions_are_explained_by_the_rows_that_it_was_trained_on(shop, learned):
    """Also where the search_path does not find the tables."""
    _, connection = shop
    rows(connection, "SELECT set_config('search_path', 'pg_catalog', false)")
    try:
        found = rows(
            connection,
            "SELECT feature, contribution, base, prediction FROM madlib_mop.explain_prediction("
            "'customers_churned', (SELECT c FROM ana.customers c WHERE id = 7))",
        )
    finally:
        rows(connection, "SELECT set_config('search_path', '\"$user\", public', false)")
    assert {feature for feature, *_ in found} == {"age", "tier", "joined"}
    assert sum(row[1] for row in found) == pytest.approx(found[0][3] - found[0][2], abs=1e-6)


@pytest.mark.slow
def test_a_number_is_measured_in_the_units_of_the_table(shop):
    _, connection = shop
    found = learn(
        connection, "'customers', 'income', 'income', budget => '1 hour', n_configs => 1, ensemble => false, seed => 1"
    )
    assert {"R2", "RMSE", "MAE"} <= found.keys() and "predict_number" in found["model"][2]
    assert 100 < float(found["RMSE"][1]) < 200, "the deviation of numbers from 0 to 499"
    assert not any("scaled" in item for item in found), "the summary is in the units of the table"
    again = re.search(r"FROM (madlib_mop\.gradient_boosting\(.+\));", found["gradient boosting"][2])[1]
    scaled = dict(rows(connection, f"SELECT metric, value FROM {again} WHERE data_set = 'validation'"))
    board = "SELECT metric_name, validation_metric, validation_loss FROM madlib_mop.leaderboard WHERE run_id = %s"
    run_id = int(found["run"][0])
    (row,) = rows(connection, f"{board} AND mst_key IS NULL", (run_id,))
    assert row == ("mae", scaled["scaled MAE"], scaled["scaled MSE"])
    assert {name for name, *_ in rows(connection, board, (run_id,))} == {"mae"}


def test_unbalanced_classes_are_said_and_measured_by_the_rarest(shop):
    """2 % of the rows are positive: accuracy is the last measure, and the threshold is that of choose_threshold."""
    _, connection = shop
    rows(
        connection,
        "CREATE TABLE faults AS SELECT i AS id, i * 7 % 101 AS heat, (i * 37 % 503)::float8 AS load,"
        " CASE WHEN i * 7 % 101 > 93 AND i * 37 % 503 > 330 THEN 'fault' ELSE 'fine' END AS state"
        " FROM generate_series(1, 1000) AS i; SELECT 1",
    )
    connection.notices = deque()  # without a limit
    more = "budget => '1 hour', n_configs => 1, ensemble => false, exclude => '{id}', seed => 3"
    found = learn(connection, f"'faults', 'state', {more}")
    ((share,),) = rows(connection, "SELECT avg((state = 'fault')::int)::float8 FROM faults")
    assert 0.01 < share < 0.04
    assert any("propose_networks: state has unbalanced classes: 'fault' has" in text for text in connection.notices)
    assert found["check 1"][2].startswith("state has unbalanced classes: 'fault' has")
    items = [item for item in found if not item.startswith(("linear model", "gradient boosting", "step", "check"))]
    (notice,) = [text for text in connection.notices if "learn: to compare with" in text]
    assert "gradient boosting: average precision of the rarest class" in notice and "held-out rows" in notice
    assert items[:9] == [
        "model", "registered", "average precision of the rarest class", "recall of the rarest class",
        "precision of the rarest class", "balanced accuracy", "log loss", "AUC", "accuracy",
    ]  # fmt: skip
    average, baseline, _ = found["average precision of the rarest class"]
    assert float(average) > 3 * float(baseline) and float(baseline) == pytest.approx(share, abs=0.01)
    value, _, note = found["threshold"]
    statement = re.search(r"SELECT .*?;", note)[0]
    assert "'faults_state_packed_validation', 'fault'" in statement
    ((threshold,),) = rows(connection, statement.replace("*", "threshold").rstrip(";"))
    assert float(value) == pytest.approx(threshold, rel=1e-5)
    metrics = "SELECT metric, value FROM madlib_mop.metrics('faults_state', 'faults_state_packed_test')"
    measured = rows(connection, metrics)
    assert [name for name, _ in measured] == items[2:9]
    assert [f"{number:.4g}" for _, number in measured] == [found[name][0] for name, _ in measured]


@pytest.mark.slow
def test_a_column_that_gives_the_target_away_is_named_in_the_summary(shop, learned):
    _, connection = shop
    assert not [item for item in learned if item.startswith("check")]
    rows(connection, "CREATE VIEW late AS SELECT *, nullif(churned, 'no') AS answer FROM customers; SELECT 1")
    found = learn(connection, "'late', 'churned', budget => '1 hour', n_configs => 1, ensemble => false, seed => 3")
    assert [item for item in found if item.startswith("check")] == ["check 1"]
    assert "answer (alone, it predicts churned with an AUC of 1.00" in found["check 1"][2]


@pytest.mark.slow
def test_replace_makes_the_next_version(shop, learned):
    _, connection = shop
    arguments = "'customers', 'churned', budget => '1 hour', n_configs => 1, ensemble => false, seed => 3"
    with pytest.raises(psycopg2.errors.DuplicateTable):
        learn(connection, arguments)
    found = learn(connection, f"{arguments}, replace => true")
    assert found["model"][0] == "customers_churned@2"
    assert rows(connection, "SELECT madlib_mop.predict_version('customers_churned@newest')") == [(2,)]


def test_a_name_of_another_role_is_refused_before_any_work(shop, learned):
    db, _ = shop
    connection = db.connect(user(db, BEA))
    try:
        rows(connection, f"{ROWS}; SELECT 1")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="a registered model of another role"):
            learn(connection, "'customers', 'churned', 'Customers_Churned', budget => '1 hour', n_configs => 1")
    finally:
        connection.close()
    assert db.rows("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", [BEA]) == [("customers",)]
    assert left(db) == (0, 0)


def test_a_name_that_tables_have_says_how_to_replace_them(shop, learned):
    with pytest.raises(psycopg2.errors.DuplicateTable) as raised:
        learn(shop[1], "'customers', 'churned', budget => '1 hour'")
    assert "replace => true" in raised.value.diag.message_hint


@pytest.mark.slow
def test_packing_ends_with_the_budget(shop):
    """The view of another role makes the rows wait."""
    db, connection = shop
    db.rows("CREATE VIEW waiting AS SELECT *, pg_sleep(0.2) IS NULL AS waited FROM ana.customers")
    db.rows("GRANT SELECT ON waiting TO PUBLIC")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="was over in pack_columns") as raised:
        learn(connection, "'public.waiting', 'churned', budget => '10 s', n_configs => 1")
    assert "larger budget" in raised.value.diag.message_hint
    wait_for(lambda: left(db) == (0, 0))
    assert db.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'waiting_%'") == 0


@pytest.mark.slow
def test_a_lock_of_another_session_ends_the_wait(shop, learned):
    db, connection = shop
    arguments = "'customers', 'churned', budget => '10 s', n_configs => 1, ensemble => false, replace => true"
    other = db.connect(autocommit=False)
    try:
        rows(other, "LOCK TABLE ana.customers_churned_networks IN ACCESS EXCLUSIVE MODE; SELECT 1")
        with pytest.raises(psycopg2.errors.LockNotAvailable) as raised:
            learn(connection, arguments)
    finally:
        other.close()
    assert "1 of its steps are committed" in raised.value.diag.message_detail
    wait_for(lambda: left(db) == (0, 0))
    assert learn(connection, arguments)["model"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("'customers', 'nothing'", "nothing"),
        ("'customers', 'churned', 'x', schema => 'nowhere'", "there is no schema 'nowhere'"),
        ("'customers', 'churned', 'x', schema => 'ana.x'", "schema must be the name of a schema"),
        ("'customers', 'churned', 'x', schema => 'pg_temp'", "schema must be the name of a schema, and not pg_temp"),
        ("'customers', 'churned', 'x', schema => 'madlib_mop'", "may not create tables in schema madlib_mop"),
        ("'nowhere', 'churned'", "source_table does not exist"),
        ("'customers', NULL", "dependent"),
        ("'customers', 'churned', 'a@1'", "name must have 1 to 63 letters"),
        ("'customers', 'churned', 'x', budget => '1 s'", "budget must be from 10 seconds"),
        ("'customers', 'churned', 'x', split => 'by age'", "split must be 'by time COLUMN' or 'by group COLUMN'"),
        ("'customers', 'churned', 'x', validation => 0.6, test => 0.5", "leave no rows for training"),
        ("'customers', 'churned', 'x', n_configs => 0", "n_configs"),
    ],
)
def test_bad_input_is_one_error_before_any_work(shop, arguments, message):
    db, connection = shop
    before = db.value("SELECT count(*) FROM pg_class")
    with pytest.raises(psycopg2.Error, match=re.escape(message)) as raised:
        learn(connection, arguments)
    assert "Traceback" not in str(raised.value) and "internal error" not in str(raised.value)
    assert db.value("SELECT count(*) FROM pg_class") == before and left(db) == (0, 0)


def test_a_table_that_other_sessions_cannot_read_is_refused(shop):
    db, _ = shop
    connection = db.connect(ANA, autocommit=False)
    try:
        for kind in ("", "TEMP "):
            rows(connection, f"CREATE {kind}TABLE own AS SELECT * FROM customers; SELECT 1")
            with pytest.raises(psycopg2.errors.InvalidParameterValue, match="seen by this session only"):
                learn(connection, "'own', 'churned'")
            connection.rollback()
        rows(connection, "LOCK TABLE customers IN ACCESS EXCLUSIVE MODE; SELECT 1")
        with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="this transaction holds a lock"):
            learn(connection, "'customers', 'churned', 'x'")
        connection.rollback()
        assert left(db) == (0, 0)
        connection.set_session(isolation_level="REPEATABLE READ")
        with pytest.raises(psycopg2.errors.FeatureNotSupported, match="READ COMMITTED"):
            learn(connection, "'customers', 'churned', 'x'")
    finally:
        connection.close()


@pytest.mark.slow
def test_a_budget_that_is_too_short_for_a_network_says_so(shop):
    db, connection = shop
    rows(connection, "CREATE TABLE many AS SELECT c.* FROM customers c, generate_series(1, 2000); SELECT 1")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="before a network was trained") as raised:
        learn(connection, "'many', 'churned', budget => '10 s', n_configs => 1")
    assert "3 of its steps are committed" in raised.value.diag.message_detail
    assert left(db) == (0, 0)


@dataclass
class Stopped:
    """A call that was cancelled after the first visit of its run, and how long it took to return."""

    run_id: int
    error: psycopg2.Error | None
    seconds: float


@pytest.fixture(scope="module")
def stopped(shop):
    """Cancel a call on a view with code of the caller, which reads who has logged in: a role that is no superuser."""
    db, connection = shop
    db.rows(
        "CREATE FUNCTION who() RETURNS text LANGUAGE sql AS"
        " 'SELECT format(''%s/%s'', session_user, rolsuper) FROM pg_roles WHERE rolname = session_user'"
    )
    view = "SELECT age, churned, format('%s/%s', public.who(), id % 3) AS who FROM customers"
    rows(connection, f"CREATE VIEW spying AS {view}; SELECT 1")
    before = newest_run(db)
    call = BackgroundFit(db, "SELECT madlib_mop.learn('spying', 'churned', 'stopped', budget => '1 hour')", role=ANA)
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run")
    wait_for(lambda: visits(db, run_id) or call.error, what="a visit")
    baselines = "SELECT jsonb_array_length(baselines) FROM madlib_mop.run WHERE run_id = %s"
    wait_for(lambda: db.value(baselines, [run_id]) == 2 or call.error, what="the baselines, while it trains")
    start = time.monotonic()
    call.connection.cancel()
    call.join()
    call.connection.close()
    return Stopped(run_id, call.error, call.ended_at - start)


def test_a_cancel_stops_its_run_and_leaves_no_session(shop, stopped):
    db, _ = shop
    assert isinstance(stopped.error, psycopg2.errors.QueryCanceled), stopped.error
    assert stopped.seconds < 14
    wait_for(lambda: left(db) == (0, 0))
    state = "SELECT state FROM madlib_mop.run WHERE run_id = %s"
    wait_for(lambda: db.value(state, [stopped.run_id]) == "interrupted")


def test_its_session_has_no_more_rights_than_the_caller(shop, stopped):
    """The table was packed, and this is committed."""
    db, connection = shop
    ((document,),) = rows(connection, "SELECT preprocessor FROM stopped_packed_summary")
    assert len(set(re.findall("madlib_mop_run_[0-9a-z_]+/f/[012]", document))) == 3, "it read as its login role"
    assert f"{db.cluster.superuser}/t/" not in document
