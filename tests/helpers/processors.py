"""Weights that were trained on another kind of processor: its kernels round in another way."""

import numpy as np
from ratios import processor

from tests.helpers.training import digests, weights

#: Where the databases of tests/upgrade/records were made.
RECORDED_ON = "x86_64, avx512f"
#: What two or three epochs make of differences in the last bits. Adam makes large steps of single, tiny gradients.
MEAN_DIFFERENCE, MOST = 1e-4, 0.05


def assert_same_models(db, run_id: int, table: str, recorded_run: int, recorded_table: str) -> None:
    """Assert that a run has the models of a recorded run: the same bits, or on another processor the same numbers."""
    ours, recorded = _weights(db, table), _weights(db, recorded_table)
    if processor() == RECORDED_ON:
        assert digests(db, run_id) == digests(db, recorded_run), table
        assert ours == recorded, table
        return
    assert ours.keys() == recorded.keys() and digests(db, run_id).keys() == digests(db, recorded_run).keys()
    for key, blob in ours.items():
        difference = np.abs(np.frombuffer(blob, np.float32) - np.frombuffer(recorded[key], np.float32))
        assert difference.mean() < MEAN_DIFFERENCE and difference.max() < MOST, (table, key)


def _weights(db, table: str) -> dict[int, bytes]:
    """Return the weights of an output table; that of a single model has no ``mst_key``."""
    query = "SELECT count(*) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'mst_key'"
    if db.value(query, [table]):
        return weights(db, table)
    return {1: bytes(db.value(f"SELECT model_weights FROM {table}"))}
