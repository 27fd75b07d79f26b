"""Names without a schema keep their meaning, whatever search_path a later call has.

Everything is created in schema "Home", under its own search_path. Schema away has tables of the same names.
"""

import psycopg2
import pytest

from tests.helpers.sessions import Session
from tests.helpers.training import ADAM, load_architectures, load_digits, mlp, one_thread, script

pytestmark = pytest.mark.slow

HOME, AWAY = 'SET search_path = "Home"', "SET search_path = away"
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('{}', '{}', '{}', 1, seed := 3{})"


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db, 60, 20)
    script(db, 'CREATE SCHEMA "Home"', "CREATE SCHEMA away")
    load_architectures(db, '"Home".arch')
    for n_hidden in (3, 4):
        db.rows("SELECT madlib.load_keras_model('away.arch', %s::json)", [mlp(n_hidden)])
    script(
        db,
        HOME,
        "SET madlib_mop.segments = 2",
        "SELECT madlib.training_preprocessor_dl('public.train_rows', 'train', 'y', 'x', 37, 16.0, seed := 5)",
        "SELECT madlib.validation_preprocessor_dl('public.valid_rows', 'valid', 'y', 'x', 'train', 37)",
        f"SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[$${ADAM}$$], ARRAY['batch_size=16'])",
        FIT.format("train", "models", "mst", ""),
    )
    return db


@pytest.fixture
def away(bench):
    """A session whose search_path does not contain schema Home."""
    connection = bench.connect()
    session = Session(connection)
    session.rows(AWAY)
    yield session
    connection.close()


def test_a_model_selection_table_leads_to_its_own_architectures(bench, away):
    away.rows(FIT.format('"Home".train', "from_away", '"Home".mst', ""))
    same = 'SELECT a.model_weights = b.model_weights FROM "Home".models a JOIN away.from_away b USING (mst_key)'
    assert bench.rows(same) == [(True,)]


def test_names_are_shown_as_they_were_written_and_kept_with_their_schemas(bench):
    ((source, arch, selection, model, names),) = bench.rows(
        "SELECT source_table, model_arch_table, model_selection_table, model, qualified_names"
        ' FROM "Home".models_summary'
    )
    assert (source, arch, selection, model) == ("train", "arch", "mst", "models")
    assert names == {
        "source_table": '"Home".train',
        "model_selection_table": '"Home".mst',
        "model_arch_table": '"Home".arch',
        "model": '"Home".models',
        "model_info": '"Home".models_info',
    }
    assert bench.rows('SELECT model_arch_table, qualified_names FROM "Home".mst_summary') == [
        ("arch", {"model_arch_table": '"Home".arch'})
    ]


def test_models_are_used_from_elsewhere(bench, away):
    away.rows("""SELECT madlib.madlib_keras_evaluate('"Home".models', '"Home".valid', 'evaluated', mst_key := 1)""")
    assert away.value("SELECT loss > 0 FROM away.evaluated")
    away.rows(
        """SELECT madlib.madlib_keras_predict('"Home".models', 'public.valid_rows', 'id', 'x', 'predicted',"""
        " mst_key := 1)"
    )
    assert away.value("SELECT count(DISTINCT id) FROM away.predicted") == 20
    one = """SELECT madlib_mop.predict('"Home".models', 1, x) FROM public.valid_rows LIMIT 1"""
    assert len(away.value(one)) == 10


def test_a_warm_start_goes_on_from_elsewhere(bench, away):
    warm = ", warm_start := true"
    away.rows(FIT.format('"Home".train', '"Home".models', '"Home".mst', warm))
    model = (
        "SELECT m.first_epoch FROM madlib_mop.model m JOIN madlib_mop.run r USING (run_id)"
        " WHERE r.warm_start ORDER BY run_id DESC"
    )
    assert bench.rows(model) == [(2,)]


def test_a_run_is_resumed_from_elsewhere(bench, away):
    connection = bench.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(HOME)
        cursor.execute(FIT.format("train", "undone", "mst", ""))
    connection.rollback()
    connection.close()
    away.rows("SELECT madlib_mop.resume(max(run_id)) FROM madlib_mop.run")
    assert bench.value('SELECT count(*) FROM "Home".undone') == 1
    assert bench.value("""SELECT qualified_names ->> 'model' FROM "Home".undone_summary""") == '"Home".undone'


def test_configurations_are_added_to_their_own_table_only(bench, away):
    """Here the name arch belongs to another table than the one of the configurations."""
    call = (
        "SELECT madlib.generate_model_configs('{}', '\"Home\".mst', ARRAY[1],"
        " $${{'loss': ['categorical_crossentropy'],"
        " 'optimizer_params_list': [{{'optimizer': ['SGD'], 'lr': [0.5]}}]}}$$,"
        " $${{'batch_size': [8]}}$$)"
    )
    with pytest.raises(psycopg2.Error, match="was created from architecture table \"Home\".arch. Received: 'arch'"):
        away.rows(call.format("arch"))
    away.rows(call.format('"Home".arch'))
    assert bench.value('SELECT count(*) FROM "Home".mst') == 2


def test_tables_of_older_versions_are_read_and_written(bench):
    """They have no column of qualified names; their names are looked up in the caller's search_path, as before."""
    script(
        bench,
        HOME,
        "CREATE TABLE old_mst AS SELECT * FROM mst WHERE fit_params = 'batch_size=16'",
        "CREATE TABLE old_mst_summary AS SELECT model_arch_table, object_table FROM mst_summary",
        "ALTER TABLE models_summary DROP COLUMN qualified_names",
        FIT.format("train", "models", "old_mst", ", warm_start := true"),
    )
    assert bench.value('SELECT model FROM "Home".models_summary') == "models"
