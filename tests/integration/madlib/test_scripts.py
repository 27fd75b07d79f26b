"""MADlib's tests of the hopper, with forms of calls in scripts that no other test has."""

import pytest

from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.training import script

pytestmark = pytest.mark.one_session

FIT = "SELECT madlib.madlib_keras_fit_multiple_model"
ONE_HOT = (
    "ARRAY[class_text = 'Iris-setosa', class_text = 'Iris-versicolor', class_text = 'Iris-virginica']::int[] AS one_hot"
)


@pytest.fixture(scope="module")
def bench(db):
    load_iris(db)
    pack_iris(db, 2)
    load_perceptrons(db)
    for part in ("train", "test"):
        db.rows(f"CREATE TABLE one_hot_{part} AS SELECT id, attributes, {ONE_HOT} FROM iris_{part}")
    script(
        db,
        "SET madlib_mop.segments = 2",
        "SELECT madlib.training_preprocessor_dl('one_hot_train', 'one_hot_packed', 'one_hot', 'attributes')",
        "SELECT madlib.validation_preprocessor_dl('one_hot_test', 'one_hot_valid', 'one_hot', 'attributes',"
        " 'one_hot_packed')",
    )
    return db


@pytest.fixture(scope="module")
def by_hand(bench):
    """One model on two segments. The packed table is a copy in another schema with a NULL class, the model selection
    table a temporary one written by hand, the validation table has one-hot labels; NULL arguments mean defaults.
    """
    script(
        bench,
        'CREATE SCHEMA "Other"',
        'CREATE TABLE "Other".copied AS SELECT * FROM iris_train_packed',
        'CREATE TABLE "Other".copied_summary AS SELECT * FROM iris_train_packed_summary',
        "UPDATE \"Other\".copied_summary SET class_text_class_values = '{Iris-setosa,Iris-versicolor,NULL}'",
        "CREATE TEMP TABLE by_hand (mst_key serial, model_id integer, compile_params varchar, fit_params varchar)",
        f"INSERT INTO by_hand VALUES (7, 1, $${ADAM.format(0.01)}$$, 'batch_size=16, epochs=1')",
        "CREATE TEMP TABLE by_hand_summary AS SELECT 'model_arch_library'::varchar AS model_arch_table",
        f"{FIT}('\"Other\".copied', '\"Other\".made', 'pg_temp.by_hand', 3, NULL, 'one_hot_valid', 1, NULL,"
        " 'a name', 'a description', NULL)",
    )
    return bench


def test_tables_copied_or_written_by_hand_are_as_good_as_ours(by_hand):
    ((mst_key, model_id, n_metrics, elapsed),) = by_hand.rows(
        'SELECT mst_key, model_id, array_length(validation_metrics, 1), metrics_elapsed_time FROM "Other".made_info'
    )
    assert (mst_key, model_id, n_metrics) == (7, 1, 3)
    assert elapsed == sorted(set(elapsed)) and elapsed[0] > 0
    assert by_hand.rows(
        "SELECT model, model_selection_table, object_table, validation_table, warm_start, name, description,"
        ' metrics_compute_frequency, class_text_class_values, num_classes FROM "Other".made_summary'
    ) == [
        ('"Other".made', "pg_temp.by_hand", None, "one_hot_valid", False, "a name", "a description", 1,
         ["Iris-setosa", "Iris-versicolor", None], [3])
    ]  # fmt: skip


def test_output_tables_are_logged(by_hand):
    kinds = by_hand.rows("SELECT relpersistence::text FROM pg_class WHERE relname ~ '^made' AND relkind = 'r'")
    assert kinds == [("p",)] * 3


@pytest.fixture(scope="module")
def one_hot(bench):
    """Two models on two segments, one-hot labels in the source, cached data."""
    bench.rows(
        "SELECT madlib.load_model_selection_table('model_arch_library', 'mst', ARRAY[1], %s, ARRAY['batch_size=10'])",
        [[ADAM.format(0.003), ADAM.format(0.01)]],
    )
    bench.rows(
        f"{FIT}('one_hot_packed', 'from_one_hot', 'mst', 6, FALSE, 'one_hot_valid', 2, FALSE, NULL, NULL, TRUE,"
        " seed => 1)"
    )
    return bench


def test_labels_that_were_one_hot_have_no_class_values(one_hot):
    assert one_hot.rows(
        "SELECT dependent_varname, dependent_vartype, num_classes, one_hot_class_values, metrics_iters"
        " FROM from_one_hot_summary"
    ) == [(["one_hot"], ["integer[]"], [], None, [2, 4, 6])]


def test_the_loss_falls_and_the_accuracy_rises(one_hot):
    """The last element is compared with the first one; MADlib's test compares NULLs here."""
    rows = one_hot.rows("SELECT training_loss, training_metrics FROM from_one_hot_info")
    assert len(rows) == 2
    assert all(loss[-1] < loss[0] for loss, _ in rows)
    assert any(accuracy[-1] > accuracy[0] or accuracy[0] == 1 for _, accuracy in rows)


def test_predictions_from_one_hot_labels_are_positions(one_hot):
    script(
        one_hot,
        "SELECT madlib.madlib_keras_predict('from_one_hot', 'iris', 'id', 'attributes', 'pg_temp.predicted',"
        " 'response', NULL, 2)",
        "SELECT madlib.madlib_keras_evaluate('from_one_hot', 'one_hot_valid', 'pg_temp.evaluated', NULL, 2)",
        "CREATE TABLE predicted AS SELECT * FROM pg_temp.predicted",
        "CREATE TABLE evaluated AS SELECT * FROM pg_temp.evaluated",
    )
    assert {value for (value,) in one_hot.rows("SELECT DISTINCT class_value FROM predicted")} <= {"0", "1", "2"}
    assert one_hot.value("SELECT count(*) FROM predicted") == 150
    ((loss, metric),) = one_hot.rows("SELECT loss, metric FROM evaluated")
    ((run_loss, run_metric),) = one_hot.rows(
        "SELECT validation_loss_final, validation_metrics_final FROM from_one_hot_info WHERE mst_key = 2"
    )
    assert (loss, metric) == (pytest.approx(run_loss, rel=1e-5), pytest.approx(run_metric, rel=1e-6))


def test_one_hot_labels_of_whole_numbers_are_smallints_and_of_reals_are_reals(bench):
    script(
        bench,
        "SET madlib_mop.segments = 1",
        "CREATE TABLE kinds AS SELECT ARRAY[1,2]::real[] AS x, ARRAY[0,1] AS whole, ARRAY[0,1]::float8[] AS real"
        " FROM generate_series(1, 3)",
        "SELECT madlib.training_preprocessor_dl('kinds', 'kinds_packed', 'whole, real', 'x')",
    )
    assert bench.rows(
        'SELECT madlib.convert_bytea_to_smallint_array(whole), madlib.convert_bytea_to_real_array("real")'
        " FROM kinds_packed"
    ) == [([0, 1] * 3, [0.0, 1.0] * 3)]
