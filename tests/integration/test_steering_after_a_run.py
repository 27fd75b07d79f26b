"""Commands and resume after a run has ended, or has lost its driver: rolled back calls, and one session alone."""

import psycopg2
import pytest

from tests.helpers.training import SGD, fit, load_architectures, load_digits, pack, script, select_configurations

pytestmark = pytest.mark.one_session

FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', '{}', 'mst', {}, seed => 5, replace => {})"


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db, 60, 20)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", [(1, SGD, "batch_size=16")])
    return db


def rolled_back(bench, statement: str) -> int:
    """Execute a statement in a transaction that is rolled back; return the number of the newest run."""
    connection = bench.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.rollback()
    connection.close()
    return bench.value("SELECT max(run_id) FROM madlib_mop.run")


def digest(bench, table: str) -> str:
    return bench.value(f"SELECT md5(model_weights) FROM {table}")


@pytest.mark.slow
def test_resume_writes_the_tables_of_a_call_that_was_rolled_back(bench):
    """The tables that it was to replace are there again, and a later call finds its own."""
    fit(bench, "replaced", "mst", 1, seed=1)
    bench.rows("GRANT SELECT ON replaced TO PUBLIC")
    before = digest(bench, "replaced")
    run_id = rolled_back(bench, FIT.format("replaced", 2, "true"))
    assert digest(bench, "replaced") == before
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    after = digest(bench, "replaced")
    assert after != before
    oid = bench.value("SELECT 'replaced'::regclass::oid")
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert bench.value("SELECT 'replaced'::regclass::oid") == oid, "nothing was to be resumed"
    bench.rows("SELECT madlib_mop.extend(%s, 1)", [run_id])
    rolled_back(bench, f"SELECT madlib_mop.resume({run_id})")
    assert digest(bench, "replaced") == after
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digest(bench, "replaced") != after


@pytest.mark.slow
def test_resume_leaves_the_tables_of_a_newer_run(bench):
    """A finished run has nothing to resume then; one that would replace rows is refused."""
    older = fit(bench, "anew", "mst", 1, seed=1, replace=True).run_id
    fit(bench, "anew", "mst", 1, seed=2, replace=True)
    before = digest(bench, "anew"), bench.value("SELECT 'anew'::regclass::oid")
    bench.rows("SELECT madlib_mop.resume(%s)", [older])
    assert (digest(bench, "anew"), bench.value("SELECT 'anew'::regclass::oid")) == before
    cancelled = rolled_back(bench, FIT.format("anew", 2, "false, warm_start => true"))
    bench.rows("UPDATE madlib_mop.run SET state = 'cancelled' WHERE run_id = %s", [cancelled])
    newer = fit(bench, "anew", "mst", 1, warm_start=True).run_id
    warm = digest(bench, "anew")
    with pytest.raises(psycopg2.Error, match=f"run {cancelled} would replace the models of run {newer}"):
        bench.rows("SELECT madlib_mop.resume(%s)", [cancelled])
    assert digest(bench, "anew") == warm
    bench.rows("SELECT madlib_mop.resume(%s, output_table => 'anew_elsewhere')", [cancelled])
    assert digest(bench, "anew_elsewhere") != warm


@pytest.mark.slow
def test_resume_knows_the_tables_of_its_run_in_any_time_zone(bench):
    script(bench, "SET TimeZone = 'Asia/Kolkata'", FIT.format("zoned", 1, "true"))
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    oid = bench.value("SELECT 'zoned'::regclass::oid")
    for zone in ("Asia/Kolkata", "America/Caracas"):
        script(bench, f"SET TimeZone = '{zone}'", f"SELECT madlib_mop.resume({run_id})")
    assert bench.value("SELECT 'zoned'::regclass::oid") == oid


@pytest.mark.slow
def test_in_the_session_of_a_run_without_a_driver_commands_do_not_wait_for_it(bench):
    """This statement is not the one that could start another driver."""
    run_id = fit(bench, "alone", "mst", 1, seed=1).run_id
    lost = "UPDATE madlib_mop.run SET state = 'running', caller_pid = pg_backend_pid() WHERE run_id = %s"
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '20s'")
        cursor.execute(lost, [run_id])
        cursor.execute("SELECT madlib_mop.pin_model(%s, 1)", [run_id])
        cursor.execute(lost, [run_id])
        cursor.execute("SELECT madlib_mop.cancel(%s)", [run_id])
        assert cursor.fetchall() == [(False,)]
    connection.close()
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "interrupted"


@pytest.mark.slow
def test_after_the_greatest_key_no_model_is_added(bench):
    bench.rows("CREATE TABLE mst_last AS TABLE mst; CREATE TABLE mst_last_summary AS TABLE mst_summary")
    bench.rows("UPDATE mst_last SET mst_key = 2147483647")
    run_id = fit(bench, "last", "mst_last", 1, seed=1).run_id
    with pytest.raises(psycopg2.Error, match="no model can be added: mst_key 2147483647 is in use"):
        bench.rows(f"SELECT madlib_mop.clone_model({run_id}, 2147483647, num_iterations => 2)")
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "finished"
