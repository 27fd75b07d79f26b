"""The aggregate madlib_mop.average_state: an average by rows for any caller, in one backend or in several."""

import numpy as np
import psycopg2
import pytest

from madlib_mop.trainer.data.parts import GROUPS, TensorSpec
from madlib_mop.trainer.data.state import encode_state, weights_of

pytestmark = pytest.mark.one_session

ROWS = (5, 1, 30, 700)


def part(seed: int) -> bytes:
    """Write a state of one part: 300 weights and a step count."""
    values = {
        "weights": [np.random.default_rng(seed).normal(size=(20, 15)).astype(np.float32)],
        "variables": [],
        "optimizer": [np.array(seed)],
    }
    specs = {group: [TensorSpec(v.shape, v.dtype.name) for v in values[group]] for group in GROUPS}
    (only,) = encode_state(specs, lambda group, index: values[group][index])
    return bytes(only)


@pytest.fixture(scope="module")
def bench(db):
    db.rows("CREATE TABLE parts (segment_id integer, n_rows bigint, data bytea)")
    for segment_id, n_rows in enumerate(ROWS):
        db.rows("INSERT INTO parts VALUES (%s, %s, %s)", [segment_id, n_rows, part(segment_id)])
    return db


def weights(data) -> np.ndarray:
    return np.frombuffer(weights_of([bytes(data)]), np.float32)


def expected() -> np.ndarray:
    total = sum(n * weights(part(i)).astype(np.float64) for i, n in enumerate(ROWS))
    return (total / sum(ROWS)).astype(np.float32)


def test_it_averages_by_rows_in_the_order_asked_for(bench):
    ordered = "SELECT madlib_mop.average_state(data, n_rows ORDER BY segment_id) FROM {}"
    average = bench.value(ordered.format("parts"))
    assert np.array_equal(weights(average), expected())
    shuffled = bench.value(ordered.format("(SELECT * FROM parts ORDER BY segment_id DESC) p"))
    assert bytes(shuffled) == bytes(average)


def test_nothing_and_no_rows_weigh_nothing(bench):
    assert bench.value("SELECT madlib_mop.average_state(data, n_rows) FROM parts WHERE false") is None
    assert bench.value("SELECT madlib_mop.average_state(data, 0) FROM parts") is None
    lone = bench.value("SELECT madlib_mop.average_state(data, nullif(n_rows, 1) * (segment_id / 2 % 2)) FROM parts")
    third = bench.value(
        "SELECT madlib_mop.average_state(data, n_rows ORDER BY segment_id) FROM parts WHERE segment_id > 1"
    )
    assert bytes(lone) == bytes(third)


def test_parallel_workers_merge_what_they_have_summed(bench):
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE spread AS SELECT data, n_rows FROM parts, generate_series(1, 50); ANALYZE spread;"
            " SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;"
            " SET max_parallel_workers_per_gather = 2"
        )
        query = "SELECT madlib_mop.average_state(data, n_rows) FROM spread"
        cursor.execute(f"EXPLAIN {query}")
        plan = "\n".join(line for (line,) in cursor)
        assert "Partial Aggregate" in plan and "Gather" in plan
        cursor.execute(query)
        assert np.allclose(weights(cursor.fetchone()[0]), expected(), rtol=1e-6)
    connection.close()


@pytest.mark.parametrize(
    "query, message",
    [
        ("SELECT madlib_mop.average_state(data, -1) FROM parts", "n_rows must be 0 or more. Received: -1"),
        (
            "SELECT madlib_mop.average_state('junk', n_rows) FROM parts",
            "part 0 of the training state ends inside its header",
        ),
        ("SELECT madlib_mop_calls._average_end('junk')", "this is not a state of the aggregate"),
    ],
)
def test_what_is_no_state_is_refused(bench, query, message):
    with pytest.raises(psycopg2.Error, match=message) as refusal:
        bench.rows(query)
    assert refusal.value.diag.message_primary.startswith("average_state: ")
    assert "Traceback" not in str(refusal.value) and "PL/Python" not in str(refusal.value)
    assert bench.value("SELECT madlib_mop.average_state(data, n_rows) IS NOT NULL FROM parts")
