"""Labels: notices about classes, indices for sparse losses, one unit for two classes, balanced weights."""

import json

import numpy as np
import pytest

from tests.helpers.packing import Caller
from tests.helpers.training import architecture_of, digests, fit, load_digits, one_thread, select_configurations

SPARSE = "loss='sparse_categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
ONE_HOT = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
BINARY = "loss='binary_crossentropy', optimizer='Adam(lr=0.05)', metrics=['accuracy', 'auc']"
FIT = "batch_size=16, epochs=1, shuffle=False"


def network(units, activation):
    keras = one_thread_keras()
    layers = [keras.layers.Flatten(), keras.layers.Dense(8, "relu"), keras.layers.Dense(units, activation)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers]).to_json()


def one_thread_keras():
    one_thread()
    import keras

    return keras


@pytest.fixture(scope="module")
def caller(db):
    load_digits(db)
    db.rows("ALTER TABLE train_rows ADD even text, ADD rare text, ADD price float8")
    db.rows(
        "UPDATE train_rows SET even = CASE WHEN y % 2 = 0 THEN 'even' ELSE 'odd' END,"
        " rare = CASE WHEN y = 0 THEN 'zero' WHEN y < 6 THEN 'few' END, price = y + id / 1000.0"
    )
    db.rows("ALTER TABLE valid_rows ADD even text")
    db.rows("UPDATE valid_rows SET even = CASE WHEN y % 2 = 0 THEN 'even' ELSE 'odd' END")
    caller = Caller(db.connect())
    caller.segments(2)
    more = {"normalizing_const": 16.0, "buffer_size": 37, "seed": 5}
    caller.train("train_rows", "one_hot", y="y", **more)
    caller.train("train_rows", "by_index", y="y", labels="index", **more)
    caller.train("train_rows", "halves", y="even", labels="index", **more)
    caller.validate("valid_rows", "halves_valid", "halves", y="even")
    caller.train("train_rows", "halves_one_hot", y="even", **more)
    for arch in (network(10, "softmax"), network(1, "sigmoid"), network(2, "softmax")):
        caller.rows("SELECT madlib.load_keras_model('arch', %s::json)", arch)
    yield caller
    caller.connection.close()


def test_the_classes_and_their_rows_are_told(caller):
    caller.notices()
    caller.train("train_rows", "told", y="even")
    counts = dict(caller.rows("SELECT even, count(*) FROM train_rows GROUP BY 1"))
    wanted = f"column 'even' has 2 classes (rows): even ({counts['even']}), odd ({counts['odd']})"
    notices = caller.notices()
    assert f"NOTICE:  training_preprocessor_dl: {wanted}\n" in notices
    summary = caller.summary("told")
    assert summary["even_class_counts"] == [counts["even"], counts["odd"]] and list(summary)[-1] == "even_class_counts"


def test_null_that_became_a_class_is_told(caller):
    caller.notices()
    caller.train("train_rows", "told_null", y="rare")
    n_null = caller.value("SELECT count(*) FROM train_rows WHERE rare IS NULL")
    assert f"3 classes (rows): NULL ({n_null}), few (" in (told := caller.notices())
    assert f"NULL is a class of its own, with {n_null} rows: if NULL means a missing label, exclude these" in told


def test_a_number_that_became_many_classes_is_told_with_the_way_to_a_regression(caller):
    caller.notices()
    caller.train("train_rows", "told_many", y="price")
    assert "240 numbers became 240 classes: for regression, use num_classes => '{}'" in (told := caller.notices())
    assert told.count("(1), ") == 20 and "(1), ...;" in told


def test_padding_has_no_rows_and_validation_counts_its_own(caller):
    caller.train("train_rows", "padded", y="even", num_classes="{4}")
    counts = dict(caller.rows("SELECT even, count(*) FROM train_rows GROUP BY 1"))
    assert caller.summary("padded")["even_class_counts"] == [counts["even"], counts["odd"], 0, 0]
    counts = dict(caller.rows("SELECT even, count(*) FROM valid_rows GROUP BY 1"))
    assert caller.summary("halves_valid")["even_class_counts"] == [counts["even"], counts["odd"]]


def test_indices_have_padding_too(caller):
    """Also a single class has an index if another one is reserved."""
    caller.train("train_rows", "padded_index", y="even", labels="index", num_classes="{4}")
    summary = caller.summary("padded_index")
    assert summary["num_classes"] == [4] and summary["even_class_values"] == ["even", "odd", None, None]
    assert set(caller.tensor("padded_index", "even").ravel().tolist()) == {0, 1}
    caller.table("alike", "x real[], y text", [([1.0], "a"), ([2.0], "a")])
    caller.train("alike", "alike_packed", labels="index", num_classes="{2}")
    assert caller.tensor("alike_packed", "y").tolist() == [[0], [0]]


def test_indices_are_the_places_of_the_one_hot_labels(caller):
    index, one_hot = caller.tensor("by_index", "y"), caller.tensor("one_hot", "y")
    assert index.shape == (240, 1) and index.dtype == np.int16
    assert np.array_equal(index[:, 0], one_hot.argmax(axis=1))
    ours, theirs = caller.summary("by_index"), caller.summary("one_hot")
    differ = {key for key in ours if ours[key] != theirs[key]}
    assert differ <= {"output_table", "buffer_size"}
    assert caller.tensor("halves_valid", "even").shape == (80, 1)


@pytest.mark.slow
def test_a_sparse_loss_on_indices_trains_what_the_one_hot_loss_does(caller, db):
    select_configurations(db, "mst_sparse", [(1, SPARSE, FIT)])
    select_configurations(db, "mst_one_hot", [(1, ONE_HOT, FIT)])
    sparse = fit(db, "sparse", "mst_sparse", 2, source_table="by_index", seed=3, schedule="rotation")
    one_hot = fit(db, "plain", "mst_one_hot", 2, source_table="one_hot", seed=3, schedule="rotation")
    final = "SELECT training_loss_final, training_metrics_final FROM"
    losses = [db.rows(f"{final} {name}") for name in ("sparse_info", "plain_info")]
    assert np.allclose(losses[0], losses[1], rtol=1e-4)
    assert digests(db, sparse.run_id).keys() == digests(db, one_hot.run_id).keys()
    db.rows("SELECT madlib.madlib_keras_evaluate('sparse', 'by_index', 'sparse_evaluated', mst_key => 1)")
    assert np.allclose(db.rows("SELECT loss, metric FROM sparse_evaluated"), losses[0], rtol=1e-6)
    db.rows(
        "SELECT madlib.madlib_keras_predict('sparse', 'train_rows', 'id', 'x', 'sparse_read', 'response', mst_key => 1)"
    )
    share = db.value("SELECT avg((class_value = y::text)::int) FROM sparse_read JOIN train_rows USING (id)")
    assert abs(float(share) - losses[0][0][1]) < 1e-6


@pytest.mark.slow
def test_one_unit_tells_two_classes_apart_with_their_names(caller, db):
    select_configurations(db, "mst_binary", [(2, BINARY, FIT)])
    fit(db, "binary", "mst_binary", 8, source_table="halves", validation_table="halves_valid", seed=3)
    reached = db.value("SELECT validation_metrics_final FROM binary_info")
    assert reached > 0.7
    call = "SELECT madlib.madlib_keras_predict('binary', 'valid_rows', 'id', 'x', %s, %s, mst_key => 1)"
    db.rows(call, ["probs", "prob"])
    db.rows(call, ["responses", "response"])
    rows = db.rows(
        "SELECT id, array_agg(class_value ORDER BY class_value), sum(prob),"
        " max(prob) FILTER (WHERE class_value = 'odd'),"
        " max(class_value) FILTER (WHERE rank = 1) FROM probs GROUP BY id ORDER BY id"
    )
    assert len(rows) == 80 and all(classes == ["even", "odd"] for _, classes, *_ in rows)
    assert all(abs(total - 1) < 1e-6 for _, _, total, *_ in rows)
    scores = dict(db.rows("SELECT id, (madlib_mop.predict('binary', 1, x))[1] FROM valid_rows"))
    assert all(abs(scores[i] - odd) < 1e-6 for i, _, _, odd, _ in rows)
    forms = "madlib_mop.predict_class('binary', 1, x), madlib_mop.predict_named('binary', 1, x)"
    named = f"SELECT id, {forms} FROM valid_rows"
    for i, best, probabilities in db.rows(named):
        assert best == ("odd" if scores[i] > 0.5 else "even") and probabilities.keys() == {"even", "odd"}
        assert abs(probabilities["odd"] - scores[i]) < 1e-6 and abs(sum(probabilities.values()) - 1) < 1e-6
    responses = dict(db.rows("SELECT id, class_value FROM responses"))
    assert responses == {i: best for i, *_, best in rows}
    share = db.value("SELECT avg((class_value = even)::int) FROM responses JOIN valid_rows USING (id)")
    assert abs(float(share) - reached) < 1e-6


REFUSED = {
    "a sparse loss on one-hot labels": (
        1, SPARSE, "one_hot", "loss 'sparse_categorical_crossentropy' takes class indices, but column 'y' of"
        " public.one_hot was packed one-hot", "labels => 'index'",
    ),
    "a sparse metric on one-hot labels": (
        1, ONE_HOT.replace("'accuracy'", "'sparse_categorical_accuracy'"), "one_hot", "takes class indices",
        "labels => 'index'",
    ),
    "a one-hot loss on indices": (
        1, ONE_HOT, "by_index", "loss 'categorical_crossentropy' takes one-hot labels", "labels => 'one-hot'",
    ),
    "a one-hot metric on indices": (
        1, SPARSE.replace("'accuracy'", "'categorical_accuracy'"), "by_index", "takes one-hot labels", "one-hot",
    ),
    "one unit for ten classes": (
        2, BINARY, "by_index", "with one unit is for two classes, but", "one unit for each class",
    ),
    "one unit on one-hot labels": (2, BINARY, "halves_one_hot", "1 units, but column 'even'", "labels => 'index'"),
    "two units for ten indices": (3, SPARSE, "by_index", "has 2 units, but column 'y' of public.by_index has 10", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_losses_that_do_not_fit_the_labels_are_refused_with_the_way(caller, db, case):
    model_id, params, table, message, hint = REFUSED[case]
    select_configurations(db, "mst_bad", [(model_id, params, FIT)])
    try:
        call = "SELECT madlib.madlib_keras_fit_multiple_model(%s, 'bad', 'mst_bad', 1)"
        error = caller.refused(caller.rows, call, table)
    finally:
        db.rows("DROP TABLE mst_bad, mst_bad_summary")
    assert error.sqlstate == "22023" and message in error.message and hint in (error.hint or "")


def test_labels_that_cannot_be_indices_are_refused(caller):
    caller.table("odd_ones", "x real[], y text, z real[]", [([1.0], "a", [1, 0]), ([2.0], "a", [0, 1])])
    one = caller.refused(caller.train, "odd_ones", "odd_packed", labels="index")
    assert "needs two classes or more; column 'y' has 1" in one.message
    array = caller.refused(caller.train, "odd_ones", "odd_packed", y="z", labels="index")
    assert "'z' is packed unchanged (real[])" in array.message
    word = caller.refused(caller.train, "odd_ones", "odd_packed", labels="sparse")
    assert "labels must be 'one-hot' or 'index'" in word.message


@pytest.mark.slow
@pytest.mark.parametrize("packed,y,params,model_id", [("one_hot", "y", ONE_HOT, 1), ("halves", "even", BINARY, 2)])
def test_balanced_weights_train_as_the_same_weights_written_out(caller, db, packed, y, params, model_id):
    counts = [n for (n,) in db.rows(f"SELECT count(*) FROM train_rows GROUP BY {y} ORDER BY {y}")]
    weights = {i: sum(counts) / (len(counts) * n) for i, n in enumerate(counts)}
    given = f"{FIT}, class_weight='balanced'"
    select_configurations(db, f"mst_{packed}_b", [(model_id, params, given)])
    select_configurations(db, f"mst_{packed}_w", [(model_id, params, f"{FIT}, class_weight={weights}")])
    options = {"source_table": packed, "seed": 3, "schedule": "rotation"}
    balanced = fit(db, f"{packed}_b", f"mst_{packed}_b", 2, **options)
    written = fit(db, f"{packed}_w", f"mst_{packed}_w", 2, **options)
    assert digests(db, balanced.run_id) == digests(db, written.run_id)
    assert db.value(f"SELECT fit_params FROM {packed}_b_info") == given
    plan = db.value("SELECT plan -> 'class_weight' FROM madlib_mop.run WHERE run_id = %s", [balanced.run_id])
    assert dict(map(tuple, plan)) == weights
    assert json.loads(architecture_of(db, balanced.run_id, 1))["class_name"] == "Sequential"


def test_balanced_weights_need_the_rows_of_the_classes(caller, db):
    db.rows("ALTER TABLE one_hot_summary RENAME y_class_counts TO gone")
    try:
        select_configurations(db, "mst_uncounted", [(1, ONE_HOT, "class_weight='balanced'")])
        call = "SELECT madlib.madlib_keras_fit_multiple_model('one_hot', 'bad', 'mst_uncounted', 1)"
        error = caller.refused(caller.rows, call)
    finally:
        db.rows("ALTER TABLE one_hot_summary RENAME gone TO y_class_counts")
    assert "needs the number of rows of each class, which public.one_hot does not record" in error.message
    assert "Pack it again" in error.hint
