"""With another ``default_table_access_method``, our tables are heap, and predictions work from copies of them."""

import uuid

import pytest

from tests.conftest import Database, run
from tests.helpers.engines.surface import make_all_tables, not_heap, our_tables

pytestmark = pytest.mark.slow

OTHER = "CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler"


@pytest.fixture(scope="module")
def other(cluster):
    """A database with another default access method, set before the extension is created."""
    name = f"access_method_{uuid.uuid4().hex[:8]}"
    run(cluster.connect(), f"CREATE DATABASE {name}")
    run(cluster.connect(name), OTHER)
    run(cluster.connect(), f"ALTER DATABASE {name} SET default_table_access_method = other")
    run(cluster.connect(name), "CREATE EXTENSION madlib_mop CASCADE")
    yield Database(cluster, name)
    cluster.drop(name)


@pytest.mark.timeout(600)
def test_our_tables_are_heap(other):
    make_all_tables(other, 2)
    of_users = other.value("SELECT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname = 'iris'")
    assert of_users == "other"
    assert {"models", "averaged", "found_mst", "predicted", "evaluated", "gpus", "brackets"} <= {*our_tables(other)}
    assert not_heap(other) == []


def test_a_copy_without_versions_of_rows_is_predicted_from(other):
    """A table of another access method may have no xmin: changes are detected by its content."""
    ask = "SELECT madlib_mop.predict(%s, 1, ARRAY[5.1, 3.5, 1.4, 0.2]::real[])"
    connection = other.connect()
    with connection.cursor() as cursor:

        def predict(table):
            cursor.execute(ask, [table])
            return cursor.fetchone()[0]

        for suffix in ("", "_info", "_summary"):
            cursor.execute(f"CREATE TABLE copied{suffix} AS TABLE models{suffix}")
        assert predict("copied") == predict("models")
        cursor.execute(
            "UPDATE copied SET weights_digest = NULL, model_weights = (SELECT model_weights FROM found"
            " WHERE octet_length(model_weights) = octet_length(copied.model_weights) LIMIT 1) WHERE mst_key = 1"
        )
        assert predict("copied") != predict("models")
    connection.close()
