"""Columns that cannot be used as they are: what the proposal says of them, and what packing says."""

import pytest

from tests.helpers.columns import refusal

pytestmark = pytest.mark.one_session

DIRTY = """
CREATE TABLE dirty AS
SELECT i * 37 % 101 / 10.0 AS x, array_fill(1, ARRAY[1 + (i = 7)::int]) AS ragged,
       CASE i WHEN 8 THEN ARRAY[1, NULL] ELSE ARRAY[i, 2] END AS holes,
       CASE i WHEN 9 THEN 'infinity'::date ELSE date '2020-01-01' + i END AS valid_to,
       CASE WHEN i < 4 THEN 'NaN'::real ELSE i * 13 % 89 END AS rate,
       CASE i WHEN 5 THEN 1e400 ELSE i * 7 % 31 / 2.0 END AS amount,
       CASE i WHEN 6 THEN ARRAY['Infinity', 1]::real[] ELSE ARRAY[i, 2]::real[] END AS pair,
       CASE i WHEN 7 THEN date '300000-01-01' END AS far, i % 2 = 0 AS y
FROM generate_series(1, 90) AS i
"""


@pytest.fixture(scope="module")
def dirty(db):
    db.rows(DIRTY)
    db.rows("SELECT madlib_mop.propose_columns('dirty', 'of_dirty', 'y')")
    return db


def test_a_proposal_ignores_all_columns_that_cannot_be_used_and_says_why(dirty):
    assert dict(dirty.rows("SELECT name, reason FROM of_dirty WHERE role = 'ignored'")) == {
        "valid_to": "Not finite: 1 row has infinity. Replace such values by NULL in a view.",
        "rate": "Not finite: as double precision, 3 rows have NaN. Replace such values by NULL in a view.",
        "amount": "Not finite: as double precision, 1 row has Infinity. Replace such values by NULL in a view.",
        "pair": "Not finite: as real, 1 row has Infinity. Replace such values by NULL in a view.",
        "far": "Cannot be read: it has a date that no timestamp can hold (row with ctid (0,7)). Correct such rows in a"
        " view.",
    }
    padded = dirty.rows("SELECT name, width FROM of_dirty WHERE role = 'input' AND encode = 'padded' ORDER BY name")
    assert padded == [("holes", 2), ("ragged", 2)]
    dirty.rows("SELECT madlib_mop.pack_columns('dirty', 'packed_dirty', 'y', columns => 'of_dirty', seed => 1)")


def test_packing_without_a_proposal_loses_no_column_silently(dirty):
    error = refusal(dirty, "pack_columns('dirty', 'p', 'y', exclude => '{ragged,holes,far,valid_to,rate,pair}')")
    assert "column 'amount' holds a number that is too large for double precision (row with ctid (0,5))" in str(error)
    assert "or exclude the column" in str(error)


def test_the_column_by_which_rows_are_split_cannot_be_excluded(dirty):
    exclude = "exclude => '{ragged,holes,far,valid_to,rate,pair,amount}'"
    error = refusal(dirty, f"pack_columns('dirty', 'p', 'y', {exclude}, validation => 'last 20% by valid_to')")
    assert "column 'valid_to' holds infinity (row with ctid (0,9))" in str(error)
    assert "split by another column" in str(error) and "exclude" not in error.diag.message_hint


def test_a_target_that_cannot_be_used_is_an_error_of_the_proposal(dirty):
    error = refusal(dirty, "propose_columns('dirty', 'p', 'rate')")
    assert "column 'rate' holds NaN (row with ctid (0,1))" in str(error)


def test_numeric_arrays_are_scaled_by_the_mean_and_the_deviation_of_all_elements(db):
    db.rows(
        "CREATE TABLE pairs AS SELECT ARRAY[i * 37 % 101, 5 + i % 3] AS pair, i % 2 = 0 AS y"
        " FROM generate_series(1, 300) AS i"
    )
    db.rows("SELECT madlib_mop.pack_columns('pairs', 'packed_pairs', 'y', seed => 1)")
    query = "SELECT avg(e), stddev_pop(e) FROM pairs, unnest(pair) AS e"
    mean, deviation = map(float, db.rows(query)[0])
    query = "SELECT encoding FROM madlib_mop.describe_preprocessor('packed_pairs') WHERE column_name = 'pair'"
    assert db.value(query) == f"2 elements, each (x - {mean:.6g}) / {deviation:.6g}"


HOLES = """
CREATE TABLE holes AS
SELECT i, i * 37 % 101 / 10.0 AS "Some x", CASE WHEN i <> 7 THEN i * 13 % 7 + i / 11.0 END AS "Y",
       i < 8 AS late, i % 2 = 0 AS z
FROM generate_series(1, 90) AS i
"""


def test_a_null_target_is_counted_in_the_training_rows_or_named(db):
    db.rows(HOLES)
    pack = "pack_columns('holes', 'p', '\"Y\"', exclude => '{i,z}'"
    error = refusal(db, f"{pack}, validation => 'late')")
    assert "column 'Y' is a target, and it is NULL (row " in str(error)
    assert error.diag.message_hint == 'Leave such rows out by a view: WHERE "Y" IS NOT NULL.'
    assert "target 'Y' is NULL in 1 training row" in str(refusal(db, f"{pack})"))


def test_null_in_a_column_that_rejects_it_names_the_row(db):
    db.rows(HOLES.replace("TABLE holes", "TABLE gaps"))
    db.rows("SELECT madlib_mop.propose_columns('gaps', 'of_gaps', 'z')")
    db.rows("UPDATE of_gaps SET impute = 'error', indicator = false WHERE name = 'Y'")
    error = refusal(db, "pack_columns('gaps', 'p', 'z', columns => 'of_gaps')")
    assert "column 'Y' is NULL, and its impute is error (row " in str(error)


def test_a_table_without_inputs_names_what_is_ignored_and_why(db):
    query = "SELECT i AS id, 3 AS same, '{}'::json AS doc, i % 2 AS y FROM generate_series(1, 90) i"
    db.rows(f"CREATE TABLE keys AS {query}")
    error = refusal(db, "pack_columns('keys', 'p', 'y')")
    assert "no column has the role input. Ignored: id (key), same (constant), doc (type json is not read)" in str(error)
    assert "propose_columns" in error.diag.message_hint
    error = refusal(db, "pack_columns('keys', 'p', 'y', exclude => '{id,same,doc}')")
    assert "all but the dependent ones are in exclude" in str(error)


def test_a_target_with_a_class_for_each_row_is_named_as_such(db):
    db.rows("CREATE TABLE names AS SELECT 'name ' || i AS y, i % 7 AS x FROM generate_series(1, 600) i")
    error = refusal(db, "pack_columns('names', 'p', 'y', validation => 0.2)")
    assert "0 of 600 rows: the share is that of each class, and the target has 600 classes" in str(error)


def test_columns_without_a_row_in_the_proposal_are_named(db):
    db.rows("CREATE TABLE wide AS SELECT i % 7 AS a, i % 5 AS b, i % 4 = 0 AS held_out, i % 2 AS y"
            " FROM generate_series(1, 90) i")  # fmt: skip
    db.rows("SELECT madlib_mop.propose_columns('wide', 'of_wide', 'y')")
    db.rows("DELETE FROM of_wide WHERE name IN ('b', 'held_out')")
    connection = db.connect()
    with connection.cursor() as cursor:
        call = "pack_columns('wide', 'packed_wide', 'y', columns => 'of_wide', validation => 'held_out', seed => 1)"
        cursor.execute(f"SELECT madlib_mop.{call}")
    assert "ignored, because of_wide has no row for them: b\n" in "".join(connection.notices)
    connection.close()


def test_null_in_exclude_is_one_clear_error(db):
    error = refusal(db, "pack_columns('dirty', 'p', 'y', exclude => ARRAY[NULL]::text[])")
    assert "exclude has a NULL element. Received: ARRAY[NULL]" in str(error)
