"""Equal values that are written in different ways: rows with them are equal; levels have the column's own texts."""

import numpy as np
import pytest

from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from tests.helpers.columns import content

pytestmark = pytest.mark.one_session

#: Each pair of values is equal in SQL.
_PAIRS = """
(VALUES (0, '1.5'::numeric, '1 day'::interval, 0::float8, '{0, 2}'::float8[], '{1.5}'::numeric[], 'ab'::bpchar,
         timestamptz '2024-01-01 12:00+00'),
        (1, '1.50', '24 hours', '-0', '{-0, 2}', '{1.50}', 'ab  ', timestamptz '2024-01-01 13:00+01')
) AS p (half, n, i, f, a, an, c, t)
"""
_ROWS = f"""
SELECT n + g AS n, i * g AS i, f, f + g % 5 AS f5, a, an, c, t + g * interval '1 hour' AS t, g::bigint AS g,
       CASE WHEN g % 3 = 0 THEN NULL ELSE n END AS n3, (g % 2)::text AS y
FROM generate_series(1, 200) AS g, {_PAIRS}
"""


@pytest.fixture(scope="module")
def pairs(db):
    db.rows(f"CREATE TABLE pairs AS {_ROWS} ORDER BY half, g")
    db.rows("CREATE TABLE pairs_shuffled AS SELECT * FROM pairs ORDER BY hashtext(g || n::text || f::text)")
    return db


def encoded_rows(db, table):
    """Return the rows of a packed table as bytes."""
    found = content(db, table)
    return [b"".join(rows[i].tobytes() for rows in found.values()) for i in range(len(next(iter(found.values()))))]


@pytest.mark.parametrize("validation", ["0.2", "'0.2 not stratified'"])
def test_no_validation_row_has_its_equal_among_the_training_rows(pairs, validation):
    pairs.rows("DROP TABLE IF EXISTS equal, equal_summary, equal_validation, equal_validation_summary")
    pairs.rows(f"SELECT madlib_mop.pack_columns('pairs', 'equal', 'y', validation => {validation}, seed => 1)")
    training, held_out = encoded_rows(pairs, "equal"), encoded_rows(pairs, "equal_validation")
    assert len(training) + len(held_out) == 400 and 40 <= len(held_out) <= 120
    assert not set(training) & set(held_out)


def test_no_group_is_divided_however_its_value_is_written(pairs):
    for column in ("n", "i", "t"):
        pairs.rows("DROP TABLE IF EXISTS grouped, grouped_summary, grouped_validation, grouped_validation_summary")
        pairs.rows(
            f"SELECT madlib_mop.pack_columns('pairs', 'grouped', 'y', validation => '20% by group {column}', seed => 1)"
        )
        assert not set(encoded_rows(pairs, "grouped")) & set(encoded_rows(pairs, "grouped_validation"))


def test_texts_that_their_collation_takes_for_equal_are_on_one_side(db):
    db.rows("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    db.rows(
        "CREATE TABLE cased AS SELECT (CASE g % 2 WHEN 0 THEN 'Name ' ELSE 'NAME ' END || g / 2) COLLATE any_case AS n,"
        " 1 + g / 2 % 7 AS x, (g / 2 % 2)::text AS y FROM generate_series(0, 199) AS g"
    )
    for validation in ("0.3", "'30% by group n'"):
        db.rows("DROP TABLE IF EXISTS of_cased, of_cased_summary, of_cased_validation, of_cased_validation_summary")
        db.rows("DROP TABLE IF EXISTS cased_columns")
        db.rows("SELECT madlib_mop.propose_columns('cased', 'cased_columns', 'y')")
        db.rows(
            "UPDATE cased_columns SET role = 'input', kind = 'category', encode = 'one_hot', impute = 'level',"
            " indicator = false, scale = 'none', width = NULL, max_levels = 1000 WHERE name = 'n'"
        )
        db.rows(
            "SELECT madlib_mop.pack_columns('cased', 'of_cased', 'y', columns => 'cased_columns', seed => 1,"
            f" validation => {validation})"
        )
        levels = levels_of(db, "of_cased")["n"]
        assert {level.upper() for level in levels} <= {f"NAME {i}" for i in range(100)}
        assert len({level.upper() for level in levels}) * 2 == len(levels) == len(content(db, "of_cased")["y"])


def test_the_order_of_rows_that_are_written_differently_changes_nothing(pairs):
    for table in ("pairs", "pairs_shuffled"):
        pairs.rows(f"SELECT madlib_mop.pack_columns('{table}', 'p_{table}', 'y', validation => 0.3, seed => 3)")
    one, other = content(pairs, "p_pairs"), content(pairs, "p_pairs_shuffled")
    assert list(one) == list(other)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])
    digests = [pairs.value(f"SELECT preprocessor_digest FROM p_{t}_summary") for t in ("pairs", "pairs_shuffled")]
    assert digests[0] == digests[1]


def test_bigints_beyond_2_to_53_are_counted_and_grouped_one_by_one(db):
    db.rows(
        "CREATE TABLE large AS SELECT 9007199254740992 + g AS k, 9223372036854775807 - g % 40 AS j, random() AS x,"
        " (g % 2)::text AS y FROM generate_series(0, 399) AS g"
    )
    db.rows("SELECT madlib_mop.propose_columns('large', 'large_columns', 'y')")
    found = db.rows("SELECT name, n_distinct, minimum, maximum FROM large_columns WHERE name IN ('k', 'j') ORDER BY 1")
    assert found == [
        ("j", 40, "9223372036854775768", "9223372036854775807"), ("k", 400, "9007199254740992", "9007199254741391"),
    ]  # fmt: skip
    db.rows(
        "SELECT madlib_mop.pack_columns('large', 'large_packed', 'y', validation => '25% by group j', seed => 1,"
        " exclude => '{k}')"
    )
    assert len(encoded_rows(db, "large_packed_validation")) == 100, "10 of 40 groups of 10 rows"


@pytest.fixture(scope="module")
def written(db):
    db.rows(
        "CREATE TABLE written AS SELECT (ARRAY[0.1, 0.25, 1e6, 1234567, 1e-5]::real[])[1 + g % 5] AS r,"
        " (ARRAY[1.50, 2.25, 1000000.00, 0.00]::numeric(12, 2)[])[1 + g % 4] AS n,"
        " (ARRAY[1e15, 123456789012345, 0.0001, 1e-5, 0.1]::float8[])[1 + g % 5] AS d,"
        " (ARRAY['1.5', '1.50', '2', '2.0', '7.000']::numeric[])[1 + g % 5] AS m,"
        " random() AS x, (g % 2)::text AS y FROM generate_series(1, 200) AS g"
    )
    db.rows("SELECT madlib_mop.propose_columns('written', 'written_columns', 'y')")
    db.rows(
        "UPDATE written_columns SET kind = 'category', encode = 'one_hot', impute = NULL, scale = 'none'"
        " WHERE name IN ('r', 'n', 'd', 'm')"
    )
    return db


def levels_of(db, table):
    document = Preprocessor.from_json(db.value(f"SELECT preprocessor FROM {table}_summary"))
    return {column.name: column.fit.levels for column in document.inputs if hasattr(column.fit, "levels")}


def test_levels_of_numbers_have_the_texts_of_the_column(written):
    written.rows("SELECT madlib_mop.pack_columns('written', 'own', 'y', columns => 'written_columns', seed => 1)")
    found = levels_of(written, "own")
    for name in ("r", "n", "d"):
        texts = written.rows(f"SELECT DISTINCT {name}::text FROM written")
        assert sorted(found[name]) == sorted(text for (text,) in texts)
    assert set(found["m"]) == {"1.5", "2", "7.000"}, "of equal numbers the one with the fewest digits"


@pytest.mark.parametrize(
    ("name", "levels", "own"),
    [("r", "{0.25,0.1,100}", ("0.25", "0.1", "100")), ("n", "{2.25,1.5,0}", ("2.25", "1.50", "0.00")),
     ("m", "{2,1.50}", ("2", "1.5"))],
)  # fmt: skip
def test_edited_levels_are_accepted_as_the_column_or_a_person_writes_them(written, name, levels, own):
    written.rows("DROP TABLE IF EXISTS edited, edited_summary, edited_columns")
    written.rows("CREATE TABLE edited_columns AS SELECT * FROM written_columns")
    written.rows("UPDATE edited_columns SET levels = %s WHERE name = %s", [levels, name])
    written.rows("SELECT madlib_mop.pack_columns('written', 'edited', 'y', columns => 'edited_columns', seed => 1)")
    assert levels_of(written, "edited")[name] == own
    n_known = written.value(f"SELECT count(*) FROM written WHERE {name}::text = ANY (%s) OR {name} IN (1.5, 2)", [
        list(own)]) if name == "m" else written.value(f"SELECT count(*) FROM written WHERE {name}::text = ANY (%s)", [
        list(own)])  # fmt: skip
    units = content(written, "edited")["numbers"]
    names = written.rows("SELECT column_name, units FROM madlib_mop.describe_preprocessor('edited')")
    start = [unit for _, found in names[:-1] for unit in found or []].index(dict(names)[name][0])
    assert int(units[:, start + 1 : start + 1 + len(own)].sum()) == n_known


@pytest.mark.parametrize("target", ["r", "n"])
def test_the_classes_of_a_target_are_its_texts(written, target):
    written.rows("DROP TABLE IF EXISTS of_numbers, of_numbers_summary, of_numbers_columns")
    written.rows(f"SELECT madlib_mop.propose_columns('written', 'of_numbers_columns', '{target}')")
    written.rows(
        "UPDATE of_numbers_columns SET kind = 'category', encode = 'one_hot', scale = 'none' WHERE role = 'target'"
    )
    written.rows(
        f"SELECT madlib_mop.pack_columns('written', 'of_numbers', '{target}', columns => 'of_numbers_columns',"
        " seed => 1)"
    )
    values, counts = written.rows(f"SELECT {target}_class_values, {target}_class_counts FROM of_numbers_summary")[0]
    expected = written.rows(f"SELECT w.{target}::text, count(*) FROM written w GROUP BY w.{target} ORDER BY w.{target}")
    assert list(zip(values, counts, strict=True)) == expected
