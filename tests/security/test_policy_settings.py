"""Promise 7: row policies that read a setting of the caller's session hide the same rows from the run's readers."""

import pytest

from tests.security.kit import SOFTMAX, refusal, user
from tests.workbench import load_digits, script

PUPIL = "pupil_with_settings"
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', '{0}.{1}', '{0}.mst', 1, seed => 1)"

TRAINED = "SELECT n_rows FROM madlib_mop.visit WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run)"


@pytest.fixture(scope="module")
def bench(db):
    """Packed digits of which a policy shows the buffers that a setting names; and what the pupil trains with."""
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
    """Let roles see the buffers of which an expression gives the numbers."""
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
    assert error.sqlstate == "55000" and "sees 20 rows, the caller saw 40" in error.message, error
    assert "ALTER ROLE" in error.hint
