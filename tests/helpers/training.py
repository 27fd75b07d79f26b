"""Helpers of many tests: the digits in plain and packed tables, small architectures, configurations, a call of fit.

Everything uses the SQL functions, as a user does. The architectures are those of promise 1, an MLP with dropout and
batch normalisation and a small CNN, and one that is traced in half of their time.
"""

import functools
import json
import os
from dataclasses import dataclass

import numpy as np

from madlib_mop.models.configuration import hyper_parameters
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params

ADAM = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
SGD = "loss='categorical_crossentropy', optimizer='SGD(lr=0.05, momentum=0.9, decay=0.01)', metrics=['accuracy']"
_BRACES = str.maketrans("[]", "{}")


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the 1,797 digits: x float32 (n, 8, 8, 1) from 0 to 16, y int (n,)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images.astype(np.float32)[..., None], data.target.astype(int)


@functools.cache
def mlp(n_hidden: int = 24) -> str:
    """Return the JSON of an MLP with batch normalisation and dropout."""
    keras = quiet_keras()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(n_hidden, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    ).to_json()


@functools.cache
def cnn(n_filters: int = 4) -> str:
    """Return the JSON of a small CNN with an L2 penalty."""
    keras = quiet_keras()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(n_filters, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    ).to_json()


@functools.cache
def smallest() -> str:
    """Return the JSON of a single layer behind dropout, whose random numbers are part of the training state."""
    keras = quiet_keras()
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    ).to_json()


def quiet_keras():
    """Import Keras with one thread and without its start-up messages."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if os.environ.setdefault("KERAS_BACKEND", "tensorflow") != "tensorflow":
        one_thread()
        import keras

        return keras
    import keras
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU") and tf.config.threading.get_intra_op_parallelism_threads() != 1:
        raise RuntimeError("call one_thread() before TensorFlow is used")
    return keras


def one_thread() -> None:
    """Limit Keras' backend in this process to one thread, as in trainers; call it before its first use."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        from madlib_mop.trainer.backends import choice

        return choice.current().set_threads(1)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != 1:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def beginning(seed: int, mst_key: int, epoch: int, segment: int, pass_: int) -> list:
    """Return the callbacks of Keras' ``fit`` for a pass of a visit.

    Layers without a seed draw from PyTorch's generator, which trainers seed at the beginning of a pass.
    """
    if os.environ.get("KERAS_BACKEND") != "torch":
        return []
    import keras
    import torch

    number = int(np.random.SeedSequence([seed, mst_key, epoch, segment, pass_]).generate_state(1)[0])
    return [keras.callbacks.LambdaCallback(on_train_begin=lambda logs: torch.manual_seed(number))]


def load_digits(db, n_train: int = 240, n_valid: int = 80) -> None:
    """Write tables ``train_rows`` and ``valid_rows`` (id, x real[][][], y integer)."""
    x, y = digits()
    for table, start, stop in (("train_rows", 0, n_train), ("valid_rows", n_train, n_train + n_valid)):
        db.rows(f"CREATE TABLE {table} (id integer, x real[], y integer)")
        # as texts of arrays: ARRAY[ARRAY[... takes the server four times as long
        rows = [(i, str(x[i].tolist()).translate(_BRACES), int(y[i])) for i in range(start, stop)]
        db.rows(f"INSERT INTO {table} VALUES " + ", ".join(["%s"] * len(rows)), rows)


def pack(db, n_segments: int, buffer_size: int = 37, suffix: str = "", role: str | None = None) -> None:
    """Pack the digits into ``train<suffix>`` and ``valid<suffix>``."""
    train, valid = f"train{suffix}", f"valid{suffix}"
    script(
        db,
        f"SET madlib_mop.segments = {n_segments}",
        f"SELECT madlib.training_preprocessor_dl('train_rows', '{train}', 'y', 'x', {buffer_size}, 16.0, seed := 5)",
        f"SELECT madlib.validation_preprocessor_dl('valid_rows', '{valid}', 'y', 'x', '{train}', {buffer_size})",
        role=role,
    )


def load_architectures(db, table: str = "arch", role: str | None = None) -> None:
    """Write the MLP as model_id 1, the CNN as 2 and the smallest network as 3 into a new table, without checks."""
    one_thread()
    db.rows(
        f"CREATE TABLE {table} (model_id integer, model_arch json, model_weights bytea, name text, description text,"
        " __internal_madlib_id__ text UNIQUE)",
        role=role,
    )
    for arch in (mlp(), cnn(), smallest()):
        store_unchecked(db, arch, table, role)


def store_unchecked(db, arch: str, table: str = "arch", role: str | None = None) -> None:
    """Write an architecture into a table of architectures, also one that load_keras_model would reject."""
    insert = f"INSERT INTO {table} (model_id, model_arch) SELECT coalesce(max(model_id), 0) + 1, %s::json FROM {table}"
    db.rows(insert, [arch], role=role)


def select_configurations(db, table: str, configurations: list[tuple[int, str, str]], arch_table: str = "arch") -> None:
    """Write a model selection table with exactly these (model_id, compile_params, fit_params), keys 1, 2, ..."""
    db.rows(f"CREATE TABLE {table} (mst_key serial, model_id integer, compile_params varchar, fit_params varchar)")
    for row in configurations:
        db.rows(f"INSERT INTO {table} (model_id, compile_params, fit_params) VALUES (%s, %s, %s)", row)
    db.rows(
        f"CREATE TABLE {table}_summary AS SELECT %s::varchar AS model_arch_table, NULL::varchar AS object_table",
        [arch_table],
    )


MIXED = [
    (1, ADAM, "batch_size=16, epochs=1"),
    (2, SGD, "batch_size=16, epochs=1, shuffle=False"),
    (1, ADAM, "batch_size=7, epochs=2, shuffle=False"),
    (2, SGD, "batch_size=30, epochs=2"),
    (1, SGD, "batch_size=20, epochs=1"),
    (2, ADAM, "batch_size=64, epochs=1"),
    (1, ADAM.replace("0.01", "0.003"), "batch_size=16, epochs=1"),
]

# Four that share one compiled model, which a trainer traces once: for tests that are not about architectures. No batch
# size divides the rows of a shard: it would be traced separately.
ALIKE = [
    (3, ADAM, "batch_size=18, epochs=1"),
    (3, ADAM.replace("0.01", "0.02"), "batch_size=32, epochs=1, shuffle=False"),
    (3, ADAM.replace("0.01", "0.003"), "batch_size=7, epochs=2, shuffle=False"),
    (3, ADAM.replace("0.01", "0.005"), "batch_size=50, epochs=1"),
]


@dataclass(frozen=True)
class Fitted:
    """A finished call of fit."""

    run_id: int
    table: str
    notices: str


def fit(
    db, table: str, selection: str, n_iterations: int, settings: tuple[str, ...] = (), role=None, **options
) -> Fitted:
    """Call the hopper; ``options`` are its arguments by name."""
    options = {"source_table": "train", **options}
    connection = db.connect(role)
    try:
        with connection.cursor() as cursor:
            for setting in settings:
                cursor.execute(setting)
            named = "".join(f", {name} := %s" for name in options)
            cursor.execute(
                "SELECT madlib.madlib_keras_fit_multiple_model(model_output_table := %s, model_selection_table := %s,"
                f" num_iterations := %s{named})",
                [table, selection, n_iterations, *options.values()],
            )
            cursor.execute("SELECT max(run_id) FROM madlib_mop.run WHERE model_output_table LIKE %s", [f"%.{table}"])
            return Fitted(cursor.fetchone()[0], table, "".join(connection.notices))
    finally:
        connection.close()


def digests(db, run_id: int) -> dict[int, str]:
    """Return the digest of every model's newest state."""
    return dict(db.rows("SELECT mst_key, digest FROM madlib_mop.model WHERE run_id = %s", [run_id]))


def weights(db, table: str) -> dict[int, bytes]:
    """Return the weights in an output table, float32 in get_weights() order."""
    return {key: bytes(blob) for key, blob in db.rows(f"SELECT mst_key, model_weights FROM {table}")}


def assert_configurations_in_parts(db, run_id: int) -> None:
    """Assert that the recorded hyper-parameters of each model are those of its recorded texts."""
    rows = db.rows(
        "SELECT hyper_parameters, model_id, compile_params, fit_params, model_arch FROM madlib_mop.model"
        " WHERE run_id = %s",
        [run_id],
    )
    for recorded, model_id, compile_params, fit_params, arch in rows:
        parsed = parse_compile_params(compile_params), parse_fit_params(fit_params)
        assert recorded == hyper_parameters(model_id, *parsed, arch)
    assert rows


def script(db, *statements: str, role: str | None = None) -> None:
    """Run statements one after the other in one session."""
    connection = db.connect(role)
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()


def architecture_of(db, run_id: int, mst_key: int) -> str:
    """Return the JSON of a model's architecture."""
    value = db.value(
        "SELECT model_arch::text FROM madlib_mop.model WHERE run_id = %s AND mst_key = %s", [run_id, mst_key]
    )
    return json.dumps(json.loads(value))
