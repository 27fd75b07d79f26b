"""Model hopping in the database: one call of `madlib_keras_fit_multiple_model`, n_workers segments of one server."""

from collections.abc import Iterator

from workloads import WORKLOADS

from ways.contract import Spec, run_way
from ways.in_database import Trained, compile_params, fit_params, newest_run, train_in_database


def prepare(cursor, spec: Spec) -> None:
    """Write the architectures and the model selection table."""
    workload = WORKLOADS[spec.workload]
    model_ids: dict[tuple[int, float], int] = {}
    cursor.execute("CREATE TABLE mst (mst_key integer, model_id integer, compile_params varchar, fit_params varchar)")
    cursor.execute("CREATE TABLE mst_summary (model_arch_table varchar, object_table varchar)")
    cursor.execute("INSERT INTO mst_summary VALUES ('arch')")
    for mst_key in spec.mst_keys:
        c = workload.configurations[mst_key - 1]
        key = (c.architecture, c.l2)
        if key not in model_ids:
            cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [workload.build(*key).to_json()])
            model_ids[key] = len(model_ids) + 1
        row = [mst_key, model_ids[key], compile_params(c.learning_rate), fit_params(c.batch_size)]
        cursor.execute("INSERT INTO mst VALUES (%s, %s, %s, %s)", row)


def train(cursor, spec: Spec) -> Iterator[Trained]:
    """Train all configurations with one call."""
    cursor.execute(
        "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', %s, validation_table := 'test',"
        " metrics_compute_frequency := 1, seed := %s)",
        [spec.n_epochs, spec.seed],
    )
    yield Trained(newest_run(cursor), {key: key for key in spec.mst_keys})


if __name__ == "__main__":
    run_way(lambda spec: train_in_database(spec, prepare, train))
