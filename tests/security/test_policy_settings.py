"""Promise 7: row policies that read a setting of the caller's session hide the same rows from the run's readers."""

import pytest

from tests.helpers.security.attacks import SOFTMAX, refusal, user
from tests.helpers.training import load_digits, script

PUPIL, VIEWER = "pupil_with_settings", "viewer_of_settings"
SECRET = "token-7f3a"  # a value of the setting that matches no buffer
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', '{0}.{1}', '{0}.mst', 1, seed => 1)"

TRAINED = "SELECT n_rows FROM madlib_mop.visit WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run)"
NEWEST = "SELECT max(run_id) FROM madlib_mop.run"
MAY_READ = """
SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace::regnamespace::text LIKE 'madlib%%'
AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege(%s, c.oid, 'SELECT')
"""


@pytest.fixture(scope="module")
def bench(db):
    """Packed digits with a policy that shows the buffers of a setting; and the pupil's configurations."""
    load_digits(db, 80, 20)
    script(
        db,
        "SET madlib_mop.segments = 1",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', 20, 16.0, seed := 5)",
        "CREATE FUNCTION hidden() RETURNS text STABLE LANGUAGE sql"
        " AS $$ SELECT current_setting('app.buffers', true) $$",
        "ALTER TABLE train ENABLE ROW LEVEL SECURITY",
    )
    user(db, PUPIL)
    db.rows(f"GRANT SELECT ON train, train_summary TO {PUPIL}")
    script(
        db,
        f"SELECT madlib.load_keras_model('{PUPIL}.arch', '{SOFTMAX}')",
        f"SELECT madlib.load_model_selection_table('{PUPIL}.arch', '{PUPIL}.mst', '{{1}}',"
        " ARRAY[$$loss='categorical_crossentropy', optimizer='SGD'$$]::varchar[],"
        " '{\"batch_size=16, epochs=1\"}'::varchar[])",
        role=PUPIL,
    )
    return db


@pytest.fixture
def pupil(bench):
    connection = bench.connect(PUPIL)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET app.buffers = '0,2'")
    yield connection
    connection.close()


def policy(db, expression: str) -> None:
    """Create a policy that shows the buffers with the numbers of an expression."""
    db.rows("DROP POLICY IF EXISTS named_buffers ON train")
    db.rows(f"CREATE POLICY named_buffers ON train USING (buffer_id::text = ANY (string_to_array({expression}, ',')))")


def test_readers_have_the_settings_that_policies_name(bench, pupil):
    policy(bench, "current_setting('app.buffers', true)")
    with pupil.cursor() as cursor:
        cursor.execute(FIT.format(PUPIL, "seen"))
    assert bench.rows(TRAINED) == [(40,)]


def test_settings_of_the_role_reach_readers_even_through_functions(bench):
    policy(bench, "hidden()")
    bench.rows(f"ALTER ROLE {PUPIL} SET app.buffers = '1,2,3'")
    try:
        bench.rows(FIT.format(PUPIL, "of_role"), role=PUPIL)
    finally:
        bench.rows(f"ALTER ROLE {PUPIL} RESET app.buffers")
    assert bench.rows(TRAINED) == [(60,)]


def test_a_setting_that_only_a_function_reads_is_told(bench, pupil):
    policy(bench, "coalesce(hidden(), '0')")
    error = refusal(pupil, FIT.format(PUPIL, "never"))
    assert error.sqlstate == "55000" and "can see 20 rows, but the caller could see 40" in error.message, error
    assert "ALTER ROLE" in error.hint


def found_by(db, role: str) -> set[str]:
    """Return the tables and views of the extension that show a role the secret."""
    tables = [table for (table,) in db.rows(MAY_READ, [role])]
    assert "madlib_mop.run" in tables
    query = "SELECT count(*) FROM {} t WHERE t::text LIKE %s"
    return {table for table in tables if db.value(query.format(table), [f"%{SECRET}%"], role)}


@pytest.mark.slow
def test_only_the_owner_reads_the_values_of_settings(bench, pupil):
    policy(bench, "current_setting('app.buffers', true)")
    for role in (VIEWER, f"{VIEWER}_too"):
        bench.cluster.create_role(role)
    bench.rows(f"SELECT madlib_mop.grant_read('{VIEWER}', '{PUPIL}')")  # a role with read access to runs only
    bench.rows(f"SELECT madlib_mop.grant_use('{VIEWER}_too'), madlib_mop.grant_read('{VIEWER}_too', '{PUPIL}')")
    with pupil.cursor() as cursor:
        cursor.execute(f"SET app.buffers = '0,2,{SECRET}'")
        cursor.execute(FIT.format(PUPIL, "secret"))
    assert bench.rows(TRAINED) == [(40,)]
    assert bench.value("SELECT count(*) FROM madlib_mop.progress", role=VIEWER) > 0
    assert found_by(bench, VIEWER) == found_by(bench, f"{VIEWER}_too") == set()
    assert found_by(bench, PUPIL) == {"madlib_mop.caller_setting"}
    bench.rows("SELECT madlib_mop.drop_run(%s)", [bench.value(NEWEST)], PUPIL)
    assert bench.rows("SELECT 1 FROM madlib_mop.caller_setting WHERE value LIKE %s", [f"%{SECRET}%"]) == []


@pytest.mark.slow
def test_resume_and_replay_read_by_the_settings_of_the_run(bench, pupil):
    of_readers = "CASE WHEN session_user = '{}' THEN current_setting('app.buffers', true) ELSE '1' END"
    policy(bench, of_readers.format(PUPIL))
    error = refusal(pupil, FIT.format(PUPIL, "resumed"))
    assert "can see 20 rows, but the caller could see 40" in error.message, error
    policy(bench, "current_setting('app.buffers', true)")
    bench.rows(f"SELECT madlib_mop.resume(({NEWEST}))", role=PUPIL)
    assert bench.rows(TRAINED) == [(40,)]
    bench.rows(f"SELECT madlib_mop.replay(({NEWEST}), '{PUPIL}.replayed')", role=PUPIL)
    assert bench.rows(TRAINED) == [(40,)]
