"""Promise 3: a run never trains on changed rows; the change is detected before the visit."""

import pytest

from tests.helpers.faults import BackgroundFit, assert_nothing_left, fit_statement, undisturbed, visits, wait_for
from tests.helpers.security.attacks import refusal_of

pytestmark = pytest.mark.slow

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 40, 3


@pytest.fixture(scope="module")
def bench(db):
    return undisturbed(db, N_MODELS, N_SEGMENTS, 1, SEED)


def test_a_run_whose_rows_were_changed_after_its_first_visit_makes_no_other(bench):
    """The run is interrupted, one bit of each buffer is changed, and no segment commits a visit."""
    call = BackgroundFit(bench, fit_statement("changed", "mst", N_EPOCHS, "train_2", SEED))
    running = "SELECT run_id FROM madlib_mop.run WHERE state = 'running'"
    run_id = wait_for(lambda: bench.value(running) if bench.rows(running) else None, what="the run")
    wait_for(lambda: visits(bench, run_id) > 1, what="its first visits")
    bench.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    call.join()
    assert_nothing_left(bench)
    states = "SELECT mst_key, state_version, digest FROM madlib_mop.model WHERE run_id = %s ORDER BY 1"
    before = visits(bench, run_id), bench.rows(states, [run_id])
    bench.rows("UPDATE train_2 SET x = set_bit(x, 8, 1 - get_bit(x, 8))")  # at both segments: each may be first
    error = refusal_of(bench, "SELECT madlib_mop.resume(%s)", [run_id])
    assert error.sqlstate == "22023" and "differ from the rows that the run was trained on" in error.message
    assert (visits(bench, run_id), bench.rows(states, [run_id])) == before
    bench.rows("UPDATE train_2 SET x = set_bit(x, 8, 1 - get_bit(x, 8))")
    bench.rows("UPDATE madlib_mop.model SET last_epoch = epoch + 1 WHERE run_id = %s", [run_id])
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert visits(bench, run_id) > before[0]
