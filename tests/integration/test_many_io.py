"""Models with several inputs and outputs: the weights equal those of plain Keras, bit for bit."""

import numpy as np
import pytest

from tests.helpers.training import beginning, fit, load_digits, one_thread, quiet_keras, script, weights
from tests.helpers.training import select_configurations as select

pytestmark = pytest.mark.one_session

COMPILE = (
    "loss=['categorical_crossentropy', 'mean_squared_error'], optimizer='Adam(lr=0.01)',"
    " metrics=[['accuracy'], ['mae']]"
)


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db, 150, 50)
    for table in ("train_rows", "valid_rows"):
        db.rows(f"ALTER TABLE {table} ADD COLUMN side real[], ADD COLUMN height real[]")
        db.rows(f"UPDATE {table} SET side = ARRAY[y % 2, y / 9.0]::real[], height = ARRAY[y / 10.0]::real[]")
    script(
        db,
        "SET madlib_mop.segments = 2",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y, height', 'x, side', 40, seed := 2)",
        "SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid', 'y, height', 'x, side', 'train', 40)",
    )
    keras = quiet_keras()
    layers = keras.layers
    image, side = keras.Input((8, 8, 1), name="image"), keras.Input((2,), name="side")
    both = layers.Concatenate()([layers.Flatten()(image), side])
    hidden = layers.Dropout(0.2)(layers.Dense(16, activation="relu")(both))
    outputs = [layers.Dense(10, activation="softmax", name="digit")(hidden), layers.Dense(1, name="height")(hidden)]
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [keras.Model([image, side], outputs).to_json()])
    select(db, "mst", [(1, COMPILE, "batch_size=16, epochs=1")])
    return db


def shard(db, segment: int) -> list[np.ndarray]:
    columns = ("x", "side", "y", "height")
    rows = db.rows(
        "SELECT "
        + ", ".join(f"{c}, {c}_shape" for c in columns)
        + " FROM train WHERE __dist_key__ = %s ORDER BY buffer_id",
        [segment],
    )
    arrays = []
    for i, column in enumerate(columns):
        dtype = np.int16 if column == "y" else np.float32
        parts = [np.frombuffer(row[2 * i], dtype).reshape(row[2 * i + 1]) for row in rows]
        arrays.append(np.concatenate(parts).astype(np.float32))
    return arrays


def test_two_inputs_and_two_outputs(bench):
    import keras

    run = fit(bench, "out", "mst", 2, seed=3, validation_table="valid")
    keras.utils.set_random_seed(int(np.random.SeedSequence([3, 1]).generate_state(1)[0]))
    model = keras.models.model_from_json(bench.value("SELECT model_arch::text FROM out"))
    model.compile(
        keras.optimizers.Adam(0.01), ["categorical_crossentropy", "mean_squared_error"], metrics=[["accuracy"], ["mae"]]
    )
    visits = bench.rows(
        "SELECT epoch, segment_id FROM madlib_mop.visit WHERE run_id = %s ORDER BY epoch, position", [run.run_id]
    )
    for epoch, segment in visits:
        x, side, y, height = shard(bench, segment)
        order = np.random.default_rng([3, 1, epoch, segment, 0]).permutation(len(x))
        model.fit(
            [x[order], side[order]],
            [y[order], height[order]],
            batch_size=16,
            shuffle=False,
            verbose=0,
            callbacks=beginning(3, 1, epoch, segment, 0),
        )
    expected = b"".join(np.asarray(w, np.float32).tobytes() for w in model.get_weights())
    assert weights(bench, "out")[1] == expected
    planned = (
        "SELECT (s ->> 'segment_id')::integer, (s ->> 'n_bytes')::bigint FROM madlib_mop.run,"
        " jsonb_array_elements(plan #> '{training,segments}') AS s WHERE run_id = %s ORDER BY 1"
    )
    loaded = (
        "SELECT segment_id, n_bytes FROM madlib_mop.segment WHERE run_id = %s AND data_set = 'training' ORDER BY 1"
    )
    assert bench.rows(planned, [run.run_id]) == bench.rows(loaded, [run.run_id]), "the bytes of all columns"
    names = [row[0] for row in bench.rows("SELECT DISTINCT name FROM madlib_mop.metric WHERE ordinal > 0")]
    assert sorted(names) == ["digit_accuracy", "height_mae"]
    class_values, num_classes = bench.rows("SELECT y_class_values, num_classes FROM out_summary")[0]
    assert class_values == list(range(10)) and num_classes[0] == 10
