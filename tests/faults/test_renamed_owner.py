"""Promise 4: a run goes on while its owner is renamed: sessions that are opened later know the role by its oid."""

import pytest

from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    newest_run,
    undisturbed,
    visits,
    wait_for,
)

pytestmark = pytest.mark.slow
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 8, 83
END_READERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'madlib_mop reader%%' AND datname = current_database()
"""


def test_the_owner_is_renamed_and_readers_are_opened_again(db):
    undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)
    db.cluster.create_role("bea")
    db.rows("SELECT madlib_mop.grant_use('bea')")
    db.rows("GRANT CREATE ON SCHEMA public TO bea")
    db.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO bea")
    before = newest_run(db)
    call = BackgroundFit(db, fit_statement("of_bea", "mst", N_EPOCHS, "train_2", SEED), role="bea")
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run's start")
    wait_for(lambda: visits(db, run_id) >= 2 or call.error, what="visits")
    db.rows("ALTER ROLE bea RENAME TO bella")
    try:
        assert db.rows(END_READERS)
        call.succeed()
        assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
        assert_nothing_left(db)
        assert db.value("SELECT tableowner FROM pg_tables WHERE tablename = 'of_bea'") == "bella"
    finally:
        db.rows("ALTER ROLE bella RENAME TO bea")
