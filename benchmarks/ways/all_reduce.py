"""Data parallelism by all-reduce: every worker has the whole model, and gradients go around a ring at each mini-batch.

It is TensorFlow's MultiWorkerMirroredStrategy with ring collectives over gRPC. Keras 3.15.1 models and optimizers work
in it, but `model.fit` ends with "ValueError: Attempt to convert a value (PerReplica:{...}) with an unsupported type
(<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor", so the loop over mini-batches is our own, in
one graph. A mini-batch of the configuration's size is divided: each worker takes its part from its own shard.
Batch normalisation has statistics of its own on each worker, with which that worker evaluates its part of the rows;
the digest is of the first worker's.
"""

import dataclasses
import functools
import math
import sys
from pathlib import Path

import numpy as np
from workloads import WORKLOADS, Rows

from madlib_mop.trainer.seeds import pass_permutation
from ways.cluster import Part, Task, be_task, outcome_of, run_cluster, start_of
from ways.contract import Epoch, Outcome, Span, Spec, digest_of, now, run_way
from ways.training import one_thread

_SHARD = "training.npz"


def work(spec: Spec) -> Outcome:
    """Distribute the rows, run the workers, and collect their results."""
    data_bytes = share_out(spec)
    return outcome_of(run_cluster("all_reduce", spec, {"worker": spec.n_workers}, "worker"), data_bytes)


def share_out(spec: Spec) -> int:
    """Write each worker's shard of the training rows; return the bytes of all shards."""
    rows = Rows.load(Path(spec.rows))
    n_bytes = 0
    for worker in range(spec.n_workers):
        shard = dataclasses.replace(rows, x=rows.x[worker :: spec.n_workers], y=rows.y[worker :: spec.n_workers])
        n_bytes += shard.save_training(spec.worker_directory(worker) / _SHARD)
    return n_bytes


class Mirrored:
    """A worker's member of TensorFlow's ring; those of other libraries have the same interface."""

    def __init__(self):
        import tensorflow as tf

        experimental = tf.distribute.experimental
        ring = experimental.CommunicationOptions(implementation=experimental.CommunicationImplementation.RING)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
        self.scope = self._strategy.scope
        self.run = self._strategy.run

    def averaged(self, gradients: list) -> list:
        """Return the gradients to apply: Keras divides the loss by the number of workers, and sums the gradients."""
        return gradients

    def summed(self, result):
        """Return the sum of the workers' results of `run`."""
        return self._strategy.reduce("SUM", result, axis=None)


class _Graphs:
    """The model of one architecture and L2 strength, with its graphs; configurations use it one after the other."""

    def __init__(self, ring, spec: Spec, mst_key: int):
        import tensorflow as tf

        self._ring, self._n_workers = ring, spec.n_workers
        with ring.scope():
            self.model = WORKLOADS[spec.workload].compiled(mst_key, spec.seed)
            self.model.optimizer.build(self.model.trainable_variables)
        # The numbers of rows differ between the workers' shards, and between training and test rows.
        rows = [tf.TensorSpec((None, *shape)) for shape in (self.model.input_shape[1:], self.model.output_shape[1:])]
        orders, number = tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32)
        self.train = tf.function(self._train, [*rows, orders, number, number], autograph=False)
        self.error = tf.function(self._error, [*rows, number], autograph=False)

    def _train(self, x, y, order, batch_size, n_steps):
        """Train on the shard's rows in an order (int32 ``(n_rows,)``); ``batch_size`` is the sum over all workers."""
        import tensorflow as tf

        n_workers, n_rows = self._n_workers, tf.size(order)

        def body(i):
            # All workers take part in every step: a worker whose shard has ended repeats its last row.
            start = tf.minimum(i * batch_size // n_workers, n_rows - 1)
            rows = order[start : tf.maximum((i + 1) * batch_size // n_workers, start + 1)]
            self._ring.run(self._step, args=(tf.gather(x, rows), tf.gather(y, rows)))
            return i + 1

        tf.while_loop(lambda i: i < n_steps, body, [0], parallel_iterations=1)

    def _step(self, x, y):
        import tensorflow as tf

        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.model.compute_loss(x, y, self.model(x, training=True), training=True)
        gradients = self._ring.averaged(tape.gradient(loss, weights))
        self.model.optimizer.apply_gradients(zip(gradients, weights, strict=True))

    def _error(self, x, y, batch_size):
        """Return the fraction of rows, over all workers, whose class the model predicts wrongly."""
        import tensorflow as tf

        n_rows = tf.shape(x)[0]

        def body(start, n_wrong):
            told = self.model(x[start : start + batch_size], training=False)
            wrong = tf.argmax(told, 1) != tf.argmax(y[start : start + batch_size], 1)
            return start + batch_size, n_wrong + tf.reduce_sum(tf.cast(wrong, tf.int32))

        def counts():
            n_wrong = tf.while_loop(lambda start, _: start < n_rows, body, [0, 0], parallel_iterations=1)[1]
            return tf.cast([n_wrong, n_rows], tf.float64)

        n_wrong, n_all = tf.unstack(self._ring.summed(self._ring.run(counts)))
        return n_wrong / n_all


def train_together(make_ring, spec: Spec, task: Task) -> Part:
    """Run one worker; it joins the ring right after the number of TensorFlow's threads is set."""
    one_thread()
    import tensorflow as tf

    ring = make_ring()
    with np.load(spec.rows) as everything:
        n_rows = len(everything["y"])
    rows = Rows.load(Path(spec.rows), spec.worker_directory(task.index) / _SHARD)
    training = [tf.constant(array) for array in (rows.x, rows.y)]
    test = [tf.constant(array[task.index :: spec.n_workers]) for array in (rows.x_test, rows.y_test)]
    part = Part(ready_at=now())
    starts, graphs = {}, {}
    # before the loop, because TensorFlow optimises its graphs again after each change of the seed
    for mst_key in spec.mst_keys:
        begin = now()
        starts[mst_key] = start_of(spec, mst_key)
        if starts[mst_key].graph not in graphs:
            graphs[starts[mst_key].graph] = _Graphs(ring, spec, mst_key)
        part.spans.append(Span(mst_key, task.index, begin, now()))
    for mst_key in spec.mst_keys:
        begin = now()
        c = WORKLOADS[spec.workload].configurations[mst_key - 1]
        shared = graphs[starts[mst_key].graph]
        starts[mst_key].begin_in(shared.model)
        batch_size, n_steps = tf.constant(c.batch_size), tf.constant(math.ceil(n_rows / c.batch_size))
        for epoch in range(1, spec.n_epochs + 1):
            order = pass_permutation(spec.seed, mst_key, epoch, task.index, 0, len(rows.x))
            shared.train(*training, tf.constant(order, tf.int32), batch_size, n_steps)
            trained = now()
            train_error, test_error = (float(shared.error(*some, batch_size)) for some in (training, test))
            evaluated = now()
            part.spans.append(Span(mst_key, task.index, begin, trained))
            part.spans.append(Span(mst_key, task.index, trained, evaluated, "evaluate"))
            if task.index == 0:
                part.epochs.append(Epoch(mst_key, epoch, evaluated, test_error, train_error))
            begin = evaluated
        if task.index == 0:
            part.digests[mst_key] = digest_of(shared.model.get_weights())
    return part


if __name__ == "__main__":
    if "--task" in sys.argv:
        be_task(functools.partial(train_together, Mirrored))
    else:
        run_way(work)
