"""transform: a table of what networks get, with the bits of packing; unseen values, NULLs, names and limits."""

import numpy as np
import pytest

from tests.helpers.columns import CUSTOMERS, content, refusal

pytestmark = pytest.mark.one_session


@pytest.fixture(scope="module")
def customers(db):
    db.rows(CUSTOMERS)
    db.rows("SELECT madlib_mop.pack_columns('customers', 'packed', 'churned', validation => 0.2, seed => 1)")
    db.rows("SELECT madlib_mop.transform('packed', 'customers', 'encoded', keep => 'id')")
    return db


def columns_of(db, table: str) -> dict[str, str]:
    query = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass"
    return dict(db.rows(f"{query} AND attnum > 0 ORDER BY attnum", [table]))


def sorted_rows(*arrays: np.ndarray) -> list[bytes]:
    """Return the rows of arrays side by side as bytes, sorted."""
    return sorted(b"".join(part.tobytes() for part in row) for row in zip(*arrays, strict=True))


def test_the_table_has_one_column_a_unit_by_the_names_of_describe_preprocessor(customers):
    units = [
        u for (names,) in customers.rows("SELECT units FROM madlib_mop.describe_preprocessor('packed')") for u in names
    ]
    expected = {"id": "integer", **dict.fromkeys(units, "real"), "city": "integer", "churned": "smallint[]"}
    assert columns_of(customers, "encoded") == expected and len(units) > 10
    assert customers.value("SELECT count(DISTINCT id) FROM encoded") == 600


def test_its_bits_are_those_of_the_packed_rows(customers):
    packed = {name: [content(customers, table)[name] for table in ("packed", "packed_validation")]
              for name in ("numbers", "city", "churned")}  # fmt: skip
    whole = [np.concatenate(parts) for parts in packed.values()]
    names = [name for name, sql_type in columns_of(customers, "encoded").items() if sql_type == "real"]
    quoted = ", ".join('"' + name + '"' for name in names)
    rows = customers.rows(f"SELECT ARRAY[{quoted}], city, churned FROM encoded")
    numbers, city, churned = (list(column) for column in zip(*rows, strict=True))
    found = np.array(numbers, np.float32), np.array(city, np.int32)[:, None], np.array(churned, np.int16)
    assert sorted_rows(*found) == sorted_rows(whole[0], whole[1].view(np.int32), whole[2])


def test_rows_without_targets_and_with_unseen_values_and_nulls(customers):
    customers.rows(
        "CREATE VIEW later AS SELECT 'more' AS note, id, NULL::integer AS age, income * 1e9 AS income, 'tin' AS tier,"
        " 'Atlantis ' || id AS city, NULL::boolean AS active, joined + 40000 AS joined, seen FROM customers"
    )
    customers.rows("SELECT madlib_mop.transform('packed', 'later', 'encoded_later', keep => 'id, note')")
    types = columns_of(customers, "encoded_later")
    assert "churned" not in types and types["note"] == "text"
    assert customers.rows('SELECT DISTINCT city, "tier is another", "age is NULL" FROM encoded_later') == [(1, 1, 1)]


def test_unknown_targets_are_null(customers):
    customers.rows(
        "CREATE VIEW open AS SELECT id, age, income, tier, city, active, joined, seen,"
        " CASE id % 3 WHEN 0 THEN churned WHEN 1 THEN 'perhaps' END AS churned FROM customers"
    )
    customers.rows("SELECT madlib_mop.transform('packed', 'open', 'encoded_open', keep => 'id')")
    wrong = (
        "SELECT count(*) FROM encoded_open o JOIN encoded e USING (id)"
        " WHERE o.churned IS DISTINCT FROM CASE WHEN id % 3 = 0 THEN e.churned END"
    )
    assert customers.value(wrong) == 0
    customers.rows("CREATE VIEW none AS SELECT *, NULL::text AS c FROM open")
    customers.rows("SELECT madlib_mop.transform('packed', 'none', 'encoded_none')")


def test_texts_and_vectors_are_arrays_and_kept_columns_are_unchanged(customers):
    customers.rows(
        "CREATE TYPE mood AS ENUM ('sad', 'happy');"
        "CREATE TABLE notes AS SELECT i AS id, 'word ' || i || ' and more of them, many' AS note,"
        " CASE WHEN i % 5 > 0 THEN ARRAY[i, i / 3.0, 1]::real[] END AS place, 1.5 * i AS y,"
        " (ARRAY['sad', 'happy', NULL])[1 + i % 3]::mood AS mood,"
        " CASE WHEN i % 7 > 0 THEN now() + i * interval '1 hour' END AS made, ARRAY['a,b', '\"', NULL] AS tags,"
        " 0.1 * i::float8 AS exact FROM generate_series(1, 40) i"
    )
    customers.rows(
        "SELECT madlib_mop.propose_columns('notes', 'notes_columns', 'y', exclude => '{mood,made,tags,exact}')"
    )
    customers.rows(
        "UPDATE notes_columns SET role = 'input', kind = 'text', impute = 'zero', encode = 'hashed_ngrams', width = 32,"
        " indicator = false, scale = NULL, max_levels = NULL WHERE name = 'note'"
    )
    customers.rows(
        "SELECT madlib_mop.pack_columns('notes', 'notes_packed', 'y', columns => 'notes_columns', seed => 1)"
    )
    customers.rows(
        "SELECT madlib_mop.transform('notes_packed', 'notes', 'notes_encoded', keep => 'id, mood, made, tags, exact')"
    )
    types = columns_of(customers, "notes_encoded")
    assert (types["note"], types["place"], types["y"]) == ("real[]", "real[]", "real")
    assert types["made"] == "timestamp with time zone" and types["mood"] == "mood" and types["tags"] == "text[]"
    changed = (
        "SELECT count(*) FROM notes n JOIN notes_encoded e USING (id) WHERE (n.mood, n.made, n.tags, n.exact)"
        " IS DISTINCT FROM (e.mood, e.made, e.tags, e.exact)"
    )
    assert customers.value(changed) == 0 and customers.value("SELECT count(*) FROM notes_encoded") == 40
    packed = content(customers, "notes_packed")
    rows = customers.rows("SELECT note, place, y FROM notes_encoded")
    found = [np.array(column, np.float32) for column in zip(*rows, strict=True)]
    assert sorted_rows(found[0], found[1], found[2][:, None]) == sorted_rows(
        packed["note"], packed["place"], packed["y"]
    )


@pytest.mark.slow
def test_names_are_cut_to_63_bytes_and_numbered_and_wide_numbers_are_one_array(customers):
    long, umlauts = "l" * 63, "ü" * 31
    customers.rows(
        f"CREATE TABLE long AS SELECT CASE WHEN i % 3 > 0 THEN i % 7 END AS {long},"
        f' CASE WHEN i % 4 > 0 THEN i % 9 END AS "{umlauts}",'
        " i % 2 = 0 AS y FROM generate_series(1, 50) i"
    )
    customers.rows("SELECT madlib_mop.pack_columns('long', 'long_packed', 'y', seed => 1)")
    customers.rows("SELECT madlib_mop.transform('long_packed', 'long', 'long_encoded')")
    names = list(columns_of(customers, "long_encoded"))
    assert (
        names == [long, "l" * 59 + " (2)", umlauts, "ü" * 29 + " (2)", "y"]
        and max(len(n.encode()) for n in names) == 63
    )

    columns = ", ".join(f"i * {n} % 7 AS c{n}" for n in range(1, 1599))
    customers.rows(f"CREATE VIEW wide AS SELECT {columns}, i % 2 = 0 AS y FROM generate_series(1, 20) i")
    customers.rows("SELECT madlib_mop.propose_columns('wide', 'wide_columns', 'y')")
    customers.rows(
        "UPDATE wide_columns SET role = 'input', kind = 'number', impute = 'mean', encode = 'identity',"
        " indicator = true,"
        " scale = 'standard', width = NULL, max_levels = NULL, levels = NULL WHERE name <> 'y'"
    )
    customers.rows("SELECT madlib_mop.pack_columns('wide', 'wide_packed', 'y', columns => 'wide_columns', seed => 1)")
    customers.rows("SELECT madlib_mop.transform('wide_packed', 'wide', 'wide_encoded')")
    assert columns_of(customers, "wide_encoded") == {"numbers": "real[]", "y": "smallint[]"}
    found = [np.array(row[0], np.float32) for row in customers.rows("SELECT numbers FROM wide_encoded")]
    assert sorted_rows(np.array(found)) == sorted_rows(content(customers, "wide_packed")["numbers"])


BAD = {
    "transform('customers', 'customers', 't')": "customers was not made by pack_columns",
    "transform('nothing', 'customers', 't')": "packed_table does not exist",
    "transform('packed', 'nothing', 't')": "source_table does not exist",
    "transform('packed', NULL, 't')": "source_table is missing",
    "transform('packed', 'customers', NULL)": "output_table is missing",
    "transform('packed', 'customers', 'packed')": "exists already",
    "transform('packed', 'packed', 't')": "has no column 'age', with which the table was packed",
    "transform('packed', 'renamed', 't')": "Rename 'CITY' in a view",
    "transform('packed', 'retyped', 't')": "column 'age' must be",
    "transform('packed', 'jsoned', 't')": "column 'city' of public.jsoned is of type jsonb",
    "transform('packed', 'endless', 't')": "column 'income' holds NaN (row 1 in reading order)",
    "transform('packed', 'customers', 't', keep => 'nothing')": "no column 'nothing'",
    "transform('packed', 'customers', 't', keep => 'city')": "already has a column 'city'",
}


@pytest.fixture(scope="module")
def wrong_tables(customers):
    rest = "id, income, tier, active, joined, seen, churned FROM customers"
    customers.rows(f'CREATE VIEW renamed AS SELECT age, city AS "CITY", {rest}')
    customers.rows(f"CREATE VIEW retyped AS SELECT age::text AS age, city, {rest}")
    customers.rows(f"CREATE VIEW jsoned AS SELECT age, to_jsonb(city) AS city, {rest}")
    endless = rest.replace("income", "'NaN'::numeric AS income")
    customers.rows(f"CREATE VIEW endless AS SELECT age, city, {endless}")
    return customers


@pytest.mark.parametrize("call", BAD)
def test_wrong_input_has_one_clear_error(wrong_tables, call):
    assert BAD[call] in str(refusal(wrong_tables, call))
    assert wrong_tables.value("SELECT to_regclass('t')") is None
