"""Materialised features: a grid of heads on one frozen convolutional base, trained with and without them."""

import numpy as np
import psycopg2
from hopper import SCHEMA, load, seconds_of
from ratios import Ratio
from workload import SHAPE, images

HEADS = (None, 64)
LEARNING_RATES = (1e-2, 1e-3, 1e-4, 1e-5)
_COMPUTED = """
SELECT sum((timing ->> 'compute_s')::float8), coalesce(sum((timing ->> 'features_s')::float8), 0)
FROM madlib_mop.visit WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run)
"""


def compare_features(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Train the grid twice, with the setting off and on, check that the weights are the same bits, print the times."""
    x, y, x_valid, y_valid, source = images(n_rows, n_rows // 4)
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            load(cursor, x, y, x_valid, y_valid)
            for head in HEADS:
                model = _model(head)
                blob = np.concatenate([w.ravel() for w in model.get_weights()]).astype(np.float32).tobytes()
                cursor.execute("SELECT madlib.load_keras_model('arch', %s::json, %s)", [model.to_json(), blob])
            _configure(cursor)
            seconds, computed = {}, {}
            for setting in ("off", "on"):
                cursor.execute(f"SET madlib_mop.materialise_features = {setting}")
                seconds[setting] = seconds_of(lambda s=setting: _fit(cursor, f"models_{s}", n_epochs))
                cursor.execute(_COMPUTED)
                computed[setting] = cursor.fetchone()
            cursor.execute(
                "SELECT count(*), count(*) FILTER (WHERE a.model_weights = b.model_weights)"
                " FROM models_off a JOIN models_on b USING (mst_key)"
            )
            n_models, n_same = cursor.fetchone()
            cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    finally:
        connection.close()
    (through_s, _), (tail_s, features_s) = computed["off"], computed["on"]
    print(f"\nfeatures: {n_models} heads behind a frozen base, {n_rows} rows of {source}, {n_epochs} epochs")
    print(f"  through the frozen layers              {seconds['off']:7.1f} s, of it training {through_s:7.1f} s")
    print(f"  on materialised features               {seconds['on']:7.1f} s, of it training {tail_s:7.1f} s,")
    print(f"                                                   computing and trying features {features_s:7.1f} s")
    ratio = Ratio("features: with / without", seconds["on"] / seconds["off"])
    print(ratio)
    print(f"  models with the same weights           {n_same:4d} of {n_models}", flush=True)
    return [ratio]


def _model(head: int | None):
    """Return a model of a head on a frozen base of three convolutions, which is equal in all models."""
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = [keras.Input(SHAPE)]
    for n in (16, 16, 32):
        model.append(layers.Conv2D(n, 3, activation="relu", padding="same", trainable=False))
        model.append(layers.MaxPooling2D(2))
    model += [layers.Flatten(), *([layers.Dense(head, activation="relu")] if head else [])]
    model.append(layers.Dense(10, activation="softmax"))
    return keras.Sequential(model)


def _configure(cursor) -> None:
    params = [
        f"loss='categorical_crossentropy', optimizer='Adam(lr={r})', metrics=['accuracy']" for r in LEARNING_RATES
    ]
    cursor.execute(
        "SELECT madlib.load_model_selection_table('arch', 'mst', %s, %s, ARRAY['batch_size=32, epochs=1'])",
        [list(range(1, len(HEADS) + 1)), params],
    )


def _fit(cursor, table: str, n_epochs: int) -> None:
    cursor.execute(
        "SELECT madlib.madlib_keras_fit_multiple_model('train', %s, 'mst', %s, validation_table := 'valid', seed := 1,"
        " metrics_compute_frequency := %s, schedule := 'rotation')",
        [table, n_epochs, n_epochs],
    )
