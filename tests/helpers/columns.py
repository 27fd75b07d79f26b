"""A table of ordinary columns with a network for it, and packed tables as arrays; for tests on a server."""

import keras
import numpy as np
import psycopg2
import pytest

from madlib_mop.packing.buffers import unpack
from tests.helpers.training import ADAM, fit, one_thread

CUSTOMERS = """
CREATE TABLE customers AS
SELECT i AS id, CASE WHEN i % 9 > 0 THEN 20 + i * 7 % 50 END AS age, (i * 37 % 500)::numeric(10, 2) / 2 AS income,
       (ARRAY['gold', 'silver', NULL])[1 + i % 3] AS tier, 'city' || i * 13 % 40 AS city, i % 2 = 0 AS active,
       date '2020-01-01' + i * 17 % 1000 AS joined, timestamptz '2025-01-01 00:00+00' + i * interval '7 hours' AS seen,
       CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS churned
FROM generate_series(1, 600) AS i
"""
#: What `tests.helpers.engines.promises` makes of it.
OF_CUSTOMERS = (
    "customers", "packed", "packed_summary", "packed_validation", "packed_validation_summary", "arch_of_columns",
    "mst_of_columns", "mst_of_columns_summary", "churn", "churn_info", "churn_summary",
)  # fmt: skip


def content(db, table: str) -> dict[str, np.ndarray]:
    """Return each packed column of a table, its buffers joined in their order."""
    found = {}
    with db.caller().cursor() as cursor:
        cursor.execute(f"SELECT independent_varname, dependent_varname FROM {table}_summary")
        (lists,) = cursor.fetchall()
        for name in [name for names in lists for name in names]:
            cursor.execute(f"SELECT {name}, {name}_shape FROM {table} ORDER BY buffer_id")
            found[name] = np.concatenate([unpack(data, shape) for data, shape in cursor])
    return found


def refusal(db, call: str) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(f"SELECT madlib_mop.{call}")
    assert "internal error" not in str(caught.value) and "Traceback" not in str(caught.value)
    return caught.value


def load_churn_network(db, arch: str, selection: str) -> None:
    """Load a network for the packed customers, and one configuration of it."""
    n_units = content(db, "packed")["numbers"].shape[1]
    numbers, city = keras.Input((n_units,), name="numbers"), keras.Input((1,), dtype="int32", name="city")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(42, 4)(city))
    x = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([numbers, embedded]))
    network = keras.Model([numbers, city], keras.layers.Dense(2, activation="softmax")(x)).to_json()
    db.rows(f"SELECT madlib.load_keras_model('{arch}', %s::json)", [network])
    db.rows(
        f"SELECT madlib.load_model_selection_table('{arch}', '{selection}', '{{1}}', %s::varchar[], %s::varchar[])",
        [[ADAM.replace("0.001", "0.01")], ["batch_size=16, epochs=1"]],
    )


def load_linear(db, packed: str, outputs: dict[str, int | None], fit_params: str) -> None:
    """Load a network without a hidden layer for a packed table, and one configuration of it: of the table
    ``NAME_packed``, ``NAME_networks`` and ``NAME_configs``. It is traced in a part of the time of a proposed one.

    ``outputs`` are the dependent columns, with the number of classes or None for a number.
    """
    name = packed.removesuffix("_packed")
    inputs, units = [], []
    for tensor, rows in content(db, packed).items():
        if tensor not in outputs:
            inputs.append(keras.Input(rows.shape[1:], dtype=rows.dtype.name, name=tensor))
            is_index = np.issubdtype(rows.dtype, np.integer)
            units.append(keras.layers.Flatten()(keras.layers.Embedding(64, 2)(inputs[-1])) if is_index else inputs[-1])
    x = keras.layers.Concatenate()(units) if len(units) > 1 else units[0]
    ends = [keras.layers.Dense(n or 1, "softmax" if n else "linear", name=f"of_{o}")(x) for o, n in outputs.items()]
    losses = ["categorical_crossentropy" if n else "mse" for n in outputs.values()]
    metrics = [["accuracy" if n else "mae"] for n in outputs.values()]
    what = f"loss={losses[0]!r}, metrics={metrics[0]!r}" if len(ends) == 1 else f"loss={losses!r}, metrics={metrics!r}"
    db.rows(f"SELECT madlib.load_keras_model('{name}_networks', %s::json)", [keras.Model(inputs, ends).to_json()])
    db.rows(
        f"SELECT madlib.load_model_selection_table('{name}_networks', '{name}_configs', '{{1}}', %s, %s)",
        [[f"{what}, optimizer='Adam(lr=0.02)'"], [fit_params]],
    )


def pack_with(db, n_segments: int, call: str) -> None:
    """Call a function of madlib_mop in a session that packs into this number of segments."""
    with db.caller().cursor() as cursor:
        cursor.execute(f"SET madlib_mop.segments = {n_segments}")
        cursor.execute(f"SELECT madlib_mop.{call}")


def train_churn(db, n_iterations: int, n_segments: int = 1):
    """Create, pack and train on the customers, model table ``churn``; return what `fit` returns."""
    one_thread()
    db.rows(CUSTOMERS)
    pack_with(db, n_segments, "pack_columns('customers', 'packed', 'churned', validation => 0.2, seed => 1)")
    load_churn_network(db, "arch", "mst")
    return fit(db, "churn", "mst", n_iterations, source_table="packed", validation_table="packed_validation", seed=1)
