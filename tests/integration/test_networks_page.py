"""docs/networks.md makes what it says: models that plain Keras reads, and tables with the columns of the reference."""

import re
import subprocess
from contextlib import closing

import pytest

from tests.helpers.pages import psql_script, section
from tests.helpers.plain_keras import assert_keras_reads_them

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # trainers start and trace slowly on a busy machine


@pytest.fixture(scope="module")
def page(db, tmp_path_factory):
    """psql's output of the page's examples, run one after the other as a reader would."""
    script = psql_script("docs/networks.md", db.dsn, tmp_path_factory.mktemp("page"))
    psql = [db.cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", db.dsn]
    done = subprocess.run(psql, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and "\nfailed: " not in done.stdout, done.stdout[-3000:]
    return done.stdout


def test_the_models_are_usable(page, db):
    assert db.rows("SELECT DISTINCT status FROM own.models_info") == [("trained",)]
    right = "SELECT avg((class_value = kind)::integer) FROM own.best_two JOIN own.points USING (id) WHERE rank = 1"
    assert db.value(right) > 0.8
    assert db.value("SELECT count(*) FROM own.best_two") == 2 * db.value("SELECT count(*) FROM own.others")
    assert db.value("SELECT metric FROM own.evaluation") > 0.8


def test_plain_keras_reads_every_architecture_as_it_is(page, db):
    with closing(db.connect()) as connection:
        assert assert_keras_reads_them(connection) >= 8


def test_plain_keras_predicts_what_the_page_predicts(page, db):
    import keras
    import numpy as np

    arch, weights = db.rows("SELECT model_arch::text, model_weights FROM own.models WHERE mst_key = 1")[0]
    plain, values = keras.models.model_from_json(arch), np.frombuffer(bytes(weights), np.float32)
    ends = np.cumsum([weight.size for weight in plain.get_weights()])[:-1]
    plain.set_weights([v.reshape(w.shape) for v, w in zip(np.split(values, ends), plain.get_weights(), strict=True)])
    rows = db.rows("SELECT x, madlib_mop.predict('own.models', 1, x) FROM own.others")
    x = np.array([x for x, _ in rows], np.float32) / np.float32(2)
    assert np.allclose(plain.predict(x, verbose=0), [scores for _, scores in rows], atol=1e-6)


def columns_of(db, tables: str) -> dict[str, set[str]]:
    """Return the columns of the page's tables whose names match a pattern."""
    rows = db.rows(
        "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns WHERE table_schema = 'own'"
        " AND table_name ~ %s GROUP BY table_name",
        [tables],
    )
    return {table: set(columns) for table, columns in rows}


def test_the_columns_of_the_output_tables_are_in_the_reference(page, db):
    text = section("docs/reference.md", "Output tables")
    words = set(re.findall(r"\w+", text.replace("<y>", "kind").replace("<x>", "x").replace("<id>", "id")))
    made = "^(networks|known_packed|configs|models|evaluation|best_two)(_info|_summary)?$"
    tables = columns_of(db, made)
    assert len(tables) == 10
    assert {table: columns - words for table, columns in tables.items()} == dict.fromkeys(tables, set())
