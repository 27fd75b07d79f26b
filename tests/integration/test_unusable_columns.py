"""Columns with values that cannot be used: what the proposal says of them, and what packing says."""

import pytest

from tests.helpers.columns import refusal

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
        "ragged": "Cannot be read: it has 2 elements, where 1 are expected (row with ctid (0,7)). Correct such rows in"
        " a view.",
        "holes": "Cannot be read: it has a NULL element (number 2) (row with ctid (0,8)). Correct such rows in a view.",
        "valid_to": "Not finite: 1 row has infinity. Replace such values by NULL in a view.",
        "rate": "Not finite: as double precision, 3 rows have NaN. Replace such values by NULL in a view.",
        "amount": "Not finite: as double precision, 1 row has Infinity. Replace such values by NULL in a view.",
        "pair": "Not finite: as real, 1 row has Infinity. Replace such values by NULL in a view.",
        "far": "Cannot be read: it has a date that no timestamp can hold (row with ctid (0,7)). Correct such rows in a"
        " view.",
    }
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
