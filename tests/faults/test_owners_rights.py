"""Promise 4: a run whose owner loses its rights ends with one error that says so, and goes on once they are back."""

import pytest

from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    kill,
    newest_run,
    trainers,
    undisturbed,
    visits,
    wait_for,
)

pytestmark = pytest.mark.slow
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 20, 85
GRANTS = (
    "SELECT madlib_mop.grant_use('dora')",
    "GRANT CREATE ON SCHEMA public TO dora",
    "GRANT SELECT ON ALL TABLES IN SCHEMA public TO dora",
)


def test_what_the_owner_may_is_dropped_in_the_middle_of_its_run(db):
    """The readers' next statement fails before it connects: the writers do not wait for it."""
    undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)
    db.cluster.create_role("dora")
    for grant in GRANTS:
        db.rows(grant)
    before = newest_run(db)
    call = BackgroundFit(db, fit_statement("of_dora", "mst", N_EPOCHS, "train_2", SEED), role="dora")
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run's start")
    wait_for(lambda: visits(db, run_id) >= 1 or call.error, what="a visit")
    db.rows("REASSIGN OWNED BY dora TO CURRENT_USER")
    db.rows("DROP OWNED BY dora")
    for pid in trainers(db):  # new ones need the rows again
        kill(pid)
    call.join(40)
    assert call.error is not None and call.error.pgcode == "42501", call.error
    assert "permission denied" in call.error.diag.message_primary
    assert "madlib_mop.grant_use" in call.error.diag.message_hint
    assert_nothing_left(db)
    for grant in GRANTS:
        db.rows(grant)
    db.rows("SELECT madlib_mop.resume(%s)", [run_id], "dora")
    assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(db)
