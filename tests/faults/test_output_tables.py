"""Output tables despite a killed driver, another session, or a table of the same name."""

import re

import psycopg2
import pytest

from tests.helpers.faults import BackgroundFit, assert_nothing_left, assert_whole, fit_statement, kill, undisturbed
from tests.helpers.gates import begun, held_at_outputs

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 2, 1, 80
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE %s ORDER BY 1"
DIGESTS = "SELECT mst_key, encode(sha256(model_weights), 'hex') FROM {} ORDER BY 1"


@pytest.fixture(scope="module")
def bench(db):
    return undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)


def statement(table: str) -> str:
    return fit_statement(table, "mst", N_EPOCHS, "train_2", SEED)


def assert_written(db, table: str, run_id: int) -> None:
    """Assert that the tables of a run exist and are complete."""
    assert db.rows(DIGESTS.format(table)) == db.rows(DIGESTS.format("undisturbed"))
    assert db.value(f"SELECT count(*) FROM {table}_info") == N_MODELS
    assert db.value(f"SELECT count(*) FROM {table}_summary") == 1
    assert db.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "finished"
    assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(db)


@pytest.mark.slow
def test_the_driver_killed_while_it_writes_them(bench):
    with held_at_outputs(bench, statement("t_written")) as (call, run_id, pid):
        assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "trained"
        assert kill(pid)
    call.succeed()
    assert_written(bench, "t_written", run_id)


@pytest.mark.slow
def test_the_driver_killed_while_it_writes_the_one_of_averaging(bench):
    call = (
        "SELECT madlib.madlib_keras_fit('train_2', 't_averaged', 'arch', 1, compile_params, fit_params, 1, seed := 4)"
        " FROM mst WHERE mst_key = 1"
    )
    with held_at_outputs(bench, call) as (call, _, pid):
        assert kill(pid)
    call.succeed()
    assert bench.value("SELECT count(*) FROM t_averaged WHERE model_weights IS NOT NULL") == 1
    assert bench.value("SELECT count(*) FROM t_averaged_summary") == 1


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["t_two", "t_two_info", "public.t_two"])
def test_a_second_session_that_would_write_one_of_them_is_refused_at_once(bench, name):
    runs = "SELECT count(*) FROM madlib_mop.run"
    with begun(bench, statement("t_two")) as (call, run_id):
        before = bench.value(runs)
        with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState) as refused:
            bench.rows(statement(name))
        message = rf"table public\.t_two(_info)? is being written by run {run_id}, in the session with process ID"
        assert re.search(f"{message} {call.pid}", str(refused.value))
        assert f"cancel({run_id})" in refused.value.diag.message_hint
        assert bench.value(runs) == before
        bench.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    call.join()
    assert_nothing_left(bench)
    call = BackgroundFit(bench, statement("t_two"))
    call.succeed()
    bench.rows("DROP TABLE t_two, t_two_info, t_two_summary")


@pytest.mark.slow
def test_they_are_reserved_until_their_transaction_has_ended(bench):
    writer = bench.connect(autocommit=False)
    with writer.cursor() as cursor:
        cursor.execute(statement("t_held"))
        with pytest.raises(psycopg2.Error, match="table public.t_held is being written by another session's call"):
            bench.rows(statement("t_held"))
    writer.rollback()
    writer.close()
    BackgroundFit(bench, statement("t_held")).succeed()
    assert bench.value("SELECT count(*) FROM t_held") == N_MODELS


@pytest.mark.slow
def test_a_table_that_is_made_meanwhile_costs_nothing_of_the_run(bench):
    with begun(bench, statement("t_taken")) as (call, run_id):
        bench.rows("CREATE TABLE t_taken_summary (mine integer)")
    call.join()
    assert isinstance(call.error, psycopg2.errors.DuplicateTable)
    assert f"run {run_id} is trained, but its output tables cannot be created" in str(call.error)
    assert f"resume({run_id}, output_table => '...')" in call.error.diag.message_hint
    visits = "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s"
    trained = bench.value(visits, [run_id])
    with pytest.raises(psycopg2.errors.DuplicateTable, match="table public.t_taken_summary exists already"):
        bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    bench.rows("SELECT madlib_mop.resume(%s, output_table => 't_renamed')", [run_id])
    assert_written(bench, "t_renamed", run_id)
    assert bench.value("SELECT model || ', ' || model_info FROM t_renamed_summary") == "t_renamed, t_renamed_info"
    assert bench.rows(TABLES, ["t_taken%"]) == [("t_taken_summary",)]
    assert bench.value(visits, [run_id]) == trained


def test_models_are_replaced_in_one_transaction(bench):
    BackgroundFit(bench, statement("t_old")).succeed()
    again = statement("t_old").replace(f"seed := {SEED}", "seed := 81, replace => true")
    old = bench.rows(DIGESTS.format("t_old"))
    writer = bench.connect(autocommit=False)
    with writer.cursor() as cursor:
        cursor.execute(again)
        cursor.execute(DIGESTS.format("t_old"))
        new = cursor.fetchall()
    assert len(new) == len(old) and new != old
    writer.rollback()
    assert bench.rows(DIGESTS.format("t_old")) == old
    writer.close()
    bench.rows(again)
    assert bench.rows(DIGESTS.format("t_old")) == new


def test_nothing_is_replaced_but_models(bench):
    bench.rows("CREATE TABLE t_mine (mine integer)")
    bench.rows("CREATE TABLE t_seen AS SELECT * FROM undisturbed")
    bench.rows("CREATE VIEW t_seen_too AS SELECT * FROM t_seen")
    for table, message in (
        ("t_mine", "public.t_mine exists and was not written by a fit function"),
        ("t_seen_too", "public.t_seen_too exists and was not written"),
        ("t_seen", "public.t_seen cannot be dropped: rule _RETURN on view public.t_seen_too depends on it"),
    ):
        with pytest.raises(psycopg2.errors.DuplicateTable, match=message):
            bench.rows(statement(table)[:-1] + ", replace => true)")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="replace and warm_start cannot both be true"):
        bench.rows(statement("undisturbed")[:-1] + ", replace => true, warm_start => true)")


@pytest.mark.slow
def test_all_that_is_in_the_way_is_named_and_can_be_dropped_at_once(bench):
    BackgroundFit(bench, statement("t_dropped")).succeed()
    bench.rows("DROP TABLE t_dropped")
    with pytest.raises(psycopg2.errors.DuplicateTable) as refused:
        bench.rows(statement("t_dropped"))
    message = "tables public.t_dropped_info and public.t_dropped_summary exist already"
    assert message in str(refused.value)
    assert "drop_models('public.t_dropped')" in refused.value.diag.message_hint
    assert bench.value("SELECT madlib_mop.drop_models('t_dropped')") == [
        "public.t_dropped_info", "public.t_dropped_summary"
    ]  # fmt: skip
    BackgroundFit(bench, statement("t_dropped")).succeed()
    assert bench.value("SELECT cardinality(madlib_mop.drop_models('t_dropped'))") == 3
    assert bench.rows(TABLES, ["t\\_dropped%"]) == []


def test_nothing_is_dropped_but_models(bench):
    for table in ("train_2", "mst"):
        with pytest.raises(
            psycopg2.errors.DuplicateTable, match=f"public.{table}(_summary)? exists and was not written"
        ):
            bench.rows(f"SELECT madlib_mop.drop_models('{table}')")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="neither a table nothing nor nothing_info"):
        bench.rows("SELECT madlib_mop.drop_models('nothing')")
    bench.cluster.create_role("stranger")
    bench.rows("SELECT madlib_mop.grant_use('stranger')")
    with pytest.raises(psycopg2.Error, match="public.undisturbed does not belong to role stranger"):
        bench.rows("SELECT madlib_mop.drop_models('undisturbed')", role="stranger")
    assert bench.value("SELECT count(*) FROM undisturbed") == N_MODELS
