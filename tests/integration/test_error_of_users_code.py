"""Errors of users' code with SQLSTATEs of their own, at each place where our code runs users' statements."""

import psycopg2
import pytest

from tests.helpers.faults import fit_statement, newest_run
from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations

RAISE = "RAISE EXCEPTION USING ERRCODE = 'MY001', MESSAGE = 'not on Sundays'"


@pytest.fixture(scope="module")
def digits(db):
    load_digits(db)
    load_architectures(db)
    db.rows(
        "CREATE FUNCTION refuse(value anyelement) RETURNS anyelement LANGUAGE plpgsql AS $$"
        f" BEGIN {RAISE}, HINT = 'Come on Monday.'; END $$"
    )
    return db


def refusal(db, statement: str) -> tuple:
    """Return state, message and hint of the error of a statement."""
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(statement)
    return caught.value.pgcode, caught.value.diag.message_primary, caught.value.diag.message_hint


def test_in_a_view_that_is_packed(digits):
    digits.rows("CREATE VIEW refusing AS SELECT refuse(y) AS y, x FROM train_rows")
    statement = "SELECT madlib.training_preprocessor_dl('refusing', 'packed', 'y', 'x')"
    assert refusal(digits, statement) == (
        "MY001", "training_preprocessor_dl: not on Sundays", "Come on Monday.",
    )  # fmt: skip


@pytest.mark.slow
def test_after_the_training(digits):
    """An event trigger refuses the output tables; the run keeps its models."""
    pack(digits, 2, suffix="_2")
    select_configurations(digits, "mst", ALIKE[:1])
    digits.rows(
        "CREATE FUNCTION refuse_table() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN IF EXISTS (SELECT FROM"
        f" pg_event_trigger_ddl_commands() WHERE schema_name = 'public') THEN {RAISE}; END IF; END $$"
    )
    digits.rows(
        "CREATE EVENT TRIGGER refusing ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse_table()"
    )
    try:
        state, message, hint = refusal(digits, fit_statement("refused", "mst", 1, "train_2", 3))
    finally:
        digits.rows("DROP EVENT TRIGGER refusing")
    assert state == "MY001" and message.endswith(": not on Sundays") and "resume(" in hint
    run_id = newest_run(digits)
    assert digits.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "trained"
    digits.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digits.value("SELECT count(*) FROM refused") == 1
