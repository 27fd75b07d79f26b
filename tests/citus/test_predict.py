"""Predictions in queries over distributed tables: at the nodes where the rows are, or at the coordinator."""

import psycopg2
import pytest

from tests.helpers.citus import ANALYST, NEEDS_CITUS
from tests.helpers.columns import CUSTOMERS, load_churn_network, pack_with
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.training import fit, script

pytestmark = [*NEEDS_CITUS, pytest.mark.slow, pytest.mark.timeout(900)]
SUFFIXES = ("", "_info", "_summary")
#: Queries of ids and predictions; {x} is the call for one row of the distributed table.
FORMS = {
    "all rows": "SELECT id, {x} FROM flowers",
    "one value of the distribution column": "SELECT id, {x} FROM flowers WHERE id = 7",
    "a CTE with one value": "WITH rows AS MATERIALIZED (SELECT * FROM flowers WHERE id = 7) SELECT id, {x} FROM rows",
    "a join": "SELECT f.id, {x} FROM flowers AS f JOIN others USING (id)",
    "a distributed schema": "SELECT id, {x} FROM tenant.flowers",
    "two statements of a transaction": "BEGIN; SELECT id, {x} FROM flowers; SELECT id, {x} FROM flowers WHERE id = 8",
}
AT_NODES = "madlib_mop.predict('shared', 1, x)"
#: The way round of docs/citus.md: the outer query reads a table that only the coordinator has.
HERE = "WITH rows AS MATERIALIZED ({}) SELECT id, madlib_mop.predict('models', 1, x) FROM rows, pg_dist_local_group"


def share(db, table: str, copy: str) -> None:
    """Copy the tables of a model, and make the copies reference tables."""
    for suffix in SUFFIXES:
        db.rows(f"CREATE TABLE {copy}{suffix} AS TABLE {table}{suffix}")
        db.rows(f"SELECT create_reference_table('{copy}{suffix}')")


@pytest.fixture(scope="module")
def bench(citus):
    """Models of iris in local tables and in reference tables, and the flowers in distributed tables."""
    db = citus.db
    load_iris(db)
    pack_iris(db, 2, "train", "valid")
    load_perceptrons(db, "arch")
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[%s], ARRAY['batch_size=8'])",
        [ADAM.format(0.01)],
    )
    fit(db, "models", "mst", 1, source_table="train", seed=9)
    share(db, "models", "shared")
    script(
        db,
        "CREATE TABLE local_flowers AS SELECT id, attributes::real[] AS x FROM iris",
        "CREATE TABLE flowers AS TABLE local_flowers",
        "CREATE TABLE others AS SELECT id FROM iris WHERE id < 20",
        "SELECT create_distributed_table('flowers', 'id')",
        "SELECT create_distributed_table('others', 'id')",
    )
    script(
        db,
        "SET citus.enable_schema_based_sharding = on",
        "CREATE SCHEMA tenant",
        "CREATE TABLE tenant.flowers (id integer, x real[])",
        "INSERT INTO tenant.flowers TABLE local_flowers",
    )
    citus.expected = dict(db.rows("SELECT id, madlib_mop.predict('models', 1, x) FROM local_flowers"))
    assert len(citus.expected) == 150
    return citus


def refused(db, query: str, **options) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(query, **options)
    assert "Traceback" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("form", FORMS)
def test_models_in_reference_tables_predict_where_the_rows_are(bench, form):
    """With the bits of the coordinator."""
    found = bench.db.rows(FORMS[form].format(x=AT_NODES))
    assert found and all(outputs == bench.expected[number] for number, outputs in found)


def test_a_changed_reference_table_is_read_again_at_the_nodes(bench):
    """A session at a node that has used a model notices that its weights were changed."""
    db = bench.db
    share(db, "models", "changing")
    connection = db.connect()
    with connection.cursor() as cursor:

        def predict():
            cursor.execute("SELECT DISTINCT madlib_mop.predict('changing', 1, x) FROM flowers")
            return cursor.fetchall()

        assert len(predict()) > 100
        zeros = "decode(repeat('00', length(model_weights)), 'hex')"
        cursor.execute(f"UPDATE changing SET weights_digest = NULL, model_weights = {zeros}")
        ((outputs,),) = predict()
        assert outputs == pytest.approx([1 / 3] * 3)
    connection.close()


def test_citus_own_setting_is_as_before(bench):
    """Queries of reference tables are allowed only while a prediction reads its model."""
    connection = bench.db.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.predict('shared', 1, ARRAY[5.1, 3.5, 1.4, 0.2]::real[])")
        cursor.execute("SELECT current_setting('citus.allow_nested_distributed_execution')")
        assert cursor.fetchone() == ("off",)
    connection.close()


@pytest.mark.parametrize("form", FORMS)
def test_other_models_are_refused_at_the_nodes(bench, form):
    """One error: why, the name, and what to do."""
    call = "madlib_mop.predict('models', 1, x)"
    error = refused(bench.db, FORMS[form].format(x=call))
    assert error.pgcode == "0A000", error
    assert "Citus evaluates this query at a worker node, where models" in error.diag.message_primary
    assert "create_reference_table" in error.diag.message_hint and "pg_dist_local_group" in error.diag.message_hint


@pytest.mark.parametrize("made", ["distributed", "view", "without summary"])
def test_tables_whose_rows_can_be_at_other_nodes_are_refused(bench, made):
    """A reference table only: Citus cannot read other tables within a query on a shard."""
    db, name = bench.db, made.replace(" ", "_")
    if made == "distributed":
        for suffix in SUFFIXES:
            db.rows(f"CREATE TABLE {name}{suffix} AS TABLE models{suffix}")
        db.rows(f"SELECT create_distributed_table('{name}', 'mst_key')")
    elif made == "view":
        for suffix in SUFFIXES:
            db.rows(f"CREATE VIEW {name}{suffix} AS SELECT * FROM shared{suffix}")
    else:
        db.rows(f"CREATE TABLE {name} AS TABLE models")
        db.rows(f"SELECT create_reference_table('{name}')")
    error = refused(db, f"SELECT id, madlib_mop.predict('{name}', 1, x) FROM flowers WHERE id = 7")
    lacks = "public.without_summary_summary" if made == "without summary" else name
    assert error.pgcode == "0A000" and f"where {lacks} cannot be read" in error.diag.message_primary, error


def test_a_registered_model_is_refused_at_the_nodes(bench):
    """The registry is at the coordinator; the error does not say that the model does not exist."""
    db = bench.db
    db.rows("SELECT madlib_mop.register('iris', 'models', 1)")
    error = refused(db, "SELECT madlib_mop.predict('iris@1', NULL, x) FROM flowers WHERE id = 7")
    assert error.pgcode == "0A000" and "registered models are at the coordinator" in error.diag.message_primary, error
    assert "pg_dist_local_group" in error.diag.message_hint
    query = HERE.format("SELECT id, x FROM flowers WHERE id = 7").replace("'models', 1", "'iris@1', NULL")
    assert db.rows(query) == [(7, bench.expected[7])]


@pytest.mark.parametrize("rows", ["flowers", "flowers WHERE id = 7", "tenant.flowers"])
def test_the_coordinator_predicts_if_the_query_reads_a_table_of_its_own(bench, rows):
    """The way round of the page, also where all rows are in one shard."""
    found = dict(bench.db.rows(HERE.format(f"SELECT id, x FROM {rows}")))
    assert len(found) == (1 if "7" in rows else 150)
    assert all(outputs == bench.expected[number] for number, outputs in found.items())


def test_rows_of_ordinary_tables(bench):
    """A distributed row; and a local one in a join, whose type the nodes do not know: columns of it, or a CTE."""
    db = bench.db
    db.rows(CUSTOMERS)
    pack_with(db, 2, "pack_columns('customers', 'packed', 'churned', validation => 0.2, seed => 1)")
    load_churn_network(db, "arch_churn", "mst_churn")
    fit(db, "churn", "mst_churn", 1, source_table="packed", seed=1)
    share(db, "churn", "churn_shared")
    expected = dict(db.rows("SELECT id, madlib_mop.predict_class('churn', 1, c) FROM customers AS c"))
    assert {*expected.values()} == {"yes", "no"}
    db.rows("CREATE TABLE clients AS TABLE customers")
    db.rows("SELECT create_distributed_table('clients', 'id')")
    call = "madlib_mop.predict_class('churn_shared', 1, {})"
    assert dict(db.rows(f"SELECT id, {call.format('c')} FROM clients AS c")) == expected
    columns = "c.age, c.income, c.tier, c.city, c.active, c.joined, c.seen"
    join = "clients AS d JOIN customers AS c USING (id)"
    by_columns = f"SELECT id, {call.format(f'(SELECT r FROM (SELECT {columns}) AS r)')} FROM {join}"
    in_cte = f"WITH c AS MATERIALIZED (SELECT c.* FROM {join}) SELECT id, {call.format('c')} FROM c"
    assert dict(db.rows(by_columns)) == dict(db.rows(in_cte)) == expected


def test_an_ordinary_role_needs_its_rights_at_the_nodes(bench):
    """The nodes read the model with the role's own rights; Citus grants them there too."""
    db = bench.db
    bench.make_analyst()
    db.rows(f"GRANT SELECT ON flowers TO {ANALYST}")
    query = f"SELECT id, {AT_NODES} FROM flowers WHERE id = 7"
    error = refused(db, query, role=ANALYST)
    assert error.pgcode == "42501", error
    for suffix in SUFFIXES:
        db.rows(f"GRANT SELECT ON shared{suffix} TO {ANALYST}")
    assert db.rows(query, role=ANALYST) == [(7, bench.expected[7])]
