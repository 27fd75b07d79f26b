"""`madlib_mop.drift`: rows of today and their predictions against the training rows, for every way to name a model."""

import json
import re

import numpy as np
import pytest

from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from tests.helpers.columns import load_linear, pack_with
from tests.helpers.commands import run
from tests.helpers.drift import by_feature, psi_of, rows_of
from tests.helpers.faults import wait_for
from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.jobs import JobWorker
from tests.helpers.registry import number_net

pytestmark = pytest.mark.one_session

DRIFT = "SELECT * FROM madlib_mop.drift('churn', '{}', 1{})"


@pytest.fixture(scope="module")
def db(churn_db):
    return churn_db


@pytest.fixture(scope="module")
def user(db):
    user = User(db.connect())
    user.rows("SELECT madlib_mop.register('churn', 'churn', 1, baseline => 'packed_validation')")
    user.rows("SELECT madlib_mop.set_alias('churn', 'champion', 1)")
    others = "income, tier, active, joined, seen"
    user.rows(f"CREATE VIEW older AS SELECT id, age + 25 AS age, city, {others} FROM customers")
    user.rows("CREATE VIEW moved AS SELECT id, age, CASE WHEN id % 2 = 0 THEN 'Atlantis' ELSE city END AS city,"
              f" {others} FROM customers")  # fmt: skip
    yield user
    user.connection.close()


def test_the_training_table_is_stable(user):
    found = by_feature(user, DRIFT.format("customers", ""))
    assert {row["verdict"] for row in found.values() if row["kind"] != "prediction"} == {"stable"}
    assert found["prediction churned"]["verdict"] == "unknown"
    assert "No earlier predictions are known" in found["prediction churned"]["reason"]
    assert found["target churned"]["n_rows"] == 600 and found["target churned"]["baseline_rows"] == 480
    assert {row["model"] for row in found.values()} == {"mst_key 1 of public.churn"}


def test_a_registered_model_with_a_baseline_judges_its_predictions(user):
    found = by_feature(user, "SELECT * FROM madlib_mop.drift('churn@champion', 'customers')")
    prediction = found["prediction churned"]
    assert prediction["verdict"] == "stable" and prediction["model"] == "churn@1"
    assert (prediction["n_rows"], prediction["baseline_rows"]) == (600, 120)
    classes = dict(user.rows("SELECT madlib_mop.predict_class('churn', 1, c), count(*) FROM customers c GROUP BY 1"))
    assert sum(classes.values()) == 600


def test_a_shifted_number_is_named_with_the_index_that_numpy_computes(user):
    found = by_feature(user, DRIFT.format("older", ", predictions => false"))
    assert {name: row["verdict"] for name, row in found.items() if row["verdict"] != "stable"} == {"input age": "large"}
    age = found["input age"]
    assert "target churned" not in found and age["outside_share"] > 0.3 and age["baseline_minimum"] == "20"
    training = [age for (age,) in user.rows("SELECT age FROM customers")]  # 480 of 600: the validation rows are alike
    shifted = [None if age is None else age + 25 for age in training]
    assert age["psi"] == pytest.approx(psi_of(training, shifted), rel=0.2)
    assert age["psi"] > age["psi_by_chance"] and "of 10 bins" in age["reason"]


def test_new_levels_are_counted_and_named(user):
    found = by_feature(user, DRIFT.format("moved", ", predictions => false"))["input city"]
    assert (found["measured"], found["verdict"]) == ("level", "large")
    assert found["new_share"] == 0.5 and found["new_levels"] == ["Atlantis"]
    assert "50 % of the rows have a level that no training row has." in found["reason"]


@pytest.mark.slow
def test_the_rows_of_a_baseline_take_the_place_of_the_training_rows(user):
    found = by_feature(user, DRIFT.format("older", ", baseline => 'older'"))
    assert {row["verdict"] for row in found.values()} == {"stable"} and {row["psi"] for row in found.values()} == {0.0}
    assert found["prediction churned"]["baseline_rows"] == 600
    found = by_feature(user, DRIFT.format("customers", ", baseline => 'older'"))
    assert found["input age"]["verdict"] == "large" and found["input age"]["baseline_minimum"] == "45"


def test_rows_are_sampled_if_asked(user):
    found = by_feature(user, DRIFT.format("customers", ", max_rows => 200, predictions => false"))
    assert 120 < found["input age"]["n_rows"] < 280
    assert by_feature(user, DRIFT.format("customers", ", max_rows => 5000"))["input age"]["n_rows"] == 600


def test_thresholds_are_arguments(user):
    (psi,) = [row["psi"] for row in by_feature(user, DRIFT.format("moved", "")).values() if row["feature"] == "city"]
    call = DRIFT.format("moved", f", moderate => {psi / 2}, large => {psi * 2}, predictions => false")
    assert by_feature(user, call)["input city"]["verdict"] == "moderate"


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("NULL::int AS age", "large"),
        ("CASE WHEN id % 2 = 0 THEN 'NaN' ELSE age::float8 END AS age", "large"),
        ("CASE WHEN id % 2 = 0 THEN 'Infinity'::float8 END AS age", "large"),
    ],
)
def test_null_and_values_that_are_not_finite_are_counted_not_errors(user, view, words):
    user.rows(f"CREATE VIEW odd AS SELECT id, income, tier, city, active, joined, seen, {view} FROM customers")
    found = by_feature(user, DRIFT.format("odd", ""))
    user.rows("DROP VIEW odd")
    assert found["input age"]["verdict"] == words
    is_null = "NULL" in view
    assert ("rows are NaN or infinite" in found["input age"]["reason"]) is not is_null
    assert found["prediction churned"]["n_rows"] == (600 if is_null else 300)


def test_rows_with_nan_in_a_category_are_counted_and_not_predicted(user, db):
    user.rows("CREATE TABLE shops AS SELECT (i % 5)::float8 AS store, i * 7 % 50 AS age,"
              " CASE WHEN i % 5 > 2 THEN 'yes' ELSE 'no' END AS bought FROM generate_series(1, 200) AS i")
    user.rows("SELECT madlib_mop.propose_columns('shops', 'of_shops', 'bought')")
    user.rows("UPDATE of_shops SET kind = 'category', encode = 'one_hot', scale = 'none' WHERE name = 'store'")
    user.rows("SET madlib_mop.segments = 1; SELECT madlib_mop.pack_columns('shops', 'shops_packed', 'bought',"
              " columns => 'of_shops', seed => 1)")  # fmt: skip
    load_linear(db, "shops_packed", {"bought": 2}, "batch_size=16, epochs=1")
    user.rows("SELECT madlib.madlib_keras_fit_multiple_model('shops_packed', 'shop_models', 'shops_configs', 1)")
    user.rows("CREATE VIEW odd_shops AS SELECT age, CASE WHEN age = 7 THEN 'NaN' ELSE store END AS store FROM shops")
    rows = user.rows("SELECT feature, n_rows FROM madlib_mop.drift('shop_models', 'odd_shops', 1)")
    assert dict(rows)["age"] == 200 and dict(rows)["bought"] == 196


def test_a_hundred_thousand_new_levels(user):
    user.rows("CREATE VIEW many AS SELECT 30 AS age, 5.0 AS income, 'gold' AS tier, 'town ' || i AS city,"
              " true AS active, date '2021-01-01' AS joined, now() AS seen FROM generate_series(1, 100000) AS i")
    found = by_feature(user, DRIFT.format("many", ", predictions => false"))
    assert found["input city"]["new_share"] == 1.0 and len(found["input city"]["new_levels"]) == 5
    assert {row["verdict"] for row in found.values()} == {"large"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'churn', 'customers', 9", "mst_key 9 is not in public.churn"),
        ("'churn', 'nowhere', 1", "source_table"),
        ("'churn', 'packed', 1", "source_table: public.packed is a packed table"),
        ("'churn', 'lacking', 1", "has no column 'age'"),
        ("'churn', 'texts', 1", "column 'age' of public.texts is text now. When it was packed it was integer"),
        ("'churn', 'no_rows', 1", "source_table has no rows"),
        ("'churn', 'customers', 1, 'no_rows'", "baseline has no rows"),
        ("'churn', 'customers', 1, 'lacking'", "baseline: public.lacking has no column 'age'"),
        ("'churn', 'customers', 1, max_rows => 0", "max_rows must be at least 1"),
        ("'churn', 'customers', 1, moderate => 0.5", "moderate must not be above large. Received: 0.5 and 0.25"),
        ("'churn', 'customers', 1, large => 'NaN'", "large must be a number above 0"),
        ("'churn', 'customers', 1, large => NULL", "large must be a number above 0. Received: NULL"),
        ("'churn', 'customers', 1, independent_varname => 'age'", "is for models that were trained on arrays"),
        ("'churn@champion', 'customers', 1", "mst_key is for tables"),
        ("'churn@nobody', 'customers'", "churn has no alias nobody"),
        ("'@@', 'customers'", "no name of a registered model"),
        ("NULL, 'customers'", "model_table"),
    ],
)
def test_bad_input_is_one_clear_error(user, arguments, words):
    user.rows("CREATE OR REPLACE VIEW lacking AS SELECT income, tier, city, active, joined, seen FROM customers;"
              "CREATE OR REPLACE VIEW texts AS SELECT age::text AS age, income, tier, city, active, joined, seen, id"
              " FROM customers; CREATE OR REPLACE VIEW no_rows AS SELECT * FROM customers WHERE false")  # fmt: skip
    error = user.refused(user.rows, f"SELECT * FROM madlib_mop.drift({arguments})")
    assert words in error.message, error


def test_a_model_of_arrays_is_compared_with_a_baseline(user, keras):
    facts = ModelTable(compile_params="loss='mse', optimizer='sgd'", metrics_type=None, loss_type="mse",
                       dependent=[Dependent("y", "real")], normalizing_const=2.0)  # fmt: skip
    net = number_net(keras, 0.0)
    net.set_weights([np.array([[1.0], [0.0], [0.0]], np.float32), np.zeros(1, np.float32)])
    user.write_models("arrays", {1: net}, facts)
    user.rows("CREATE TABLE points AS SELECT ARRAY[sin(i), cos(i), i % 7]::real[] AS x FROM generate_series(1, 500) i;"
              "CREATE VIEW farther AS SELECT ARRAY[x[1] + 1, x[2], x[3]]::real[] AS x FROM points")  # fmt: skip
    call = "SELECT * FROM madlib_mop.drift('arrays', 'farther', 1{})"
    error = user.refused(user.rows, call.format(""))
    assert "baseline is missing: mst_key 1 of public.arrays was trained on arrays" in error.message
    error = user.refused(user.rows, call.format(", baseline => 'points'"))
    assert "independent_varname is missing" in error.message
    found = rows_of(user, call.format(", baseline => 'points', independent_varname => 'x'"))
    verdicts = {(row["kind"], row["measured"]): row["verdict"] for row in found}
    assert verdicts == {
        ("input", "element 1"): "large", ("input", "element 2"): "stable", ("input", "element 3"): "stable",
        ("prediction", "value"): "large",
    }  # fmt: skip
    assert float(found[0]["maximum"]) == pytest.approx(1.0, abs=1e-3)  # (sin + 1) / 2: what the network gets


def test_the_preprocessor_of_an_earlier_version_has_no_distribution(user):
    """Tables that were packed before are used as before; drift says what it cannot know."""
    user.rows("CREATE TABLE plain AS TABLE churn; CREATE TABLE plain_info AS TABLE churn_info;"
              "CREATE TABLE plain_summary AS TABLE churn_summary")  # fmt: skip
    document = json.loads(user.value("SELECT preprocessor FROM churn_summary"))
    for column in document["columns"]:
        del column["profile"]
    before = Preprocessor.from_json(json.dumps(document))
    user.rows("UPDATE plain_summary SET preprocessor = %s, preprocessor_digest = %s", before.to_json(), before.digest)
    found = by_feature(user, "SELECT * FROM madlib_mop.drift('plain', 'moved', 1)")
    assert {row["verdict"] for row in found.values()} == {"unknown"}
    city = found["input city"]
    assert city["new_share"] is None and "kept no distribution" in city["reason"]
    assert "Atlantis" in city["new_levels"] and "is new, or was too rare" in city["reason"]
    compared = by_feature(user, "SELECT * FROM madlib_mop.drift('plain', 'moved', 1, baseline => 'customers')")
    assert compared["input city"]["verdict"] == "large" and compared["input age"]["verdict"] == "stable"


@pytest.mark.slow
def test_the_command_line_prints_and_fails_as_asked(db, user):
    done = run(db, "drift", "churn@champion", "customers")
    assert done.returncode == 0 and re.search(r"age +input +value +stable +0\.\d\d\d +PSI", done.stdout), done
    moved = ("drift", "churn", "moved", "--mst-key", "1", "--no-predictions")
    assert run(db, *moved).returncode == 0
    assert run(db, *moved, "--fail-on", "large").returncode == run(db, *moved, "--fail-on", "moderate").returncode == 3
    assert run(db, *moved, "--fail-on", "large", "--large", "99").returncode == 0
    done = run(db, *moved, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and {row["feature"] for row in found} >= {"age", "city"}
    assert found[0]["checked_at"].endswith("+00:00") and found[0]["verdict"] == "stable"
    done = run(db, "drift", "churn@champion", "nowhere")
    assert (done.returncode, done.stdout) == (1, "") and "nowhere" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_job_records_the_results_in_a_table(db, user):
    user.rows("CREATE TABLE watched AS SELECT now() AS checked_at, d.* FROM madlib_mop.drift('churn@1', 'customers') d"
              " LIMIT 0")  # fmt: skip
    job = user.value("SELECT madlib_mop.submit($$INSERT INTO public.watched SELECT now(), * FROM"
                     " madlib_mop.drift('churn@champion', 'public.customers')$$)")  # fmt: skip
    with JobWorker(db):
        wait_for(lambda: user.value("SELECT state FROM madlib_mop.job WHERE job_id = %s", job) == "finished",
                 what="the job's end", within_s=120)  # fmt: skip
    assert user.value("SELECT count(DISTINCT feature) FROM watched WHERE verdict = 'stable'") >= 7


def test_the_distribution_is_the_same_for_any_number_of_segments_and_any_order(db, user):
    user.rows("CREATE TABLE shuffled AS SELECT * FROM customers ORDER BY md5(id::text)")
    for table, n in (("customers", 1), ("customers", 3), ("shuffled", 2)):
        pack_with(db, n, f"pack_columns('{table}', 'dealt_{table}_{n}', 'churned', validation => 0.2, seed => 1)")
    names = ("dealt_customers_1", "dealt_customers_3", "dealt_shuffled_2", "packed")
    assert len({user.value(f"SELECT preprocessor FROM {name}_summary") for name in names}) == 1
