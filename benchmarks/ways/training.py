"""Training of one configuration with plain Keras, for the ways whose workers train whole configurations."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workloads import WORKLOADS, Rows

from ways.contract import Epoch, Outcome, Span, Spec, digest_of, now, tensorflow_versions


def one_thread() -> None:
    """Import TensorFlow with one thread, as in every worker."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def copy_rows(spec: Spec) -> int:
    """Copy the training rows to each worker; return the bytes of all copies."""
    rows = Rows.load(Path(spec.rows))
    return sum(rows.save_training(path_of_copy(spec, worker)) for worker in range(spec.n_workers))


def path_of_copy(spec: Spec, worker: int) -> Path:
    """Return the path of a worker's own copy of the training rows."""
    return spec.worker_directory(worker) / "training.npz"


@dataclass(frozen=True)
class Trained:
    """One configuration's part of an Outcome."""

    spans: list[Span]
    epochs: list[Epoch]
    digest: str

    def told(self, ready_at: float) -> dict:
        """Return the JSON form, with the time at which its worker was ready."""
        return dataclasses.asdict(self) | {"ready_at": ready_at}


def outcome_of(told: dict[int, dict], data_bytes: int, versions: dict[str, str]) -> Outcome:
    """Return the Outcome from the workers' results of each configuration, by mst_key."""
    return Outcome(
        ready_at=min(part["ready_at"] for part in told.values()),
        spans=[Span(**span) for part in told.values() for span in part["spans"]],
        epochs=[Epoch(**epoch) for part in told.values() for epoch in part["epochs"]],
        digests={str(mst_key): part["digest"] for mst_key, part in told.items()},
        data_bytes=data_bytes,
        versions=tensorflow_versions() | versions,
    )


def train(
    workload: str,
    rows: Rows,
    mst_key: int,
    n_epochs: int,
    seed: int,
    worker: int,
    after_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train one configuration and evaluate it on all rows after each epoch.

    Parameters
    ----------
    workload : str
    rows : Rows
    mst_key, n_epochs, seed : int
    worker : int
        For the spans.
    after_epoch : callable
        Called after each epoch.
    """
    spans, epochs = [], []
    begin = now()
    model = WORKLOADS[workload].compiled(mst_key, seed)
    batch_size = WORKLOADS[workload].configurations[mst_key - 1].batch_size
    for epoch in range(1, n_epochs + 1):
        model.fit(rows.x, rows.y, batch_size=batch_size, epochs=1, verbose=0)
        trained = now()
        train_error, test_error = (
            1 - model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True)["accuracy"]
            for x, y in ((rows.x, rows.y), (rows.x_test, rows.y_test))
        )
        evaluated = now()
        spans += [
            Span(mst_key, worker, begin, trained),
            Span(mst_key, worker, trained, evaluated, "evaluate"),
        ]
        epochs.append(Epoch(mst_key, epoch, evaluated, test_error, train_error))
        after_epoch(epochs[-1])
        begin = now()
    return Trained(spans, epochs, digest_of(model.get_weights()))
