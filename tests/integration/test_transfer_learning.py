"""Transfer learning on the iris data: frozen layers keep their bits; materialised features do not change results."""

import json

import pytest

from tests.helpers.iris import ADAM, load_iris, pack_iris
from tests.helpers.training import fit, one_thread, weights

pytestmark = [pytest.mark.one_session, pytest.mark.slow]

FIRST = 4 * (4 * 10 + 10)  # bytes of the first layer's weights
RATES = "ARRAY[$$" + "$$, $$".join(ADAM.format(rate) for rate in (0.001, 0.01)) + "$$]"


def network(frozen=()):
    """Write a 4-10-10-3 perceptron, some of whose layers are frozen."""
    dense = [(10, "relu"), (10, "relu"), (3, "softmax")]
    layers = [{"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 4]}}]
    layers += [
        {"class_name": "Dense",
         "config": {"name": f"d{n}", "units": units, "activation": activation, "trainable": n not in frozen}}
        for n, (units, activation) in enumerate(dense)
    ]  # fmt: skip
    return json.dumps({"class_name": "Sequential", "config": {"name": "net", "layers": layers}})


@pytest.fixture(scope="module")
def bench(db):
    """Iris: 120 rows for training, 30 for validation; a first network, and three that start with its weights."""
    load_iris(db)
    pack_iris(db, 2, "train", "valid")
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [network()])
    select(db, "mst", 1, f"ARRAY[$${ADAM.format(0.01)}$$]")
    fit(db, "first", "mst", 20, seed=3)
    for frozen in ((0,), (0, 1, 2)):
        db.rows(
            "SELECT madlib.load_keras_model('arch', %s::json, (SELECT model_weights FROM first))", [network(frozen)]
        )
    select(db, "mst_first_frozen", 2, RATES)
    select(db, "mst_all_frozen", 3, f"ARRAY[$${ADAM.format(0.01)}$$]")
    return db


def select(db, table, model_id, compile_params):
    db.rows(
        f"SELECT madlib.load_model_selection_table('arch', '{table}', ARRAY[{model_id}], {compile_params},"
        " ARRAY['batch_size=8, epochs=1'])"
    )


def with_features(db, run_id):
    count = "SELECT count(*), count(timing ->> 'features_s') FROM madlib_mop.visit WHERE run_id = %s"
    return db.rows(count, [run_id])[0]


def the_first_layer_keeps_bits() -> bool:
    import keras
    import numpy as np

    from tests.helpers.unit.kernels import features_keep_bits

    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    one_thread()
    first = keras.layers.Dense(10, "relu", trainable=False)
    return features_keep_bits(keras.Sequential([keras.Input((4,)), first, keras.layers.Dense(3)]), [rows], 8)


def test_the_first_layer_stays_and_the_others_learn(bench):
    """MADlib's documented example; a run without materialised features has the same bits and metrics."""
    start = bytes(bench.value("SELECT model_weights FROM arch WHERE model_id = 2"))
    options = {"seed": 5, "schedule": "rotation", "validation_table": "valid", "metrics_compute_frequency": 5}
    run = fit(bench, "moved", "mst_first_frozen", 10, **options)
    off = ("SET madlib_mop.materialise_features = off",)
    through = fit(bench, "moved_through", "mst_first_frozen", 10, settings=off, **options)
    ends = weights(bench, "moved")
    assert ends == weights(bench, "moved_through")
    assert all(end[:FIRST] == start[:FIRST] and end[FIRST:] != start[FIRST:] for end in ends.values())
    assert ends[1] != ends[2]
    metrics = "SELECT mst_key, training_loss, training_metrics, validation_loss, validation_metrics FROM {}_info"
    assert bench.rows(metrics.format("moved")) == bench.rows(metrics.format("moved_through"))
    assert bench.value("SELECT max(validation_metrics_final) FROM moved_info") >= 0.93
    visits, cached = with_features(bench, run.run_id)
    assert visits == 40 and (cached == 40 or not the_first_layer_keeps_bits())
    assert with_features(bench, through.run_id) == (40, 0)
    recorded = "SELECT plan -> 'trainer' ->> 'materialise_features' FROM madlib_mop.run WHERE run_id = %s"
    assert [bench.value(recorded, [r.run_id]) for r in (run, through)] == ["true", "false"]


def test_a_warm_start_goes_on_frozen(bench):
    """Two calls have the same bits as one; the weights in the table of architectures are not read again."""
    fit(bench, "twice", "mst_first_frozen", 2, seed=5, schedule="rotation")
    fit(bench, "twice", "mst_first_frozen", 2, warm_start=True, schedule="rotation")
    fit(bench, "once", "mst_first_frozen", 4, seed=5, schedule="rotation")
    assert weights(bench, "twice") == weights(bench, "once")


def test_nothing_to_train_changes_nothing(bench):
    """With all layers frozen, loss and accuracy equal those of the weights' source at each iteration."""
    fit(bench, "still", "mst_all_frozen", 2, seed=1, metrics_compute_frequency=1)
    assert weights(bench, "still")[1] == weights(bench, "first")[1]
    ((losses, accuracies),) = bench.rows("SELECT training_loss, training_metrics FROM still_info")
    ((loss, accuracy),) = bench.rows("SELECT training_loss_final, training_metrics_final FROM first_info")
    assert losses == pytest.approx([loss] * 2, abs=1e-6) and accuracies == pytest.approx([accuracy] * 2, abs=1e-10)


def test_the_gpus_of_this_host(bench):
    """A table without rows where there are none; NVIDIA's tool that is not installed is an error."""
    from madlib_mop.driver.data.gpus import NVIDIA_SMI, count_gpus

    bench.rows("SELECT madlib.gpu_configuration('gpus')")
    columns = (
        "SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'gpus'::regclass AND attnum > 0"
    )
    assert bench.rows(columns) == [("hostname", "text"), ("gpu_descr", "text")]
    if count_gpus() == 0:
        assert bench.rows("SELECT * FROM gpus") == []
    import pathlib

    import psycopg2

    if not any(pathlib.Path(path).exists() for path in NVIDIA_SMI):
        with pytest.raises(psycopg2.Error, match="nvidia-smi is not installed on this host") as caught:
            bench.rows("SELECT madlib.gpu_configuration('more', source => 'nvidia')")
        assert caught.value.pgcode == "55000"
    with pytest.raises(psycopg2.Error, match="source must be one of tensorflow, nvidia. Received: 'intel'"):
        bench.rows("SELECT madlib.gpu_configuration('more', 'intel')")
    assert "USAGE" in bench.value("SELECT madlib.gpu_configuration()")
