"""MADlib's tests of a single model on iris, with forms of calls in scripts that no other test has."""

import psycopg2
import pytest

from tests.helpers.iris import load_iris, load_perceptrons
from tests.helpers.training import script

pytestmark = pytest.mark.one_session

CUSTOM = " optimizer=SGD(lr=0.01, decay=1e-6, nesterov=True), loss='apart', metrics=['top_4_accuracy', 'apart']"
BARE = (
    " optimizer=Adam(epsilon=None), loss_weights=[2], sample_weight_mode=None, loss='categorical_crossentropy',"
    " metrics=[] "
)
KINDS = "ARRAY[class_text = 'Iris-setosa', class_text = 'Iris-versicolor', class_text = 'Iris-virginica']::int[]"
APART = "def apart(y_true, y_pred): return (y_true - y_pred) ** 2"


@pytest.fixture(scope="module")
def bench(db):
    """Iris with labels as text and as one-hot arrays; the validation tables' columns have other names."""
    load_iris(db)
    load_perceptrons(db)
    for part in ("train", "test"):
        db.rows(f"CREATE TABLE hot_{part} AS SELECT id, attributes, {KINDS} AS hot FROM iris_{part}")
    script(
        db,
        "SET madlib_mop.segments = 2",
        "CREATE TABLE held_out AS SELECT id, attributes AS measures, class_text AS kind FROM iris_test",
        "SELECT madlib.training_preprocessor_dl('iris_train', 'flowers', 'class_text', 'attributes', seed => 1)",
        "SELECT madlib.validation_preprocessor_dl('held_out', 'flowers_valid', 'kind', 'measures', 'flowers')",
        "SELECT madlib.training_preprocessor_dl('hot_train', 'hot_packed', 'hot', 'attributes', seed => 1)",
    )
    return db


@pytest.fixture(scope="module")
def custom(bench):
    """A custom loss that returns a value for each unit of each row, instead of one per row; more units than classes."""
    bench.rows("SELECT madlib.load_custom_function('of_one_model', convert_to(%s, 'UTF8'), 'apart')", [APART])
    bench.rows("SELECT madlib.load_top_k_accuracy_function('of_one_model', 4)")
    bench.rows(
        f"SELECT madlib.madlib_keras_fit('flowers', 'of_custom', 'model_arch_library', 1, $${CUSTOM}$$,"
        " $$ batch_size=20, epochs=1, verbose=0 $$, 3, FALSE, 'flowers_valid', 1, NULL, NULL, NULL, 'of_one_model',"
        " seed => 1)"
    )
    return bench


def test_the_summary_tells_of_functions_of_ones_own(custom):
    assert custom.rows(
        "SELECT validation_table, compile_params, fit_params, num_iterations, metrics_compute_frequency, name,"
        " description, metrics_type, loss_type, training_metrics, validation_metrics, dependent_varname,"
        " class_text_class_values, model_type, array_length(metrics_elapsed_time, 1) FROM of_custom_summary"
    ) == [
        ("flowers_valid", CUSTOM, " batch_size=20, epochs=1, verbose=0 ", 3, 1, None, None,
         ["top_4_accuracy", "apart"], "apart", [1.0] * 3, [1.0] * 3, ["class_text"],
         ["Iris-setosa", "Iris-versicolor", "Iris-virginica"], "madlib_keras", 3)
    ]  # fmt: skip
    ((losses, final),) = custom.rows("SELECT training_loss, training_loss_final FROM of_custom_summary")
    assert losses[2] == final < losses[0]


def test_evaluated_on_its_own_training_table_a_model_is_as_its_run_said(custom):
    """It does not need the architecture table."""
    custom.rows("ALTER TABLE model_arch_library RENAME TO set_aside")
    try:
        custom.rows("SELECT madlib.madlib_keras_evaluate('of_custom', 'flowers', 'of_custom_found')")
    finally:
        custom.rows("ALTER TABLE set_aside RENAME TO model_arch_library")
    ((loss, metric, metrics, names, kind),) = custom.rows(
        "SELECT loss, metric, metrics, metrics_type, loss_type FROM of_custom_found"
    )
    final = custom.value("SELECT training_loss_final FROM of_custom_summary")
    assert (loss, metric, metrics) == (pytest.approx(final, rel=1e-6), 1.0, [1.0, pytest.approx(loss, rel=1e-5)])
    assert (names, kind) == (["top_4_accuracy", "apart"], "apart")


def test_the_loss_is_the_mean_over_rows_and_units(custom):
    custom.rows(
        "SELECT madlib.madlib_keras_predict('of_custom', 'held_out', 'id', 'measures', 'of_custom_said', NULL, FALSE)"
    )
    mean = "SELECT avg((prob - (class_value = kind)::int) ^ 2) FROM of_custom_said JOIN held_out USING (id)"
    said = custom.value("SELECT validation_loss_final FROM of_custom_summary")
    assert custom.value(mean) == pytest.approx(said, rel=1e-5)


@pytest.mark.slow
def test_a_model_without_metrics_has_a_loss_only(bench):
    """One-hot labels; NULL for fit_params; Keras 2's spellings without effect; no setting is changed."""
    settings = "SELECT name, setting FROM pg_settings WHERE name <> 'transaction_isolation' ORDER BY name"
    fit = (
        f"SELECT madlib.madlib_keras_fit('hot_packed', 'bare', 'model_arch_library', 1, $${BARE}$$, NULL, 2, NULL,"
        " 'flowers_valid', NULL, False, 'a name', 'its description')"
    )
    connection = bench.connect()
    with connection.cursor() as cursor:
        seen = []
        # the first statement loads the extension's settings
        for statement in ("SELECT madlib.madlib_keras_fit()", fit):
            cursor.execute(statement)
            cursor.execute(settings)
            seen.append(cursor.fetchall())
    connection.close()
    assert seen[0] == seen[1]
    assert bench.rows(
        "SELECT metrics_type, training_metrics, training_metrics_final, validation_metrics, validation_metrics_final,"
        " array_length(training_loss, 1), array_length(validation_loss, 1), validation_loss_final > 0, compile_params,"
        " fit_params, metrics_compute_frequency, dependent_vartype, num_classes, hot_class_values, name, description,"
        " object_table FROM bare_summary"
    ) == [
        (None, None, None, None, None, 1, 1, True, BARE, None, 2, ["integer[]"], [], None, "a name", "its description",
         None)
    ]  # fmt: skip


@pytest.mark.parametrize("function", ["evaluate", "predict"])
def test_a_model_table_without_architectures_is_refused(custom, function):
    connection = custom.connect(autocommit=False)
    with (
        connection.cursor() as cursor,
        pytest.raises(psycopg2.Error, match="public.of_custom has no column 'model_arch'"),
    ):
        cursor.execute("ALTER TABLE of_custom DROP COLUMN model_arch")
        columns = "'id', 'measures', " if function == "predict" else ""
        data = "held_out" if function == "predict" else "flowers"
        cursor.execute(f"SELECT madlib.madlib_keras_{function}('of_custom', '{data}', {columns}'never')")
    connection.close()
