"""The oracle of promise 1: a plain Keras script that visits the same shards in the recorded order with the same seed.

It uses only the documented orders of madlib_mop: `model.fit` on each shard with the same optimizer, one thread.
"""

import numpy as np

from madlib_mop.trainer.data.parts import GROUPS
from madlib_mop.trainer.data.state import decode_state
from tests.helpers.training import ADAM, SGD, beginning, weights


def train(
    db, run_id: int, mst_key: int, optimizer, batch_size: int, epochs: int, shuffle: bool, start=None,
    loss="categorical_crossentropy", until_epoch: int | None = None, optimizer_values=None,
) -> bytes:  # fmt: skip
    """Train one configuration as recorded in a run; return its weights, float32, in get_weights() order.

    Parameters
    ----------
    db : Database
    run_id, mst_key : int
    optimizer : callable
        Returns the Keras optimizer.
    batch_size, epochs : int
        The fit parameters: rows of a mini-batch, passes over the rows in a visit.
    shuffle : bool
    start : list of ndarray or None
        Start weights, in get_weights() order.
    loss : str or callable
        Argument of Keras' compile.
    until_epoch : int or None
        The last epoch to train; None: the last one of the run.
    optimizer_values : list of ndarray or None
        Start values of the optimizer's variables.
    """
    import keras

    arch, seed, source = db.rows(
        "SELECT m.model_arch::text, r.seed, r.source_table FROM madlib_mop.run r JOIN madlib_mop.model m USING (run_id)"
        " WHERE run_id = %s AND mst_key = %s",
        [run_id, mst_key],
    )[0]
    visits = db.rows(
        "SELECT epoch, segment_id FROM madlib_mop.visit WHERE run_id = %s AND mst_key = %s ORDER BY epoch, position",
        [run_id, mst_key],
    )
    keras.utils.set_random_seed(int(np.random.SeedSequence([seed, mst_key]).generate_state(1)[0]))
    model = keras.models.model_from_json(arch)
    if start is not None:
        model.set_weights(start)
    model.compile(optimizer=optimizer(), loss=loss, metrics=["accuracy"])
    if optimizer_values is not None:
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(model.optimizer.variables, optimizer_values, strict=True):
            variable.assign(value)
    for epoch, segment in visits:
        if until_epoch is not None and epoch > until_epoch:
            break
        x, y = shard(db, source, segment)
        for pass_ in range(epochs):
            order = np.arange(len(x))
            if shuffle:
                order = np.random.default_rng([seed, mst_key, epoch, segment, pass_]).permutation(len(x))
            callbacks = beginning(seed, mst_key, epoch, segment, pass_)
            model.fit(x[order], y[order], batch_size=batch_size, shuffle=False, verbose=0, callbacks=callbacks)
    return b"".join(np.asarray(w, np.float32).tobytes() for w in model.get_weights())


def optimizer_of(compile_params: str):
    """Return a function that creates the plain Keras optimizer of a configuration's text."""
    import keras

    if compile_params == SGD:
        schedule = keras.optimizers.schedules.InverseTimeDecay(0.05, decay_steps=1, decay_rate=0.01)
        return lambda: keras.optimizers.SGD(schedule, momentum=0.9)
    rate = 0.01 if compile_params == ADAM else 0.003
    return lambda: keras.optimizers.Adam(rate)


def assert_exact(db, run_id: int, table: str, configurations, parent: int | None = None) -> None:
    """Assert that every model's weights equal the oracle's; with ``parent``, continued from that run's states."""
    ours = weights(db, table)
    assert sorted(ours) == list(range(1, len(configurations) + 1))
    for mst_key, (_, compile_params, fit_params) in enumerate(configurations, 1):
        fields = dict(item.split("=") for item in fit_params.replace(" ", "").split(","))
        theirs = train(
            db, run_id, mst_key, optimizer_of(compile_params), int(fields["batch_size"]), int(fields["epochs"]),
            fields.get("shuffle") != "False", **(_end_of(db, parent, mst_key) if parent is not None else {}),
        )  # fmt: skip
        assert ours[mst_key] == theirs, f"mst_key {mst_key} of run {run_id} differs from plain Keras"


def _end_of(db, run_id: int, mst_key: int) -> dict:
    """Return the values at the end of a model's training, as arguments of `train`."""
    parts = db.rows(
        "SELECT s.data FROM madlib_mop.model m JOIN madlib_mop.model_state s USING (run_id, mst_key)"
        " WHERE run_id = %s AND mst_key = %s AND s.slot = m.state_slot AND s.version = m.state_version ORDER BY part",
        [run_id, mst_key],
    )
    state = decode_state([bytes(part) for (part,) in parts])
    read = {group: [state.read(group, i) for i in range(len(state.specs(group)))] for group in GROUPS}
    return {"start": read["weights"], "optimizer_values": read["optimizer"]}


def shard(db, table: str, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a segment's rows in their order: x float32, y one-hot float32."""
    rows = db.rows(f"SELECT x, x_shape, y, y_shape FROM {table} WHERE __dist_key__ = %s ORDER BY buffer_id", [segment])
    x = np.concatenate([np.frombuffer(row[0], np.float32).reshape(row[1]) for row in rows])
    y = np.concatenate([np.frombuffer(row[2], np.int16).reshape(row[3]) for row in rows])
    return x, y.astype(np.float32)


def train_averaged(
    db, run_id: int, optimizer, batch_size: int, epochs: int, shuffle: bool, start=None, until_epoch=None
) -> bytes:
    """Run model averaging in plain Keras and NumPy: per iteration p calls of `model.fit` from one state, then the mean.

    Parameters and result as for `train`.
    """
    import keras

    arch, seed, source, first_epoch, last_epoch = db.rows(
        "SELECT m.model_arch::text, r.seed, r.source_table, m.first_epoch, m.last_epoch FROM madlib_mop.run r"
        " JOIN madlib_mop.model m USING (run_id) WHERE run_id = %s",
        [run_id],
    )[0]
    last_epoch = until_epoch or last_epoch
    segments = [key for (key,) in db.rows(f"SELECT DISTINCT __dist_key__ FROM {source} ORDER BY 1")]
    models, shards = {}, {}
    for segment in segments:
        keras.utils.set_random_seed(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))
        model = models[segment] = keras.models.model_from_json(arch)
        if start is not None:
            model.set_weights(start)
        model.compile(optimizer=optimizer(), loss="categorical_crossentropy", metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
        shards[segment] = shard(db, source, segment)
    n_rows = [len(x) for x, _ in shards.values()]
    state = None
    for epoch in range(first_epoch, last_epoch + 1):
        for segment, model in models.items():
            if state is not None:
                for variable, value in zip(_variables(model), state, strict=True):
                    variable.assign(value)
            x, y = shards[segment]
            for pass_ in range(epochs):
                order = np.arange(len(x))
                if shuffle:
                    order = np.random.default_rng([seed, 1, epoch, segment, pass_]).permutation(len(x))
                callbacks = beginning(seed, 1, epoch, segment, pass_)
                model.fit(x[order], y[order], batch_size=batch_size, shuffle=False, verbose=0, callbacks=callbacks)
        trained = [[v.numpy() for v in _variables(model)] for model in models.values()]
        state = [_mean(values, n_rows) for values in zip(*trained, strict=True)]
    first = next(iter(models.values()))
    for variable, value in zip(_variables(first), state, strict=True):
        variable.assign(value)
    return b"".join(np.asarray(w, np.float32).tobytes() for w in first.get_weights())


def _variables(model) -> list:
    return [*model.variables, *model.optimizer.variables]


def _mean(values: tuple[np.ndarray, ...], n_rows: list[int]) -> np.ndarray:
    """Return the average, weighted by rows, in float64; of integers, those of the first segment."""
    if values[0].dtype.kind != "f":
        return values[0]
    total = n_rows[0] * values[0].astype(np.float64)
    for n, value in zip(n_rows[1:], values[1:], strict=True):
        total = total + n * value.astype(np.float64)
    return (total / sum(n_rows)).astype(values[0].dtype)
