"""Promise 4: after the end of a reader session, or the cancel of its statement, the run repeats at most one load."""

import pytest

from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    newest_run,
    undisturbed,
    wait_for,
)

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 1, 3
READERS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop reader%' AND state = 'active'"
    " AND datname = current_database()"
)


@pytest.fixture(scope="module")
def bench(db):
    """A view of the packed rows that returns a buffer every 0.1 s, so that there is time to end its readers."""
    undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)
    db.rows("CREATE VIEW slow AS SELECT t.* FROM train_2 AS t, LATERAL (SELECT pg_sleep(0.1 + 0 * buffer_id)) AS s")
    db.rows("CREATE TABLE slow_summary AS TABLE train_2_summary")
    return db


@pytest.mark.one_case
@pytest.mark.parametrize("way", ["pg_terminate_backend", "pg_cancel_backend"])
def test_readers_that_are_ended_read_again(bench, way):
    call = BackgroundFit(bench, fit_statement(f"t_{way}", "mst", N_EPOCHS, "slow", SEED))
    found = wait_for(lambda: bench.rows(READERS) or not call.running, what="a reader at work")
    assert found is not True, call.error
    for (pid,) in found:
        bench.rows(f"SELECT {way}(%s)", [pid])
    call.succeed()
    assert_whole(bench, newest_run(bench), bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(bench)
