"""Packing of ordinary tables: the proposal and its editing, one pass over the rows, and the networks' inputs."""

import hashlib
from contextlib import closing

import keras
import numpy as np
import psycopg2
import pytest

from tests.helpers.columns import CUSTOMERS, content, load_churn_network, pack_with, refusal
from tests.helpers.database import OneSession
from tests.helpers.training import fit, one_thread

pytestmark = pytest.mark.one_session


@pytest.fixture(scope="module")
def customers(db):
    one_thread()
    with closing(OneSession(db)) as db:
        db.rows(CUSTOMERS)
        pack_with(db, 1, "pack_columns('customers', 'packed', 'churned', validation => 0.2, seed => 1)")
        yield db


def digest(db, table: str) -> str:
    """Return one digest of a packed table's content and its preprocessor."""
    found = hashlib.sha256(db.value(f"SELECT preprocessor_digest FROM {table}_summary").encode())
    for name, rows in sorted(content(db, table).items()):
        found.update(name.encode() + rows.tobytes())
    return found.hexdigest()


def test_the_proposal_says_what_would_be_done_with_each_column_and_why(customers):
    customers.rows("SELECT madlib_mop.propose_columns('customers', 'proposal', 'churned')")
    rows = customers.rows("SELECT name, role, kind, encode, n_rows, n_null FROM proposal")
    assert {row[0]: row[1:] for row in rows} == {
        "id": ("ignored", "category", "index", 600, 0),
        "age": ("input", "number", "identity", 600, 66),
        "income": ("input", "number", "identity", 600, 0),
        "tier": ("input", "category", "one_hot", 600, 200),
        "city": ("input", "category", "index", 600, 0),
        "active": ("input", "boolean", "identity", 600, 0),
        "joined": ("input", "datetime", "parts", 600, 0),
        "seen": ("input", "datetime", "parts", 600, 0),
        "churned": ("target", "category", "one_hot", 600, 0),
    }
    assert "Key" in customers.value("SELECT reason FROM proposal WHERE name = 'id'")
    assert customers.value("SELECT count(*) FROM proposal WHERE coalesce(reason, '') = ''") == 0


def test_later_rows_have_a_time_where_intervals_were_packed(customers):
    """Both are read as seconds; also under a domain, whose name does not say which of the two it is."""
    customers.rows("CREATE DOMAIN shift AS interval")
    customers.rows(
        "CREATE TABLE shifts AS SELECT i % 9 AS x, i * interval '1 s' AS long, (i * interval '2 s')::shift AS own,"
        " i % 2 = 0 AS late FROM generate_series(1, 40) AS i"
    )
    customers.rows("SELECT madlib_mop.pack_columns('shifts', 'shifts_packed', 'late', seed => 1)")
    again = "SELECT madlib.validation_preprocessor_dl('{}', '{}_packed', '*', '*', 'shifts_packed')"
    customers.rows("CREATE VIEW same AS SELECT x, long, own::interval AS own, late FROM shifts")
    customers.rows(again.format("same", "same"))
    for name in ("long", "own"):
        columns = ", ".join(f"time '00:00' + {one} AS {one}" if one == name else one for one in ("long", "own"))
        customers.rows(f"CREATE VIEW clock_{name} AS SELECT x, {columns}, late FROM shifts")
        with pytest.raises(psycopg2.Error, match=f"column '{name}' must be an interval, .* Received: time"):
            customers.rows(again.format(f"clock_{name}", f"clock_{name}"))


def test_the_packed_tables_have_the_encoded_rows(customers):
    independent, index, classes, counts = customers.rows(
        "SELECT independent_varname, index_columns, churned_class_values, churned_class_counts FROM packed_summary"
    )[0]
    assert (independent, index, classes) == (["numbers", "city"], ["city"], ["no", "yes"])
    packed, held_out = content(customers, "packed"), content(customers, "packed_validation")
    assert len(packed["numbers"]) == sum(counts) == 480 and len(held_out["numbers"]) == 120
    city = packed["city"].view(np.int32)
    assert city.min() >= 2 and city.max() <= 41 and packed["numbers"].dtype == np.float32
    units = customers.rows("SELECT units FROM madlib_mop.describe_preprocessor('packed')")
    assert packed["numbers"].shape[1] == sum(len(names) for (names,) in units if names)
    share = packed["churned"][:, 1].mean() - held_out["churned"][:, 1].mean()
    assert abs(share) < 0.01, "the split is stratified"


def test_the_validation_rows_are_others_and_the_statistics_know_nothing_of_them(customers):
    customers.rows("CREATE TABLE outlier AS SELECT * FROM customers")
    customers.rows("ALTER TABLE outlier ADD held_out boolean; UPDATE outlier SET held_out = id % 5 = 0")
    customers.rows("UPDATE outlier SET income = 1e6 + id WHERE held_out")
    customers.rows(
        "SELECT madlib_mop.pack_columns('outlier', 'packed_o', 'churned', validation => 'held_out', seed => 1,"
        " exclude => '{held_out}')"
    )
    held_out = content(customers, "packed_o_validation")["numbers"]
    assert len(held_out) == 120 and held_out.max() > 100, "far outside of what the training rows have"


@pytest.mark.parametrize("n_segments", [1, 3, 16])
def test_the_same_bits_on_any_segments_and_for_rows_in_any_order(customers, n_segments):
    customers.rows(
        "DROP TABLE IF EXISTS shuffled; CREATE TABLE shuffled AS SELECT * FROM customers ORDER BY id * 389 % 600"
    )
    call = f"pack_columns('shuffled', 'packed_{n_segments}', 'churned', validation => 0.2, seed => 1)"
    pack_with(customers, n_segments, call)
    assert digest(customers, f"packed_{n_segments}") == digest(customers, "packed")
    assert digest(customers, f"packed_{n_segments}_validation") == digest(customers, "packed_validation")


def test_an_edited_proposal_is_followed(customers):
    customers.rows("SELECT madlib_mop.propose_columns('customers', 'edited', 'churned')")
    customers.rows("UPDATE edited SET encode = 'one_hot', width = NULL WHERE name = 'city'")
    customers.rows("UPDATE edited SET role = 'ignored' WHERE kind = 'datetime'")
    customers.rows("SELECT madlib_mop.pack_columns('customers', 'packed_e', 'churned', columns => 'edited', seed => 1)")
    rows = dict(customers.rows("SELECT column_name, units FROM madlib_mop.describe_preprocessor('packed_e')"))
    assert set(rows) == {"age", "income", "tier", "city", "active", "churned"} and len(rows["city"]) == 41
    assert customers.value("SELECT independent_varname FROM packed_e_summary") == ["numbers"]


def test_the_column_that_splits_the_rows_is_no_input_of_an_edited_proposal(customers):
    customers.rows("CREATE TABLE marked AS SELECT *, id % 5 = 0 AS held_out FROM customers")
    customers.rows("SELECT madlib_mop.propose_columns('marked', 'of_marked', 'churned')")
    assert customers.value("SELECT role FROM of_marked WHERE name = 'held_out'") == "input"
    customers.rows(
        "SELECT madlib_mop.pack_columns('marked', 'packed_m', 'churned', columns => 'of_marked', seed => 1,"
        " validation => 'held_out')"
    )
    used = {name for (name,) in customers.rows("SELECT column_name FROM madlib_mop.describe_preprocessor('packed_m')")}
    assert "age" in used and "held_out" not in used


def test_the_notice_says_which_columns_the_proposal_ignores(customers):
    connection = customers.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE noted AS SELECT *, 7 AS seven, '{}'::json AS doc, income AS pay FROM customers")
        cursor.execute("SELECT madlib_mop.pack_columns('noted', 'packed_n', 'churned', exclude => '{pay}', seed => 1)")
    said = [notice for notice in connection.notices if "ignored" in notice]
    connection.close()
    assert len(said) == 1
    assert "ignored: id (key), seven (constant), doc (type json is not read); madlib_mop.propose_columns" in said[0]


def test_columns_to_check_are_named_by_the_proposal_the_notice_and_the_summary(customers):
    """The same call names the same columns, for rows in any order; they remain inputs."""
    leak = "CASE WHEN churned = 'yes' THEN joined + 900 END AS closed, 10^9 + id * 7919 % 1000003 AS account"
    customers.rows(f"CREATE TABLE leaking AS SELECT *, {leak} FROM customers ORDER BY id")
    customers.rows(f"CREATE TABLE leaking_2 AS SELECT *, {leak} FROM customers ORDER BY id * 389 % 600")
    customers.rows("SELECT madlib_mop.propose_columns('leaking', 'of_leaking', 'churned')")
    marked = customers.rows("SELECT name, role, reason FROM of_leaking WHERE reason LIKE '%Check it:%' ORDER BY name")
    assert [row[:2] for row in marked] == [("account", "input"), ("closed", "input")]
    assert "Check it: 600 distinct values in 600 rows: an identifier?" in marked[0][2]
    assert "Check it: alone, it predicts churned with an AUC of 1.00: is it known in time?" in marked[1][2]
    found = []
    for table in ("leaking", "leaking_2"):
        connection = customers.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT madlib_mop.pack_columns('{table}', 'packed_{table}', 'churned', 0.2, seed => 1)")
            cursor.execute(f"SELECT columns_to_check FROM packed_{table}_summary")
            ((texts,),) = cursor.fetchall()
            cursor.execute(f"SELECT columns_to_check FROM packed_{table}_validation_summary")
            assert cursor.fetchall() == [([],)]
        (said,) = [notice for notice in connection.notices if "check these columns" in notice]
        connection.close()
        assert said.strip() == f"NOTICE:  pack_columns: check these columns: {', '.join(texts)}"
        found.append(texts)
    assert [text.partition(" ")[0] for text in found[0]] == ["closed", "account"] and found[0] == found[1]


def test_targets_have_the_order_and_notices_the_scale_and_the_name_that_the_caller_gave(customers):
    """Targets had the table's order; the notice said that each number is standardised; names had quotes inside."""
    customers.rows("CREATE VIEW three AS SELECT id % 7 AS x, age AS a, churned AS b, income AS c FROM customers"
                   " WHERE age IS NOT NULL AND income IS NOT NULL AND churned IS NOT NULL")  # fmt: skip
    customers.rows("SELECT madlib_mop.propose_columns('three', 'of_three', 'a, b, c')")
    customers.rows("UPDATE of_three SET encode = 'identity', kind = 'number', scale = 'min_max' WHERE name = 'a'")
    customers.rows("UPDATE of_three SET scale = 'log1p' WHERE name = 'c'")
    connection = customers.connect()
    with connection.cursor() as cursor:
        for output, columns in ("Big Out", "NULL"), ("Big 2", "'of_three'"):
            cursor.execute(
                f"SELECT madlib_mop.pack_columns('three', '\"{output}\"', 'c, b, a', validation => 0.2, seed => 1,"
                f" columns => {columns})"
            )
            cursor.execute(f'SELECT dependent_varname FROM "{output}_summary"')
            assert cursor.fetchone() == (["c", "b", "a"],)
        cursor.execute("SELECT array_agg(column_name) FILTER (WHERE role = 'target')"
                       " FROM madlib_mop.describe_preprocessor('\"Big 2\"')")  # fmt: skip
        assert cursor.fetchone() == (["c", "b", "a"],)
        cursor.execute('SELECT output_table FROM "Big Out_validation_summary"')
        assert cursor.fetchone() == ('"Big Out_validation"',)
    said = "".join(connection.notices)
    connection.close()
    assert "c is a number: standardised for the network" in said
    assert "c is a number: its logarithm is standardised for the network" in said
    assert "a is a number: scaled to 0 to 1 for the network" in said
    assert 'pack_columns: "Big Out_validation": ' in said


SERIAL = "SET max_parallel_workers_per_gather = 0"
PARALLEL = (
    "SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;"
    " SET min_parallel_table_scan_size = 0"
)


def test_the_statistics_are_the_same_for_a_parallel_query(customers):
    customers.rows("CREATE VIEW of_customers AS SELECT * FROM customers WHERE income >= 0")  # not read by blocks
    digests = set()
    for name, settings in (("serial", SERIAL), ("parallel", PARALLEL)):
        connection = customers.connect()
        with connection.cursor() as cursor:
            cursor.execute(settings)
            cursor.execute("EXPLAIN SELECT * FROM of_customers")
            plan = "".join(line for (line,) in cursor.fetchall())
            assert ("Gather" in plan) is (name == "parallel")
            call = f"pack_columns('of_customers', 'packed_{name}', 'churned', validation => 0.2, seed => 1)"
            cursor.execute(f"SELECT madlib_mop.{call}")
        connection.close()
        digests.add(digest(customers, f"packed_{name}"))
    assert len(digests) == 1


def test_the_client_and_the_types_of_a_database_do_not_change_what_is_packed(customers):
    """Neither the client's encoding nor the oids of enums and domains, which another database has others of."""
    for number in (1, 2):
        customers.rows(f"CREATE TYPE place_{number} AS ENUM ('Köln', 'Orléans')")
        customers.rows(f"CREATE DOMAIN years_{number} AS integer")
        customers.rows(
            f"CREATE TABLE places_{number} AS SELECT age::years_{number} AS age, churned, city::char(12) AS city,"
            f" (ARRAY['Köln', 'Orléans'])[1 + id % 2]::place_{number} AS place, city::text AS name FROM customers"
        )
    packed = []
    for number, encoding in ((1, "UTF8"), (1, "LATIN1"), (2, "UTF8"), (2, "LATIN1")):
        connection = customers.connect()
        connection.set_client_encoding(encoding)
        output = f"places_{number}_{encoding.lower()}"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT madlib_mop.pack_columns('places_{number}', '{output}', 'churned', seed => 1)")
        connection.close()
        document = customers.value(f"SELECT preprocessor FROM {output}_summary")
        packed.append((document, {name: rows.tobytes() for name, rows in content(customers, output).items()}))
    assert packed[0] == packed[1] and "K\\u00f6ln" in packed[0][0], "of another client"
    assert packed[0][1] == packed[2][1] == packed[3][1], "of other types"


BAD = {
    "pack_columns('customers', 'p', 'no_column')": "no column 'no_column'",
    "pack_columns('customers', 'p', 'chruned', validation => 0.2)": "no column 'chruned'",
    "pack_columns('customers', 'p', 'joined', validation => 0.2)": "which cannot be predicted",
    "pack_columns('customers', 'p', 'churned', validation => 0.2, exclude => '{churned}')": "in exclude",
    "pack_columns('customers', 'p', 'churned', validation => 1.5)": "share above 0 and below 1",
    "pack_columns('customers', 'p', 'churned', validation => 'last 20% by city')": "no date or timestamp",
    "pack_columns('customers', 'p', 'churned', validation => 'last 20% by nothing')": "no column 'nothing'",
    "pack_columns('customers', 'p', 'churned', validation => 'some')": "no column 'some'",
    "pack_columns('customers', 'p', 'churned', validation => -0.2)": "share above 0 and below 1. Received: -0.2",
    "pack_columns('customers', 'p', 'churned', validation => 'NaN'::float8)": "share above 0 and below 1. Received: n",
    "pack_columns('customers', 'p', 'churned', columns => 'of_halves', exclude => '{income}')": "in of_halves.",
    "pack_columns('halves', 'p', 'churned', columns => 'of_halves', validation => 'held_out')":
        "no column has the role input",
    "pack_columns('mixed', 'p', 'Churned')": 'Write it quoted: "Churned".',
    "pack_columns('mixed', 'p', '\"Churned\"', exclude => '{seen}')": "Write 'Seen'.",
    "pack_columns('mixed', 'p', '\"Churned\"', validation => 'last 20% by Seen')": 'Write it quoted: "Seen".',
    "pack_columns('customers', 'p', 'tier')": "'tier'",
    "pack_columns('customers', 'packed', 'churned')": "exist already",
    "pack_columns('customers', 'p', 'churned', columns => 'customers')": "has no column 'name'",
    "pack_columns('no_table', 'p', 'churned')": "does not exist",
    "propose_columns('customers', 'p', 'churned', exclude => '{churned}')": "'churned'",
    "propose_columns('customers', 'p', 'churned', task => 'regression')":
        "task is 'regression', but dependent column 'churned' is of type text",
    "pack_columns('customers', 'p', 'city, churned', task => 'Regression')": "but dependent column 'city' is of type",
    "pack_columns('customers', 'p', 'age', task => 'ranking')":
        "task must be one of classification, regression. Received: 'ranking'",
    "pack_columns('halves', 'p', 'churned', columns => 'of_halves', task => 'regression')":
        "target 'churned' has the kind 'category' in",
    "describe_preprocessor('customers')": "not made by pack_columns",
}


@pytest.fixture(scope="module")
def tables_of_bad(customers):
    customers.rows('CREATE TABLE mixed AS SELECT age, seen AS "Seen", churned AS "Churned" FROM customers')
    customers.rows("CREATE TABLE halves AS SELECT *, id % 5 = 0 AS held_out FROM customers")
    customers.rows("SELECT madlib_mop.propose_columns('halves', 'of_halves', 'churned')")
    customers.rows("UPDATE of_halves SET role = 'ignored' WHERE role = 'input' AND name <> 'held_out'")
    return customers


@pytest.mark.parametrize("call", BAD)
def test_wrong_input_has_one_clear_error(tables_of_bad, call):
    customers = tables_of_bad
    assert BAD[call] in str(refusal(customers, call))
    assert customers.value("SELECT to_regclass('p')") is None


TABLES = {
    "SELECT i % 4 AS a, 1 AS y FROM generate_series(1, 9) i": "one class only",
    "SELECT i AS a, i % 2 AS y FROM generate_series(1, 9) i WHERE false": "no rows",
    "SELECT NULL::int AS a, i % 2 AS y FROM generate_series(1, 9) i": "no column has the role input",
    "SELECT CASE i WHEN 5 THEN 'NaN'::real ELSE i END AS a, i % 2 AS y FROM generate_series(1, 9) i": "NaN (row with",
    "SELECT CASE i WHEN 5 THEN '-infinity'::date ELSE '2020-01-01'::date + i END AS a, i % 2 AS y"
    " FROM generate_series(1, 9) i": "-infinity (row with ctid",
    "SELECT NULL::text AS y, i AS a FROM generate_series(1, 9) i": "has no values",
    "SELECT 'a'::ab AS y, i % 4 AS a FROM generate_series(1, 9) i": "one class only",
    "SELECT '{}'::int[] AS a, i % 2 AS y FROM generate_series(1, 9) i": "no column has the role input",
    "SELECT array_fill(1, ARRAY[1 + (i = 7)::int]) AS a, i % 2 AS y FROM generate_series(1, 9) i":
        "'a' has 2 elements, where 1 are expected (row with ctid (0,7))",
    "SELECT CASE i WHEN 7 THEN ARRAY[1, NULL] ELSE ARRAY[1, 2] END AS a, i % 2 AS y FROM generate_series(1, 40) i":
        "'a' has a NULL element (number 2) (row with ctid (0,7))",
    "SELECT CASE i WHEN 7 THEN date '300000-01-01' END AS a, i % 2 AS y FROM generate_series(1, 40) i":
        "'a' has a date that no timestamp can hold (row with ctid (0,7))",
    "SELECT array_fill(1, ARRAY[1 + (i / 20001)]) AS a, i % 2 AS y, repeat('x', 100) AS t"
    " FROM generate_series(1, 40000) i": "'a' has 2 elements, where 1 are expected (row with ctid (",
    "SELECT decode('ffd8ffe0', 'hex') AS a, i % 2 AS y FROM generate_series(1, 9) i": "column 'a' is not a JPEG or PNG",
    "SELECT decode('00ff00ff', 'hex') AS a, i % 2 AS y FROM generate_series(1, 9) i": "no column has the role input",
    "SELECT '{}'::jsonb AS a, i % 2 AS y FROM generate_series(1, 9) i": "no column has the role input",
}


@pytest.mark.parametrize("query", TABLES)
def test_a_table_that_cannot_be_trained_on_has_one_clear_error(customers, query):
    db = customers
    db.rows("DROP TABLE IF EXISTS bad; DROP TYPE IF EXISTS ab; CREATE TYPE ab AS ENUM ('a', 'b')")
    db.rows(f"CREATE TABLE bad AS {query}")
    error = refusal(db, "pack_columns('bad', 'p', 'y')")
    assert TABLES[query] in str(error), error
    assert db.value("SELECT to_regclass('p')") is None


@pytest.fixture(scope="module")
def churn(customers):
    """A model of the customers, and their rows with labels."""
    load_churn_network(customers, "arch_p", "mst_p")
    customers.run = fit(
        customers, "churn", "mst_p", 8, source_table="packed", validation_table="packed_validation", seed=1
    )
    return customers


def test_a_network_with_an_embedding_trains_on_it(churn):
    query = "SELECT validation_metric FROM madlib_mop.leaderboard WHERE run_id = %s"
    assert churn.value(query, [churn.run.run_id]) > 0.8


def test_a_model_predicts_the_rows_of_a_table(churn):
    rows = churn.rows(
        "SELECT c.churned, madlib_mop.predict_class('churn', 1, c), madlib_mop.predict('churn', 1, c),"
        " madlib_mop.predict_json('churn', 1, c) FROM customers AS c ORDER BY id LIMIT 50"
    )
    assert sum(real == guess for real, guess, _, _ in rows) > 40
    for _, guess, values, named in rows:
        assert list(named) == ["no", "yes"] and abs(sum(values) - 1) < 1e-5
        assert guess == max(named, key=named.get)


def test_no_skew_between_packing_and_prediction(churn):
    """The prediction for a row equals that for the row's packed tensors, bit for bit."""
    weights, arch = churn.rows("SELECT model_weights, model_arch::text FROM churn")[0]
    model = keras.models.model_from_json(arch)
    flat, start, arrays = np.frombuffer(weights, np.float32), 0, []
    for variable in model.get_weights():
        arrays.append(flat[start : start + variable.size].reshape(variable.shape))
        start += variable.size
    model.set_weights(arrays)
    packed = [content(churn, table) for table in ("packed", "packed_validation")]
    numbers = np.concatenate([rows["numbers"] for rows in packed])
    city = np.concatenate([rows["city"].view(np.int32) for rows in packed])
    full = np.arange(-(-len(numbers) // 48) * 48) % len(numbers)  # a number of rows that kernels treat alike
    expected = set(map(tuple, keras.ops.convert_to_numpy(model([numbers[full], city[full]])).tolist()))
    found = churn.rows("SELECT madlib_mop.predict('churn', 1, c) FROM customers AS c")
    assert len(found) == 600
    assert [values for (values,) in found if tuple(np.float32(v).item() for v in values) not in expected] == []


def test_rows_of_queries_other_columns_and_unseen_values_predict(churn):
    full = churn.value("SELECT madlib_mop.predict('churn', 1, c) FROM customers AS c WHERE id = 5")
    named = "SELECT madlib_mop.predict('churn', 1, s) FROM (SELECT seen, joined, active, city, tier, income, age,"
    more = "'more'::text AS note, '{}'::jsonb AS other FROM customers WHERE id = 5) AS s"
    assert churn.value(f"{named} {more}") == full
    other = churn.value(
        "SELECT madlib_mop.predict_class('churn', 1, s) FROM (SELECT seen, joined, active, 'Atlantis' AS city, NULL AS"
        " tier, NULL::numeric AS income, NULL::integer AS age FROM customers WHERE id = 5) AS s"
    )
    assert other in ("no", "yes")
    assert churn.value("SELECT madlib_mop.predict_class('churn', 1, NULL::customers)") is None


WRONG_ROWS = {
    "SELECT seen, joined, active, tier, income, age FROM customers": "column 'city' is missing",
    "SELECT seen, joined, active, city, tier, income, age::text AS age FROM customers": "column 'age' must be",
    "SELECT seen, joined, active, city, tier, 'NaN'::float8 AS income, age FROM customers": "NaN",
}


@pytest.mark.one_case
@pytest.mark.parametrize("query", WRONG_ROWS)
def test_a_wrong_row_is_one_error_that_names_the_column(churn, query):
    error = refusal(churn, f"predict_class('churn', 1, s) FROM ({query} LIMIT 1) AS s")
    assert WRONG_ROWS[query] in str(error), error


def test_a_proposal_without_excluded_columns_reads_no_value_of_them(db):
    db.rows(
        "CREATE TABLE ragged AS SELECT i * 37 % 101 / 10.0 AS x, array_fill(1, ARRAY[1 + i % 3]) AS tags,"
        " CASE i WHEN 7 THEN date '300000-01-01' END AS day, i % 2 = 0 AS y FROM generate_series(1, 90) i"
    )
    db.rows("SELECT madlib_mop.propose_columns('ragged', 'of_ragged', 'y', exclude => '{tags,day}')")
    assert db.rows("SELECT name, role, kind, n_rows, reason FROM of_ragged WHERE name IN ('tags', 'day')") == [
        ("tags", "ignored", "array", None, "Named in exclude."),
        ("day", "ignored", "datetime", None, "Named in exclude."),
    ]
    db.rows("SELECT madlib_mop.pack_columns('ragged', 'packed_ragged', 'y', columns => 'of_ragged', seed => 1)")


def test_domains_are_treated_as_their_base_types(db):
    db.rows("CREATE DOMAIN stars AS int; CREATE DOMAIN more_stars AS stars")
    for sql_type in ("stars", "more_stars"):
        db.rows(f"CREATE TABLE of_{sql_type} AS SELECT i * 37 % 101 / 10.0 AS x, (1 + i % 5)::{sql_type} AS y"
                " FROM generate_series(1, 500) i")  # fmt: skip
        db.rows(f"SELECT madlib_mop.pack_columns('of_{sql_type}', 'packed_{sql_type}', 'y', seed => 1)")
        assert db.value(f"SELECT y_class_values FROM packed_{sql_type}_summary") == ["1", "2", "3", "4", "5"]


@pytest.mark.slow
def test_a_regression_predicts_in_the_units_of_the_table(churn):
    query = "SELECT i % 97 AS area, 1e5 + 3e3 * (i % 97) AS price FROM generate_series(1, 600) i"
    churn.rows(f"CREATE TABLE houses AS {query}")
    churn.rows("SELECT madlib_mop.pack_columns('houses', 'houses_packed', 'price', seed => 1)")
    arch = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).to_json()
    churn.rows("SELECT madlib.load_keras_model('arch_h', %s::json)", [arch])
    churn.rows(
        "SELECT madlib.load_model_selection_table('arch_h', 'mst_h', '{1}', %s::varchar[], %s::varchar[])",
        [["optimizer='adam(lr=0.1)', loss='mse'"], ["batch_size=32, epochs=1"]],
    )
    fit(churn, "prices", "mst_h", 10, source_table="houses_packed", seed=1)
    for price, guess in churn.rows("SELECT price, madlib_mop.predict_number('prices', 1, h) FROM houses h LIMIT 20"):
        assert abs(float(price) - guess) < 2000
    error = refusal(churn, "predict_class('prices', 1, h) FROM houses h LIMIT 1")
    assert "predicts a number" in str(error) and "madlib_mop.predict_number returns" in str(error)


def test_the_record_keeps_the_preprocessor_of_a_run(churn):
    digest_of_table = churn.value("SELECT preprocessor_digest FROM packed_summary")
    query = "SELECT digest, document = (SELECT preprocessor FROM churn_summary) FROM madlib_mop.preprocessor"
    assert churn.rows(f"{query} WHERE run_id = %s", [churn.run.run_id]) == [(digest_of_table, True)]
    churn.rows("SELECT madlib_mop.replay(%s, 'churn_again')", [churn.run.run_id])
    assert churn.value("SELECT preprocessor_digest FROM churn_again_summary") == digest_of_table


def test_a_validation_table_of_another_preprocessor_is_refused(churn):
    churn.rows("SELECT madlib_mop.pack_columns('customers', 'packed_other', 'churned', validation => 0.2, seed => 2)")
    with pytest.raises(psycopg2.Error) as caught:
        fit(churn, "x", "mst_p", 1, source_table="packed", validation_table="packed_other_validation", seed=1)
    assert "another preprocessor" in str(caught.value)
