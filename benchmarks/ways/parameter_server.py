"""Data parallelism by a parameter server: each worker pulls the weights for each mini-batch, and pushes gradients.

It is TensorFlow's asynchronous ParameterServerStrategy: one server, the workers, and a coordinator that schedules work.
Keras 3.15.1 models and optimizers live in it, but `model.fit` ends with "ValueError: To use this dataset, you need to
pass this dataset to ClusterCoordinator.create_per_worker_dataset.", so the steps are our own, scheduled by
`ClusterCoordinator.schedule`. Adam's update and the moving statistics of batch normalisation are on the server, which
gets the workers' pushes in any order: weights differ from run to run. Each worker evaluates the model on its own rows.

A worker has one thread for arithmetic; TensorFlow's servers need a second one, which waits for others.
"""

import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from workloads import WORKLOADS, Rows

from ways.cluster import Part, Task, be_task, outcome_of, run_cluster, start_of
from ways.contract import Epoch, Outcome, Span, Spec, digest_of, now, run_way

# Mini-batches that are handed out at once. Handing out costs as much as a small step, so there are several (each still
# pulls and pushes for itself), but few enough that no worker waits long at the end of an epoch.
_MOST_STEPS = 10
_CLOSURES_A_WORKER = 8


def work(spec: Spec) -> Outcome:
    """Distribute the rows, run the cluster, and collect the coordinator's results."""
    rows = Rows.load(Path(spec.rows))
    data_bytes = 0
    for worker in range(spec.n_workers):
        directory = spec.worker_directory(worker)
        for name in ("x", "y", "x_test", "y_test"):
            array = np.ascontiguousarray(getattr(rows, name)[worker :: spec.n_workers])
            array.tofile(directory / name)
            data_bytes += 0 if name.endswith("test") else array.nbytes
        np.float64(worker).tofile(directory / "worker")
    jobs = {"worker": spec.n_workers, "ps": 1, "chief": 1}
    return outcome_of(run_cluster("parameter_server", spec, jobs, "chief"), data_bytes)


def _be_server(spec: Spec, task: Task) -> None:
    import tensorflow as tf

    if task.job == "worker":
        # the coordinator's graphs contain relative file names, equal on all workers
        os.chdir(spec.worker_directory(task.index))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    tf.distribute.Server(resolver.cluster_spec(), task.job, task.index, config=threads).join()


class _Graphs:
    """The model of one architecture and L2 strength, with its graphs; configurations use it one after the other."""

    def __init__(self, strategy, spec: Spec, mst_key: int):
        import tensorflow as tf

        self._strategy = strategy
        with strategy.scope():
            self.model = WORKLOADS[spec.workload].compiled(mst_key, spec.seed)
            self.model.optimizer.build(self.model.trainable_variables)
        self.train = tf.function(self._train, autograph=False)
        self._steps = tf.function(self._train_steps, autograph=False)
        rows = [tf.TensorSpec((None, *shape)) for shape in (self.model.input_shape[1:], self.model.output_shape[1:])]
        # One concrete function for all workers: a tf.function would be traced for each device.
        evaluate = tf.function(self._n_wrong, autograph=False)
        self.n_wrong = evaluate.get_concrete_function(*rows, tf.TensorSpec((), tf.int32))

    def _train(self, batches, n_steps):
        """Train some steps on a worker; return its number, start and end, as float64."""
        import tensorflow as tf

        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            worker = self._steps(batches, n_steps)
        with tf.control_dependencies([worker]):
            return tf.stack([worker, begin, tf.timestamp()])

    def _train_steps(self, batches, n_steps):
        import tensorflow as tf

        def body(i, _):
            x, y, worker = next(batches)
            self._strategy.run(self._step, args=(x, y))
            return i + 1, worker

        start = [0, tf.constant(0, tf.float64)]
        return tf.while_loop(lambda i, _: i < n_steps, body, start, parallel_iterations=1)[1]

    def _step(self, x, y):
        import keras
        import tensorflow as tf

        model = self.model
        weights, others = self._pulled()
        with tf.GradientTape() as tape:
            tape.watch(weights)
            told, others, penalties = model.stateless_call(weights, others, x, training=True, return_losses=True)
            loss = keras.losses.CategoricalCrossentropy()(y, told) + sum(penalties)
        gradients = tape.gradient(loss, weights)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        for variable, value in zip(model.non_trainable_variables, others, strict=True):
            variable.assign(value)

    def _pulled(self):
        """Return the model's variables as tensors, so that each is read over the network once."""
        import tensorflow as tf

        groups = (self.model.trainable_variables, self.model.non_trainable_variables)
        return [[tf.identity(variable.value) for variable in group] for group in groups]

    def _n_wrong(self, x, y, batch_size):
        """Count the rows whose class the model predicts wrongly; return start and end times too."""
        import tensorflow as tf

        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            pulled = self._pulled()

        def body(start, n_wrong):
            told, _ = self.model.stateless_call(*pulled, x[start : start + batch_size], training=False)
            wrong = tf.argmax(told, 1) != tf.argmax(y[start : start + batch_size], 1)
            return start + batch_size, n_wrong + tf.reduce_sum(tf.cast(wrong, tf.int32))

        n_rows = tf.shape(x)[0]
        n_wrong = tf.while_loop(lambda start, _: start < n_rows, body, [0, 0], parallel_iterations=1)[1]
        with tf.control_dependencies([n_wrong]):
            return tf.stack([tf.cast(n_wrong, tf.float64), begin, tf.timestamp()])


class _Workers:
    """The coordinator's interface to the workers: it schedules work on the rows in their memory."""

    def __init__(self, strategy, spec: Spec):
        import tensorflow as tf

        workload = WORKLOADS[spec.workload]
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._threads = ThreadPoolExecutor(spec.n_workers)
        self._n_workers = spec.n_workers
        with np.load(spec.rows) as rows:
            self._shapes = {name: (-1, *rows[name].shape[1:]) for name in ("x", "y", "x_test", "y_test")}
            self._n_rows, self._n_test = len(rows["y"]), len(rows["y_test"])
        self._rows = []
        for worker in range(spec.n_workers):
            with tf.device(_device(worker)):
                self._rows.append({name: self._read(name) for name in self._shapes})
        sizes = {workload.configurations[key - 1].batch_size for key in spec.mst_keys}
        self._batches = {size: self._endless_batches(size, spec.seed) for size in sizes}

    def train(self, graphs: _Graphs, mst_key: int, batch_size: int) -> list[Span]:
        """Train one epoch, with the same total number of mini-batches as sequential training."""
        import tensorflow as tf

        n_steps = math.ceil(self._n_rows / batch_size)
        most = max(1, min(_MOST_STEPS, n_steps // (_CLOSURES_A_WORKER * self._n_workers)))
        steps = [tf.constant(min(most, n_steps - done)) for done in range(0, n_steps, most)]
        batches = self._batches[batch_size]
        told = [self._coordinator.schedule(graphs.train, (batches, n)) for n in steps]
        self._coordinator.join()
        workers, begins, ends = np.array(self._coordinator.fetch(told)).T
        return [
            Span(mst_key, worker, begins[workers == worker].min(), ends[workers == worker].max())
            for worker in range(self._n_workers)
            if worker in workers
        ]

    def evaluate(self, graphs: _Graphs, mst_key: int, batch_size: int) -> tuple[list[Span], float, float]:
        """Return the spans and the errors on training and test rows; each worker evaluates its own rows."""
        import tensorflow as tf

        def count(worker: int):
            rows = self._rows[worker]
            with tf.device(_device(worker)):
                size = tf.constant(batch_size)
                parts = [graphs.n_wrong(rows["x" + part], rows["y" + part], size).numpy() for part in ("", "_test")]
            return worker, *parts

        spans, n_wrong = [], np.zeros(2)
        for worker, training, test in self._threads.map(count, range(self._n_workers)):
            spans.append(Span(mst_key, worker, training[1], test[2], "evaluate"))
            n_wrong += (training[0], test[0])
        return spans, *(n_wrong / (self._n_rows, self._n_test))

    def _endless_batches(self, batch_size: int, seed: int):
        """Return each worker's mini-batches, endlessly, with a new shuffle for each pass over its shard."""
        import tensorflow as tf

        def batches():
            x, y = self._read("x"), self._read("y")
            worker = tf.io.decode_raw(tf.io.read_file("worker"), tf.float64)[0]
            n_rows = tf.shape(x, tf.int64)[0]
            chosen = tf.data.Dataset.range(n_rows).shuffle(n_rows, seed).repeat().batch(batch_size)
            options = tf.data.Options()
            options.threading.private_threadpool_size = 1
            return chosen.map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows), worker)).with_options(options)

        return iter(self._coordinator.create_per_worker_dataset(batches))

    def _read(self, name: str):
        import tensorflow as tf

        return tf.reshape(tf.io.decode_raw(tf.io.read_file(name), tf.float32), self._shapes[name])


def _device(worker: int) -> str:
    return f"/job:worker/replica:0/task:{worker}"


def _coordinate(spec: Spec, task: Task) -> Part:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    workers = _Workers(strategy, spec)
    part = Part(ready_at=now())
    starts, graphs = {}, {}
    # before the loop, because TensorFlow optimises its graphs again after each change of the seed
    for mst_key in spec.mst_keys:
        starts[mst_key] = start_of(spec, mst_key)
        if starts[mst_key].graph not in graphs:
            graphs[starts[mst_key].graph] = _Graphs(strategy, spec, mst_key)
    for mst_key in spec.mst_keys:
        shared = graphs[starts[mst_key].graph]
        starts[mst_key].begin_in(shared.model)
        batch_size = WORKLOADS[spec.workload].configurations[mst_key - 1].batch_size
        for epoch in range(1, spec.n_epochs + 1):
            part.spans.extend(workers.train(shared, mst_key, batch_size))
            spans, train_error, test_error = workers.evaluate(shared, mst_key, batch_size)
            part.spans.extend(spans)
            part.epochs.append(Epoch(mst_key, epoch, now(), test_error, train_error))
        part.digests[mst_key] = digest_of(shared.model.get_weights())
    return part


if __name__ == "__main__":
    if "--task" in sys.argv:
        be_task(lambda spec, task: _coordinate(spec, task) if task.job == "chief" else _be_server(spec, task))
    else:
        run_way(work)
