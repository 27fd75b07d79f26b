"""`pack_columns` with ``test``: a third part of the rows, in a packed table of its own, held out by the same rules."""

import hashlib

import numpy as np
import psycopg2.errors
import pytest

from tests.helpers.columns import CUSTOMERS, content, load_churn_network, pack_with, refusal
from tests.helpers.training import fit, one_thread

pytestmark = pytest.mark.one_session

ROWS = """
CREATE TABLE people AS
SELECT i AS id, i * 7 % 901 AS x, 'group ' || i % 40 AS grp, date '2020-01-01' + i * 17 % 300 AS day,
       i % 5 = 0 AS held_out, CASE WHEN i % 4 = 0 THEN 'yes' ELSE 'no' END AS y
FROM generate_series(1, 600) AS i
"""
PARTS = ("", "_validation", "_test")


@pytest.fixture(scope="module")
def people(db):
    db.rows(ROWS)
    db.rows("SELECT madlib_mop.propose_columns('people', 'of_people', 'y')")
    db.rows("UPDATE of_people SET role = 'ignored' WHERE role = 'input'")
    db.rows("UPDATE of_people SET role = 'input', kind = 'number', encode = 'identity', impute = 'mean',"
            " scale = 'none', width = NULL, max_levels = NULL, levels = NULL WHERE name = 'id'")  # fmt: skip
    return db


def pack(db, name: str, validation: str, test: str = "0.1", source: str = "people") -> list[set[int]]:
    """Pack the ids of the people as their only input; return those of each part."""
    more = f", validation => {validation}, test => {test}, columns => 'of_people', seed => 1"
    pack_with(db, 2, f"pack_columns('{source}', '{name}', 'y'{more})")
    return [set(content(db, name + part)["numbers"].ravel().astype(int).tolist()) for part in PARTS
            if db.value("SELECT to_regclass(%s) IS NOT NULL", [name + part])]  # fmt: skip


def column(db, name: str, ids: set[int]) -> list:
    return [value for (value,) in db.rows(f"SELECT {name} FROM people WHERE id = ANY (%s)", [sorted(ids)])]


def check(parts: list[set[int]], shares: tuple[float, ...], off: float = 0.0) -> None:
    assert set.union(*parts) == set(range(1, 601)) and sum(map(len, parts)) == 600, "each row is in one part"
    for part, share in zip(parts[1:], shares, strict=True):
        assert abs(len(part) / 600 - share) <= off


def test_each_class_has_its_share_in_each_part(people):
    parts = pack(people, "t_1", "0.2")
    check(parts, (0.2, 0.1))
    for part in parts:
        assert column(people, "y", part).count("yes") == len(part) / 4


def test_a_test_does_not_change_which_rows_are_for_validation(people):
    _, validation, test = pack(people, "t_2", "0.2")
    assert pack(people, "t_3", "0.2", "NULL")[1] == validation
    assert pack(people, "t_4", "0.3")[2] == test, "nor validation which rows are for the test"
    training, alone = pack(people, "t_5", "NULL")
    assert alone == test and len(training) == 540


def test_rows_of_one_group_are_in_one_part(people):
    parts = pack(people, "t_6", "'20% by group grp'")
    check(parts, (0.2, 0.1), 0.04)
    groups = [set(column(people, "grp", part)) for part in parts]
    assert sum(map(len, groups)) == 40 and len(set.union(*groups)) == 40


def test_by_time_the_test_rows_are_the_last_ones(people):
    parts = pack(people, "t_7", "'last 20% by day'")
    check(parts, (0.2, 0.1), 0.01)
    training, validation, test = (column(people, "day", part) for part in parts)
    assert max(training) < min(validation) and max(validation) < min(test)


def test_beside_the_rows_of_a_boolean_column_a_share_of_all_rows(people):
    parts = pack(people, "t_8", "'held_out'")
    check(parts, (0.2, 0.1))
    assert all(column(people, "held_out", parts[1])) and not any(column(people, "held_out", parts[2]))


def test_equal_rows_are_in_one_part(people):
    people.rows(
        "CREATE TABLE thrice AS SELECT (id + 2) / 3 AS id, 0 AS x, ''::text AS grp, NULL::date AS day,"
        " false AS held_out, CASE WHEN (id + 2) / 3 % 4 = 0 THEN 'yes' ELSE 'no' END AS y FROM people"
    )
    parts = pack(people, "t_9", "0.2", source="thrice")
    assert len(set.union(*parts)) == sum(map(len, parts)) == 200
    n_rows = [people.value(f"SELECT sum(numbers_shape[1]) FROM t_9{part}") for part in PARTS]
    assert n_rows == [3 * len(part) for part in parts]


@pytest.mark.parametrize("n_segments", [1, 3])
def test_the_same_bits_on_any_segments_and_for_rows_in_any_order(people, n_segments):
    people.rows("DROP TABLE IF EXISTS shuffled; CREATE TABLE shuffled AS SELECT * FROM people ORDER BY id * 389 % 600")
    for source, name, segments in (("people", f"s_{n_segments}", 2), ("shuffled", f"s_{n_segments}_again", n_segments)):
        pack_with(people, segments, f"pack_columns('{source}', '{name}', 'y', validation => 0.2, test => 0.1,"
                                    " seed => 1)")  # fmt: skip
    for part in PARTS:
        first, again = (content(people, f"s_{n_segments}{more}{part}") for more in ("", "_again"))
        assert {name: rows.tobytes() for name, rows in first.items()} == {n: r.tobytes() for n, r in again.items()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("test => 0", "test must be a share above 0 and below 1. Received: 0"),
        ("test => 1.5", "test must be a share above 0 and below 1. Received: 1.5"),
        ("test => 'NaN'", "test must be a share above 0 and below 1. Received: nan"),
        ("validation => 0.6, test => 0.4", "leave no rows for training. Received: shares 0.6 and 0.4"),
        ("validation => 0.2, test => 0.0001", "test would have 0 of 600 rows: the share is that of each class"),
        ("validation => '20% by group held_out', test => 0.1", "besides those for validation. Received: 1"),
    ],
)
def test_a_share_that_cannot_be_held_out_is_one_clear_error(people, arguments, message):
    error = refusal(people, f"pack_columns('people', 'bad', 'y', {arguments}, seed => 1)")
    assert isinstance(error, psycopg2.errors.InvalidParameterValue) and message in str(error)
    assert error.diag.message_hint and people.value("SELECT to_regclass('bad') IS NULL")


def test_the_table_of_test_rows_is_in_the_way_replaced_and_dropped_like_that_of_validation(people):
    pack(people, "t_10", "0.2")
    error = refusal(people, "pack_columns('people', 't_10', 'y', test => 0.1)")
    assert "public.t_10_test" in str(error) and "exist already" in str(error)
    pack_with(people, 2, "pack_columns('people', 't_10', 'y', seed => 1, replace => true)")
    assert people.value("SELECT to_regclass('t_10_test') IS NULL AND to_regclass('t_10_validation') IS NULL")
    pack_with(people, 2, "pack_columns('people', 't_10', 'y', seed => 1, test => 0.1, replace => true)")
    assert people.value("SELECT madlib_mop.drop_packed('t_10')") == [
        "public.t_10", "public.t_10_summary", "public.t_10_test", "public.t_10_test_summary"
    ]  # fmt: skip


#: SHA-256 of the packed ids, before there were test rows: which rows are where, in which order.
DIGESTS = {
    "NULL": "8bdb33693f8de3f3fbc0862d31aa22b1379a46d3aa2aa9d8d1f9f6a3adcb4c6f",
    "0.2": "a658452f8db0ccfe5f578959a49f87d104cd340864b00a2b0982e5f6c31e9a47",
    "'0.2 not stratified'": "68beb5c8ddb352f8cb31f393952ede5a12d700bc2cf6641a5dda3d9210f350e5",
    "'20% by group grp'": "a37463e2e6b8a02929660ebf61cd5c96845661424325268ce71783c85a14e6f2",
    "'last 20% by day'": "43cbbeae089224c89e168cb56a1ec2e3554d782bf62c5fc9de26331550865c74",
    "'held_out'": "ff973697e4971a3e3019a9eb4db82d65700eb2e5fd732b400decffd50208198d",
}


@pytest.mark.parametrize("validation", DIGESTS)
def test_without_a_test_the_same_rows_are_where_they_were(people, validation):
    people.rows("SELECT madlib_mop.drop_packed('as_before') WHERE to_regclass('as_before') IS NOT NULL")
    pack(people, "as_before", validation, "NULL")
    found = hashlib.sha256()
    for part in PARTS:
        if people.value("SELECT to_regclass(%s) IS NOT NULL", [f"as_before{part}"]):
            found.update(part.encode() + content(people, f"as_before{part}")["numbers"].astype("<i4").tobytes())
    assert found.hexdigest() == DIGESTS[validation]


@pytest.mark.slow
def test_a_model_is_evaluated_on_the_test_rows(db):
    one_thread()
    db.rows(CUSTOMERS)
    call = "pack_columns('customers', 'packed', 'churned', validation => 0.2, test => 0.1, seed => 1)"
    db.rows(f"SELECT madlib_mop.{call}")
    load_churn_network(db, "arch", "mst")
    fit(db, "churn", "mst", 2, source_table="packed", validation_table="packed_validation", seed=1)
    db.rows("SELECT madlib.madlib_keras_evaluate('churn', 'packed_test', 'evaluated', mst_key => 1)")
    ((loss, accuracy),) = db.rows("SELECT loss, metric FROM evaluated")
    assert np.isfinite(loss) and abs(accuracy * 60 - round(accuracy * 60)) < 1e-3, "60 rows"
    assert len(content(db, "packed_test")["numbers"]) == 60
