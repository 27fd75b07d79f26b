"""A table of every kind of column with functions of its encoded rows, and exact Shapley values; for tests."""

import itertools
import math

import numpy as np

from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.explaining.columns import ColumnElements
from tests.helpers.unit.columns import fitted, moments, numbers, spec, target, texts, vectors

_DAY = 86_400_000_000


def some_rows(n_rows: int = 40) -> dict:
    """Return raw columns: numbers, dates, categories and texts, some of them NULL."""
    random = np.random.default_rng(7)
    words = ["red", "green", "blue", None]
    return {
        "age": numbers([None if i % 9 == 0 else float(v) for i, v in enumerate(random.normal(40, 9, n_rows))]),
        "joined": moments([int(v) * _DAY for v in random.integers(1, 4000, n_rows)]),
        "tier": texts([words[i] for i in random.integers(0, 4, n_rows)]),
        "city": texts([f"city {i}" for i in random.integers(0, 6, n_rows)]),
        "note": texts([f"{words[i % 3]} note {i}" if i % 5 else None for i in range(n_rows)]),
        "place": vectors([[float(v), 1.0] if i % 7 else None for i, v in enumerate(random.normal(0, 1, n_rows))], 2),
        "y": texts([words[i % 2] for i in range(n_rows)]),
    }


def preprocessor_of(raw: dict):
    """Return the preprocessor that is fitted to these columns; each kind of encoding is there."""
    specs = [
        spec("age", indicator=True),
        spec("joined", "datetime", indicator=True),
        spec("tier", "category", indicator=True),
        spec("city", "category", encode="index"),
        spec("note", "text", indicator=True),
        spec("place", "vector", indicator=True),
        target("y"),
    ]
    return fitted([(one, raw[one.name]) for one in specs])


def encoded(raw: dict):
    """Return the preprocessor, its columns, and the encoded rows."""
    preprocessor = preprocessor_of(raw)
    arrays = list(Encoder(preprocessor).encode(raw).arrays.values())
    return preprocessor, ColumnElements(preprocessor), arrays


def network_of(rows, seed: int = 1, n_outputs: int = 2):
    """Return a smooth function of all inputs that is not additive, as float64 (n_rows, n_outputs)."""
    random = np.random.default_rng(seed)
    weights = [random.normal(size=(values[:1].size, 6)) for values in rows]
    last = random.normal(size=(6, n_outputs))

    def predict(inputs):
        hidden = sum(v.reshape(len(v), -1).astype(np.float64) @ w for v, w in zip(inputs, weights, strict=True))
        return np.tanh(hidden / 3) @ last

    return predict


def exact_values(predict, columns: ColumnElements, row, background) -> np.ndarray:
    """Return the Shapley values by the definition, float64 (n_columns, n_outputs), from all sets of columns."""
    n_columns, n_rows = len(columns.names), len(background[0])
    value = {}
    for chosen in itertools.product([False, True], repeat=n_columns):
        mask = np.repeat(np.array([chosen]), n_rows, axis=0)
        value[chosen] = predict(columns.mixed(row, background, mask)).mean(axis=0)
    found = []
    for column in range(n_columns):
        total = 0.0
        for chosen, mean in value.items():
            if not chosen[column]:
                n = sum(chosen)
                weight = math.factorial(n) * math.factorial(n_columns - n - 1) / math.factorial(n_columns)
                total = total + weight * (value[(*chosen[:column], True, *chosen[column + 1 :])] - mean)
        found.append(total)
    return np.array(found)
