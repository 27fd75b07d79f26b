"""The other SQL functions on Greenplum: each call has the same result as on PostgreSQL, bit for bit."""

import io
import json
import zipfile

import psycopg2
import pytest

from tests.helpers.averaging import average
from tests.helpers.columns import CUSTOMERS, load_churn_network, pack_with
from tests.helpers.greenplum import n_segments, nothing_left
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.searches import arguments, decisions, search, states
from tests.helpers.training import digests, fit, weights

pytestmark = pytest.mark.slow
SEED = 9
COMPILE = ADAM.format(0.01)
SPREAD = """
import keras

def spread(y_true, y_pred):
    return keras.ops.max(y_pred, axis=-1) - keras.ops.min(y_pred, axis=-1)
"""


def prepare(db, segments: int):
    load_iris(db)
    pack_iris(db, segments, "train", "valid")
    load_perceptrons(db, "arch")
    db.rows("SELECT madlib.load_custom_function('functions', %s, 'spread')", [SPREAD.encode()])
    select(db, "mst", COMPILE)
    return db


def select(db, table: str, compile_params: str, *objects: str) -> None:
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', %s, ARRAY[1, 2], ARRAY[%s], ARRAY['batch_size=8'], %s)",
        [table, compile_params, *(objects or [None])],
    )


@pytest.fixture(scope="module")
def bench(greenplum):
    return prepare(greenplum, n_segments(greenplum))


@pytest.fixture(scope="module")
def one_server(db, bench):
    return prepare(db, n_segments(bench))


def hyperband(db):
    """A search, and its replay."""
    found = search(db, "found", "hyperband", "R=3, eta=3, skip_last=0", random_state=SEED)
    best = db.rows("SELECT mst_key, model_id, compile_params, fit_params FROM found_mst")
    info = db.rows("SELECT mst_key, s, i, metrics_iters, training_loss FROM found_info ORDER BY mst_key")
    db.rows("SELECT madlib_mop.replay(%s, 'found_again')", [found.run_id])
    assert weights(db, "found_again") == weights(db, "found")
    return decisions(db, found.run_id), states(db, found.run_id), best, info


def model_averaging(db):
    """Two averages of one model, its metrics, and a warm start of it."""
    options = {"source_table": "train", "validation_table": "valid", "metrics_compute_frequency": 1, "seed": SEED}
    parameters = (1, COMPILE, "batch_size=8, epochs=1")
    run = average(db, "averaged", 2, *parameters, **options)
    first = digests(db, run.run_id)
    metrics = db.rows("SELECT training_loss, validation_metrics FROM averaged_summary")
    again = average(db, "averaged", 1, *parameters, warm_start=True, **options)
    assert digests(db, again.run_id) != first
    return first, metrics, digests(db, again.run_id), weights_of_one(db, "averaged")


def weights_of_one(db, table: str):
    return bytes(db.value(f"SELECT model_weights FROM {table}"))


def warm_start(db):
    """A run that continues another one's models, with their optimizer states."""
    options = {"source_table": "train", "seed": SEED, "schedule": "rotation"}
    before = fit(db, "warm", "mst", 2, **options)
    after = fit(db, "warm", "mst", 1, warm_start=True, **options)
    assert digests(db, after.run_id) != digests(db, before.run_id)
    return digests(db, before.run_id), digests(db, after.run_id), weights(db, "warm")


def custom_functions(db):
    """A superuser's metric, in a run and in a later evaluation."""
    select(db, "mst_custom", COMPILE.replace("'accuracy'", "'accuracy', 'spread'"), "functions")
    run = fit(db, "custom", "mst_custom", 1, source_table="train", seed=SEED, schedule="rotation")
    metrics = db.rows(
        "SELECT mst_key, ordinal, name, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2", [run.run_id]
    )
    assert {name for _, _, name, _ in metrics} == {"loss", "accuracy", "spread"}
    db.rows("SELECT madlib.madlib_keras_evaluate('custom', 'valid', 'evaluated', mst_key := 1)")
    ((loss, values, names),) = db.rows("SELECT loss, metrics, metrics_type FROM evaluated")
    rounded = [round(value, 5) for value in (loss, *values)]  # the coordinator reads the rows in another order
    return digests(db, run.run_id), metrics, rounded, names


def prediction(db):
    """Predicted classes of test rows, in a table and for single rows in a SELECT."""
    fit(db, "models", "mst", 1, source_table="train", seed=SEED, schedule="rotation")
    db.rows(
        "SELECT madlib.madlib_keras_predict('models', 'iris_test', 'id', 'attributes', 'said', 'prob', mst_key := 1)"
    )
    rows = db.rows("SELECT id, class_value, prob FROM said ORDER BY 1, 2")
    assert len(rows) == 90
    single = db.rows("SELECT madlib_mop.predict('models', 1, ARRAY[5.1, 3.5, 1.4, 0.2]::real[])")
    return rows, single


def exports(db):
    """The card of a model, with its metrics and its lineage, and its exported file."""
    fit(db, "exported", "mst", 1, source_table="train", seed=SEED, schedule="rotation")
    card = db.value("SELECT madlib_mop.model_card('exported', 1)").splitlines()
    with zipfile.ZipFile(io.BytesIO(db.value("SELECT madlib_mop.export_model('exported', 1)"))) as file:
        config = file.read("config.json")
    assert any(line.startswith("| training | accuracy |") for line in card)
    return [line for line in card if not line.startswith("| run |")], config


def left_behind(db):
    """What a call could leave: rows of the record, relations and roles."""
    counts = [db.value(f"SELECT count(*) FROM madlib_mop.{table}") for table in RECORD]
    return counts, db.rows("SELECT oid FROM pg_class ORDER BY 1"), db.rows("SELECT rolname FROM pg_roles ORDER BY 1")


def estimates(db):
    """Estimates of a run, a search and an average, which leave nothing; the run makes the visits."""
    of_all = {"source_table": "train", "validation_table": "valid", "num_iterations": 2}
    of_fit = {**of_all, "model_output_table": "estimated", "model_selection_table": "mst"}
    of_search = arguments("estimated", "hyperband", "R=3, eta=3, skip_last=0", random_state=SEED)
    of_one = {
        **of_all, "model": "estimated", "model_arch_table": "arch", "model_id": 1, "compile_params": COMPILE,
        "fit_params": "batch_size=8",
    }  # fmt: skip
    calls = {
        "madlib_keras_fit_multiple_model": of_fit, "madlib_keras_automl": of_search, "madlib_keras_fit": of_one,
    }  # fmt: skip
    before, found = left_behind(db), {}
    for name, given in calls.items():
        rows = db.rows("SELECT * FROM madlib_mop.explain_fit(%s, %s)", [name, json.dumps(given)])
        assert all(low <= value <= high for _, value, low, high, *_ in rows if value is not None)
        found[name] = [row[0] for row in rows if not row[0].startswith("limit")], rows[:2]
    assert left_behind(db) == before
    run = fit(db, "estimated", "mst", 2, source_table="train", validation_table="valid", schedule="rotation")
    made = [
        db.value(f"SELECT count(*) FROM madlib_mop.{table} WHERE run_id = %s", [run.run_id])
        for table in ("visit", "evaluation")
    ]
    assert made == [row[1] for row in found["madlib_keras_fit_multiple_model"][1]]
    db.rows("DROP TABLE estimated, estimated_info, estimated_summary")
    return found


#: Without the last digits: the coordinator reads the rows in another order.
MEASURES = [
    "output, slice, n_rows, metric, round(value::numeric, 5) FROM madlib_mop.metrics({})",
    "output, slice, n_rows, metric, round(value::numeric, 5) FROM madlib_mop.metrics({}, by => 'tier')",
    "* FROM madlib_mop.confusion_matrix({})",
    "class, round(false_positive_rate::numeric, 5), round(true_positive_rate::numeric, 5), round(auc::numeric, 5)"
    " FROM madlib_mop.roc_curve({}, max_points => 7)",
    "class, n_predicted, round(average_precision::numeric, 5)"
    " FROM madlib_mop.precision_recall_curve({}, of_class => 'no', max_points => 7)",
    "class, round(threshold::numeric, 5), n_predicted, cost, n_rows FROM madlib_mop.choose_threshold({},"
    " cost_false_positive => 1, cost_false_negative => 3)",
    "lower, upper, n_rows, round(share::numeric, 5) FROM madlib_mop.reliability({}, n_bins => 4)",
]


def measures(db):
    """How good and how sure a model is, on labelled rows that are at all segments."""
    segments = db.value("SELECT count(*) FROM train")
    db.rows(CUSTOMERS)
    pack_with(db, segments, "pack_columns('customers', 'packed', 'churned', test => 0.2, seed => 1)")
    load_churn_network(db, "churn_arch", "churn_mst")
    fit(db, "churn", "churn_mst", 2, source_table="packed", seed=SEED, schedule="rotation")
    given = "'churn', 'customers', mst_key => 1"
    found = [db.rows(f"SELECT {measure.format(given)}") for measure in MEASURES]
    assert all(found) and sum(n_rows for *_, n_rows, _ in found[2]) == 600
    every, of_tier = found[0], [row for row in found[1] if row[3] == "accuracy"]
    assert {row[2] for row in every} == {600} and sum(row[2] for row in of_tier) == 600 and len(of_tier) == 3
    held_out = "SELECT metric, n_rows, round(value::numeric, 5) FROM madlib_mop.metrics('churn', '{}', mst_key => 1)"
    assert {n_rows for _, n_rows, _ in db.rows(held_out.format("packed_test"))} == {120}
    assert sorted(db.rows(held_out.format("customers"))) == sorted((row[3], row[2], row[4]) for row in every)
    boosted = db.rows(
        "SELECT data_set, metric, round(value::numeric, 4), n_rows FROM madlib_mop.gradient_boosting('packed')"
    )
    assert {n_rows for *_, n_rows in boosted} == {120}
    return found, db.rows(held_out.format("packed_test")), boosted, weights(db, "churn")


RECORD = ("run", "segment", "model", "model_state", "visit", "evaluation", "metric", "change", "reserved_table")
FEATURES = [
    hyperband, model_averaging, warm_start, custom_functions, prediction, exports, estimates, measures,
]  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
def test_gives_what_postgresql_gives(bench, one_server, feature):
    """Promises 1 and 2, for functions that are based on runs."""
    assert feature(bench) == feature(one_server)
    nothing_left(bench)


BAD = {
    "segments": (
        "SET madlib_mop.segments = 2;"
        " SELECT madlib.training_preprocessor_dl('iris_train', 'no', 'class_text', 'attributes')",
        "22023", "must be the number of the cluster's segments", "RESET madlib_mop.segments",
    ),
    "hosts": ("SELECT madlib_mop.add_host('alpha')", "0A000", "on {product} segments are", ""),
    "uncommitted": (
        "CREATE TABLE mst_2 AS SELECT * FROM mst; CREATE TABLE mst_2_summary AS SELECT * FROM mst_summary;"
        " CREATE TABLE packed_2 AS SELECT * FROM train DISTRIBUTED BY (__dist_key__);"
        " CREATE TABLE packed_2_summary AS SELECT * FROM train_summary;"
        " SELECT madlib.madlib_keras_fit_multiple_model('packed_2', 'no', 'mst_2', 1)",
        "55000", "", "COMMIT",
    ),
    "search": (
        "SELECT madlib.madlib_keras_automl('train', 'no', 'arch', 'no_mst', ARRAY[1], '{}', '{}', 'hyperband', 'R=0')",
        "22023", "", "",
    ),
    "averaging": (
        "SELECT madlib.madlib_keras_fit('train', 'no', 'arch', 7, 'loss=''mse''', 'batch_size=8', 1)", "22023", "7", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error_and_leaves_nothing(bench, name):
    """Promise 8: the problem, the value received, the solution; no table, run or process remains."""
    statements, sqlstate, message, hint = BAD[name]
    traces = "SELECT count(*) FROM pg_class", "SELECT count(*) FROM madlib_mop.run"
    before = [bench.value(query) for query in traces]
    connection = bench.connect(autocommit=False)
    with pytest.raises(psycopg2.Error) as caught:
        connection.cursor().execute(statements)
    connection.close()
    error = caught.value
    message = message.format(product=bench.product.title)
    assert (error.pgcode, message in error.diag.message_primary) == (sqlstate, True), error
    assert hint in (error.diag.message_hint or "") and "Traceback" not in str(error)
    assert [bench.value(query) for query in traces] == before
    nothing_left(bench)


#: How sure a registered model is of a row.
HOW_SURE = [
    "predict_interval('a', {row})", "predict_interval('a', {x})", "predict_set('a', {row})", "predict_set('a', {x})",
    "predict_json('a', {row}, true)", "predict_named('a', {x}, calibrated => true)",
]  # fmt: skip
ABSENT = {
    "jobs": ["submit('SELECT 1')", "cancel_job(1)", "run_now(1)", "alter_job(1)", "purge_jobs()"],
    "registry": [
        "register('a', 'models', 1)", "deploy('a', 'champion', 1)", "set_alias('a', 'champion', 1)",
        "drop_alias('a', 'champion')", "rollback('a', 'champion')", "set_challenger('a', 'champion', 1)",
        "drop_challenger('a', 'champion')", "drop_version('a', 1)", "drop_registered('a')",
        "predict_version('a@champion')", "grant_model('a', current_user, 'predict')",
        "revoke_model('a', current_user, 'predict')", "allow_recording('a')", "forbid_recording('a')",
        *(call.format(row="ROW(1)", x="ARRAY[1]") for call in HOW_SURE),
        "metrics('a', 'iris_test')", "metrics('a@1', 'iris_test')",
        "reliability('a', 'iris_test', mst_key => 1, calibrated => true)",
    ],
    "can see": ["grant_read(current_user)", "revoke_read(current_user)"],
}  # fmt: skip
VIEWS = {
    "job": "jobs", "registry": "registry", "alias_history": "registry", "version_lineage": "registry",
    "challenger_comparison": "registry",
}  # fmt: skip


@pytest.mark.parametrize("word, call", [(word, call) for word, calls in ABSENT.items() for call in calls])
def test_a_function_that_greenplum_lacks_says_so(bench, word, call):
    """Promise 8: one clear error in place of "does not exist", with something that can be done."""
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match=word) as caught:
        bench.rows(f"SELECT madlib_mop.{call}")
    message = caught.value.diag.message_primary
    assert message.startswith(call.split("(")[0]) and "on Greenplum and Cloudberry" in message
    assert caught.value.diag.message_hint


@pytest.mark.parametrize("source", ["iris_test AS t", "(SELECT * FROM iris_test LIMIT 3) AS t"])
@pytest.mark.parametrize("call", HOW_SURE)
def test_a_query_over_a_table_gets_the_error_once_and_the_session_goes_on(bench, call, source):
    """From a segment or the coordinator; the error is not that of a function that reads tables on a segment."""
    connection = bench.connect()
    with connection.cursor() as cursor:
        function = f"madlib_mop.{call.format(row='t', x='t.attributes')}"
        for query in (f"SELECT {function} FROM {source}", f"SELECT f.* FROM {source}, {function} AS f"):
            with pytest.raises(psycopg2.errors.FeatureNotSupported) as caught:
                cursor.execute(query)
            message = caught.value.diag.message_primary
            assert message.startswith(f"{call.split('(')[0]}: there is no registry") and caught.value.diag.message_hint
        cursor.execute("SELECT count(*) FROM iris_test")
        assert cursor.fetchall() == [(30,)]
    connection.close()


def test_an_ordinary_role_gets_estimates_measures_and_the_error(bench):
    """With its own rights; an estimate locks nothing of the cluster for more than reading."""
    fit(bench, "for_role", "mst", 1, source_table="train", seed=SEED, schedule="rotation")
    bench.connect("mop_gp_measuring").close()
    bench.rows("SELECT madlib_mop.grant_use('mop_gp_measuring')")
    bench.rows("GRANT SELECT ON train, train_summary, arch, mst, mst_summary, iris_test TO mop_gp_measuring")
    metrics = "SELECT metric, value FROM madlib_mop.metrics('for_role', 'iris_test', mst_key => 1)"
    try:
        given = {
            "source_table": "train", "model_output_table": "later", "model_selection_table": "mst", "num_iterations": 2,
        }  # fmt: skip
        before, connection = left_behind(bench), bench.connect("mop_gp_measuring", autocommit=False)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT value FROM madlib_mop.explain_fit('madlib_keras_fit_multiple_model', %s) WHERE item = 'visits'",
                [json.dumps(given)],
            )
            assert cursor.fetchall() == [(2 * 2 * n_segments(bench),)]
            session = "(SELECT sess_id FROM pg_stat_activity WHERE pid = pg_backend_pid())"
            cursor.execute(
                f"SELECT DISTINCT mode FROM pg_locks WHERE locktype = 'relation' AND mppsessionid = {session}"
            )
            assert cursor.fetchall() == [("AccessShareLock",)]
        connection.close()
        assert left_behind(bench) == before
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="for_role"):
            bench.rows(metrics, role="mop_gp_measuring")
        bench.rows("GRANT SELECT ON for_role, for_role_info, for_role_summary TO mop_gp_measuring")
        assert {name for name, _ in bench.rows(metrics, role="mop_gp_measuring")} >= {"accuracy", "log loss"}
        with pytest.raises(psycopg2.errors.FeatureNotSupported, match="there is no registry"):
            bench.rows("SELECT madlib_mop.predict_set('a', t) FROM iris_test AS t", role="mop_gp_measuring")
    finally:
        bench.rows("SELECT madlib_mop.revoke_use('mop_gp_measuring')")
        bench.rows("DROP OWNED BY mop_gp_measuring")
        bench.rows("DROP TABLE for_role, for_role_info, for_role_summary")


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_greenplum_lacks_says_so(bench, one_server, view):
    """It has the columns of other servers', so any query of it gets the error; for an ordinary role too."""
    relation = f"madlib_mop.{view}"
    columns = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{relation}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert bench.rows(columns) == one_server.rows(columns)
    bench.connect("mop_gp_reader").close()
    bench.rows("SELECT madlib_mop.grant_use('mop_gp_reader')")
    try:
        for role in (None, "mop_gp_reader"):
            with pytest.raises(psycopg2.errors.FeatureNotSupported, match=f"^{relation}: there .* {VIEWS[view]}"):
                bench.rows(f"SELECT * FROM {relation}", role=role)
        key = "job_id = 1" if view == "job" else "name = 'a'"
        with pytest.raises(psycopg2.errors.FeatureNotSupported):
            bench.rows(f"SELECT count(*) FROM {relation} WHERE {key}")
    finally:
        bench.rows("SELECT madlib_mop.revoke_use('mop_gp_reader')")


def test_a_view_with_predictions_says_what_does_it(bench):
    """Greenplum creates the view, and runs its function at the segments."""
    bench.rows("CREATE VIEW predicting AS SELECT id, madlib_mop.predict('models', 1, attributes) AS p FROM iris_test")
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match="cannot run on a segment") as caught:
        bench.rows("SELECT * FROM predicting")
    assert "madlib_keras_predict" in caught.value.diag.message_hint
