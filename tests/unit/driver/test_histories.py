"""A thousand random histories of a run, without a server: each keeps the promises, and its replay repeats it."""

import pytest

from tests.helpers.unit.histories import History, Replay, assert_promises, assert_replayed

N_AT_ONCE = 25


@pytest.mark.parametrize("first", range(0, 1000, N_AT_ONCE))
def test_whatever_happens_a_run_keeps_its_promises_and_is_replayed(first):
    for seed in range(first, first + N_AT_ONCE):
        try:
            record = History(seed).live()
            assert_promises(record)
            assert_replayed(record.record, Replay(seed, record.record).live().record)
        except BaseException as error:
            error.add_note(f"history {seed}")
            raise
