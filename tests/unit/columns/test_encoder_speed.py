"""The encoder's time for a single row, as in a view, and for a batch; in additions of NumPy on the same machine."""

import time
import timeit

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.encoding.encoder import Encoder
from tests.helpers.unit.columns import addition_s, fitted, moments, numbers, spec, target, texts, vectors

N = 2_000
#: Limits in additions of 20 numbers by NumPy: some 0.2 us each on a fast processor.
ROW_ADDITIONS = 700
BATCH_ROW_ADDITIONS = 50


def table_of_20_columns():
    """Return specifications and columns of all kinds: 9 numbers, 8 categories, a date, a text, a vector."""
    generator = np.random.default_rng(0)

    def levels(n):
        return texts([f"level {i}" for i in generator.integers(0, n, N)])

    columns = []
    for place, scale in enumerate(["standard", "standard", "min_max", "robust", "quantile", "log1p", "none"]):
        values = [None if value > 2 else value for value in generator.normal(size=N).tolist()]
        columns.append((spec(f"x{place}", scale=scale, indicator=place < 3), numbers(values)))
    for place in range(2):
        columns.append((spec(f"b{place}", "boolean"), numbers(generator.integers(0, 2, N).tolist(), "boolean")))
    columns += [(spec(f"c{place}", "category"), levels(30)) for place in range(4)]
    columns += [(spec(f"o{place}", "category", encode="one_hot"), levels(5)) for place in range(2)]
    columns.append((spec("code", "category"), numbers(generator.integers(0, 30, N).tolist())))
    columns.append((spec("h", "category", encode="hashed"), levels(1_000)))
    columns.append((spec("d", "datetime"), moments(generator.integers(0, 10**15, N).tolist())))
    words = texts([f"some words here {i} and there" for i in range(N)])
    columns.append((spec("t", "text", encode="hashed_ngrams", width=256), words))
    columns.append((spec("v", "vector"), vectors(generator.normal(size=(N, 16)).tolist(), 16)))
    assert len(columns) == 20
    return columns


def seconds(call, number):
    """Return the least processor time of a call, which excludes other processes."""
    return min(timeit.repeat(call, number=number, repeat=20, timer=time.process_time)) / number


@pytest.mark.slow
@pytest.mark.alone
def test_a_row_of_20_columns_takes_at_most_700_additions_and_a_row_of_a_batch_50():
    columns = table_of_20_columns()
    encoder = Encoder(fitted([*columns, (target("y"), texts(["a", "b"] * (N // 2)))]))
    every = {one.name: column for one, column in columns}
    single = {name: column.take(np.array([3])) for name, column in every.items()}
    single |= {
        name: texts(column.texts()) for name, column in single.items() if isinstance(column, raw.Levels)
    }  # a call for one row has its own dictionaries
    alone, batch = seconds(lambda: encoder.encode(single), 100), seconds(lambda: encoder.encode(every), 1) / N
    one = addition_s()
    print(f"one row {alone * 1e6:.0f} us, a row of a batch {batch * 1e6:.2f} us, an addition {one * 1e6:.2f} us")
    assert alone < ROW_ADDITIONS * one
    assert batch < BATCH_ROW_ADDITIONS * one
