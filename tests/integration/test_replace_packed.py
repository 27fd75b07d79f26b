"""`pack_columns` with ``replace => true``: a packed table is replaced as a whole, in one transaction, or stays."""

import psycopg2
import psycopg2.errors
import pytest

from tests.helpers.columns import content, pack_with
from tests.helpers.security.attacks import record_run, recorded_plan, user

pytestmark = pytest.mark.one_session

ROWS = """
CREATE TABLE people AS SELECT i AS id, i * 7 % 50 AS age, ARRAY[i, 1]::real[] AS x, CASE WHEN i % 3 = 0 THEN 'yes'
ELSE 'no' END AS y FROM generate_series(1, 60) AS i
"""


@pytest.fixture(scope="module")
def people(db):
    db.rows(ROWS)
    db.rows("CREATE TABLE later AS SELECT * FROM people WHERE id % 4 > 0")
    return db


def packs(source: str, name: str, more: str = "") -> str:
    return f"pack_columns('{source}', '{name}', 'y', seed => 1{more})"


REPLACE = ", replace => true"
VALIDATION = ", validation => 0.2"


def tables(db, pattern: str) -> set[str]:
    query = "SELECT relname FROM pg_class WHERE relname LIKE %s AND relkind IN ('r', 'p', 'f', 'v', 'm')"
    return {name for (name,) in db.rows(query, [pattern])}


def bits(db, table: str) -> dict[str, bytes]:
    return {name: rows.tobytes() for name, rows in content(db, table).items()}


def refusal(db, call: str, kind: type[psycopg2.Error], role: str | None = None) -> psycopg2.Error:
    with pytest.raises(kind) as raised:
        db.caller(role).cursor().execute(f"SELECT madlib_mop.{call}")
    assert "Traceback" not in str(raised.value) and "internal error" not in str(raised.value)
    return raised.value


def test_the_new_table_takes_the_place_of_the_old_one_with_all_that_belongs_to_it(people):
    pack_with(people, 3, packs("people", "r_1", VALIDATION))
    pack_with(people, 2, packs("later", "r_1", REPLACE))
    assert tables(people, "r\\_1%") == {"r_1", "r_1_seg0", "r_1_seg1", "r_1_summary"}
    pack_with(people, 2, packs("later", "r_fresh"))
    assert bits(people, "r_1") == bits(people, "r_fresh")
    assert people.value("SELECT source_table FROM r_1_summary") == "later"
    pack_with(people, 2, packs("people", "r_1", VALIDATION + REPLACE))
    assert "r_1_validation" in tables(people, "r\\_1%")


def test_where_nothing_is_there_it_is_an_ordinary_packing(people):
    people.rows(f"SELECT madlib_mop.{packs('people', 'r_2', REPLACE)}")
    assert people.value("SELECT count(*) > 0 FROM r_2")


def test_the_old_table_stays_if_the_transaction_is_rolled_back(people):
    pack_with(people, 2, packs("people", "r_3", VALIDATION))
    old = bits(people, "r_3"), bits(people, "r_3_validation")
    connection = people.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT madlib_mop.{packs('later', 'r_3', REPLACE)}")
        cursor.execute("SELECT source_table, to_regclass('r_3_validation') IS NULL FROM r_3_summary")
        assert cursor.fetchone() == ("later", True)
    connection.rollback()
    connection.close()
    assert (bits(people, "r_3"), bits(people, "r_3_validation")) == old


@pytest.mark.parametrize("moment", ["while rows are read", "after the old table was dropped"])
def test_the_old_table_stays_if_packing_fails(people, moment):
    pack_with(people, 2, packs("people", "r_4", VALIDATION + REPLACE))
    old = bits(people, "r_4"), bits(people, "r_4_validation")
    source, message = "later", "no table now"
    if moment == "while rows are read":
        source, message = "broken", "NaN"
        people.rows("CREATE TABLE broken AS SELECT *, CASE id WHEN 9 THEN 'NaN'::real ELSE id END AS z FROM people")
    else:
        people.rows("CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
                    " $$ BEGIN RAISE 'no table now'; END $$")  # fmt: skip
        people.rows("CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE')"
                    " EXECUTE FUNCTION refuse()")  # fmt: skip
    try:
        assert message in str(refusal(people, packs(source, "r_4", REPLACE), psycopg2.Error))
    finally:
        people.rows("DROP EVENT TRIGGER IF EXISTS refuse")
    assert (bits(people, "r_4"), bits(people, "r_4_validation")) == old


def test_nothing_but_a_packed_table_is_replaced(people):
    people.rows("CREATE TABLE r_mine AS SELECT 1 AS mine")
    error = refusal(people, packs("people", "r_mine", REPLACE), psycopg2.errors.DuplicateTable)
    assert "output_table: table public.r_mine exists already, and replace => true replaces only a packed table" in str(
        error
    )
    assert "Received: 'r_mine'" in str(error)
    people.rows("SELECT madlib_mop.propose_columns('people', 'r_mine_summary', 'y')")
    assert "tables public.r_mine and public.r_mine_summary exist already" in str(
        refusal(people, packs("people", "r_mine", REPLACE), psycopg2.errors.DuplicateTable)
    )
    assert tables(people, "r\\_mine%") == {"r_mine", "r_mine_summary"}


def test_what_is_in_the_way_of_a_validation_table_stays(people):
    pack_with(people, 2, packs("people", "r_5"))
    people.rows("CREATE TABLE r_5_validation AS SELECT 1 AS mine")
    error = refusal(people, packs("later", "r_5", REPLACE + VALIDATION), psycopg2.errors.DuplicateTable)
    assert "output_table: table public.r_5_validation exists already" in str(error)
    assert people.value("SELECT source_table FROM r_5_summary") == "people"
    people.rows(f"SELECT madlib_mop.{packs('later', 'r_5', REPLACE)}")
    assert people.value("SELECT source_table FROM r_5_summary") == "later"
    assert people.value("SELECT mine FROM r_5_validation") == 1


def test_a_table_of_another_role_or_that_a_run_needs_is_not_replaced(people):
    alice = user(people, "alice")
    people.rows(f"GRANT SELECT ON people TO {alice}; GRANT CREATE ON SCHEMA public TO {alice}")
    pack_with(people, 2, packs("people", "r_6"))
    people.rows(f"GRANT SELECT ON r_6, r_6_summary TO {alice}")
    error = refusal(people, packs("people", "public.r_6", REPLACE), psycopg2.errors.InsufficientPrivilege, alice)
    assert "output_table: public.r_6 does not belong to role alice" in str(error)
    plan = recorded_plan("public", "out", '"public"."r_6"')
    record_run(people, 66, alice, "interrupted", plan=plan)
    error = refusal(people, packs("later", "r_6", REPLACE), psycopg2.errors.ObjectNotInPrerequisiteState)
    assert "output_table: public.r_6 is still needed by run 66 of role alice, which is interrupted" in str(error)
    assert people.value("SELECT source_table FROM r_6_summary") == "people"
    people.rows("SELECT madlib_mop.drop_run(66)")
    people.rows(f"SELECT madlib_mop.{packs('later', 'r_6', REPLACE)}")
    assert people.value("SELECT source_table FROM r_6_summary") == "later"


def test_without_replace_the_hint_says_how_to_replace_it(people):
    pack_with(people, 2, packs("people", '"R 7"'))
    hint = refusal(people, packs("people", '"R 7"'), psycopg2.errors.DuplicateTable).diag.message_hint
    assert hint.startswith("replace => true replaces it; SELECT madlib_mop.drop_packed('\"public\".\"R 7\"');")
    with pytest.raises(psycopg2.errors.DuplicateTable) as raised:
        people.rows("SELECT madlib.training_preprocessor_dl('people', '\"R 7\"', 'y', 'x')")
    assert raised.value.diag.message_hint.startswith("SELECT madlib_mop.drop_packed(")
    people.rows("CREATE TABLE r_8 AS SELECT 1 AS mine")
    error = refusal(people, packs("people", "r_8"), psycopg2.errors.DuplicateTable)
    assert error.diag.message_hint == "Drop it, or choose another name."
