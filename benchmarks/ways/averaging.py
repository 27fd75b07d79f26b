"""Model averaging in the database: `madlib_keras_fit` for one configuration after the other, from the same weights."""

from collections.abc import Iterator

import numpy as np
from workloads import WORKLOADS

from ways.contract import Spec, run_way
from ways.in_database import Trained, compile_params, fit_params, newest_run, train_in_database


def prepare(cursor, spec: Spec) -> None:
    """Write the architecture of each configuration, with the same start weights as in every other way."""
    workload = WORKLOADS[spec.workload]
    for mst_key in spec.mst_keys:
        model = workload.compiled(mst_key, spec.seed)
        weights = np.concatenate([w.ravel() for w in model.get_weights()]).astype(np.float32).tobytes()
        cursor.execute("SELECT madlib.load_keras_model('arch', %s::json, %s::bytea)", [model.to_json(), weights])


def train(cursor, spec: Spec) -> Iterator[Trained]:
    """Train each configuration with one call."""
    for model_id, mst_key in enumerate(spec.mst_keys, 1):
        c = WORKLOADS[spec.workload].configurations[mst_key - 1]
        cursor.execute(
            "SELECT madlib.madlib_keras_fit('train', %s, 'arch', %s, %s, %s, %s, validation_table := 'test',"
            " metrics_compute_frequency := 1, seed := %s)",
            [
                f"model_{mst_key}", model_id, compile_params(c.learning_rate), fit_params(c.batch_size),
                spec.n_epochs, spec.seed,
            ],
        )  # fmt: skip
        run_id = newest_run(cursor)
        cursor.execute("SELECT mst_key FROM madlib_mop.model WHERE run_id = %s", [run_id])
        ((key,),) = cursor.fetchall()
        yield Trained(run_id, {key: mst_key})


if __name__ == "__main__":
    run_way(lambda spec: train_in_database(spec, prepare, train))
