"""Searches that start from earlier runs: what they take, from whom, and that a record without these runs is enough."""

from contextlib import contextmanager

import psycopg2
import pytest

from madlib_mop.driver.planning.search import plan_search
from madlib_mop.driver.session.call import Call
from tests.helpers.direct import record_on
from tests.helpers.direct_session import DirectSession
from tests.helpers.faults import BackgroundFit, assert_nothing_left, kill, newest_run, wait_for
from tests.helpers.searches import COMPILE, Searched, arguments, decisions, prepare, results, search, statement, states
from tests.helpers.security.attacks import refusal_of, user
from tests.helpers.training import one_thread, weights

pytestmark = [pytest.mark.one_session, pytest.mark.timeout(600)]
RANDOM = "num_configs={}, num_iterations=1, algorithm=rand"


@pytest.fixture(scope="module")
def iris(db):
    one_thread()
    prepare(db)
    return db


@pytest.fixture(scope="module")
def first(iris) -> Searched:
    """An earlier search."""
    return search(iris, "first", "hyperopt", RANDOM.format(6), random_state=1)


def ranked(db, table: str) -> list[tuple]:
    """Return the configurations of a search, best first."""
    return db.rows(
        f"SELECT model_id, compile_params, fit_params FROM {table}_info ORDER BY validation_loss_final, mst_key"
    )


def past_of(db, run_id: int) -> list[tuple]:
    """Return what the plan of a search has of earlier runs: run, model and loss."""
    return db.rows(
        "SELECT (p ->> 'run_id')::integer, (p ->> 'mst_key')::integer, (p ->> 'loss')::float8 FROM madlib_mop.run,"
        " jsonb_array_elements(plan -> 'search' -> 'past') AS p WHERE run_id = %s ORDER BY p ->> 'place'",
        [run_id],
    )


@pytest.mark.slow
def test_the_best_earlier_configurations_are_tried_first(iris, first):
    """A quarter of twelve configurations; the plan records all that lie in the space."""
    params = f"num_configs=12, num_iterations=1, start_from='runs {first.run_id}'"
    run = search(iris, "taught", "tpe", params, random_state=2)
    added = iris.rows(
        "SELECT model_id, compile_params, fit_params FROM madlib_mop.model WHERE run_id = %s ORDER BY mst_key LIMIT 3",
        [run.run_id],
    )
    assert added == ranked(iris, "first")[:3]
    losses = iris.rows("SELECT mst_key, validation_loss_final FROM first_info ORDER BY 2, 1")
    assert [row[1:] for row in past_of(iris, run.run_id)] == losses
    assert {row[0] for row in past_of(iris, run.run_id)} == {first.run_id}
    assert (
        f"start_from: 6 configurations of run {first.run_id} lie in the search space; the best 3 are tried first; the"
        " model of tpe begins with them as earlier results"
    ) in run.notices
    assert iris.value("SELECT automl_params FROM taught_summary") == params


@pytest.mark.slow
def test_a_search_is_resumed_and_replayed_without_the_earlier_run(iris):
    """The earlier run is dropped while the search runs, and its driver is killed: the record has all that is needed."""
    earlier = search(iris, "earlier", "hyperopt", RANDOM.format(4), random_state=3)
    params = f"num_configs=6, num_iterations=1, algorithm=tpe, start_from='runs {earlier.run_id}'"
    expected = search(iris, "undisturbed", "hyperopt", params, random_state=4)
    given = arguments("killed", "hyperopt", params, random_state=4)
    call = BackgroundFit(iris, statement(given), list(given.values()))
    run_id = wait_for(lambda: (newest_run(iris) != expected.run_id and newest_run(iris)) or call.error, what="the run")
    assert call.error is None, call.error
    count = "SELECT count(*) FROM madlib_mop.search_event WHERE run_id = %s"
    wait_for(lambda: iris.value(count, [run_id]) >= 2 or not call.running, 120, "the search's events")
    assert call.running, call.error
    iris.rows("SELECT madlib_mop.drop_run(%s)", [earlier.run_id])
    kill(iris.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id]))
    call.succeed()
    iris.rows("SELECT madlib_mop.replay(%s, 'again')", [run_id])
    for other, table in ((run_id, "killed"), (newest_run(iris), "again")):
        assert results(iris, other) == results(iris, expected.run_id)
        assert decisions(iris, other) == decisions(iris, expected.run_id)
        assert states(iris, other) == states(iris, expected.run_id)
        assert weights(iris, table) == weights(iris, "undisturbed")
    assert past_of(iris, newest_run(iris)) == past_of(iris, expected.run_id) != []
    assert_nothing_left(iris)


@contextmanager
def planned(db, changes: tuple[str, ...] = (), **options):
    """Plan a search in this process without training, and yield the runs it learns from and the NOTICEs.

    The record has some changes meanwhile, which are rolled back.
    """
    connection, catalog = db.connect(autocommit=False), db.connect()
    said: list[str] = []
    session = DirectSession(connection, say=lambda *words: said.append(" ".join(map(str, words))))
    given = arguments("planned", "tpe", "start_from=similar", **options)
    try:
        with catalog.cursor() as cursor:
            cursor.execute("BEGIN")
            for change in changes:
                cursor.execute(change)
        call = Call.read("madlib_keras_automl", given, session)
        plan = plan_search(call, record_on(catalog))
        yield {one.run_id for one in plan.run.search_plan.past}, "\n".join(said)
    finally:
        catalog.close()
        connection.close()


ALIKE = {
    "the same table": ("run", "schedule = schedule"),
    "another table": ("run", "source_table = 'public.other', model_output_table = 'gone'"),
    "nine times the rows": ("segment", "n_rows = n_rows * 9"),
    "a ninth of the rows": ("segment", "n_rows = n_rows / 9 + 1"),
    "a fit": ("run", "kind = 'fit_multiple_model'"),
    "output tables not written": ("run", "state = 'trained'"),
    "other names of columns": ("run", "plan = jsonb_set(plan, '{summary,independent_varname}', '[\"z\"]')"),
}
NOT_ALIKE = {
    "eleven times the rows": ("segment", "n_rows = n_rows * 11"),
    "a twelfth of the rows": ("segment", "n_rows = n_rows / 12"),
    "number of classes": ("run", "plan = jsonb_set(plan, '{summary,num_classes}', '[4]')"),
    "no classes": ("run", "plan = jsonb_set(plan, '{summary,num_classes}', '[null]')"),
    "number of inputs": ("run", "plan = jsonb_set(plan, '{training,n_x}', '2')"),
    "number of outputs": ("run", "plan = jsonb_set(plan, '{training,n_y}', '2')"),
    "no validation": ("run", "validation_table = NULL"),
    "model averaging": ("run", "kind = 'fit'"),
    "a replay": ("run", "kind = 'replay'"),
    "interrupted": ("run", "state = 'interrupted'"),
    # architectures have the shapes of the data
    "architecture": ("model", "model_arch = replace(model_arch::text, '\"units\": 3', '\"units\": 4')::json"),
}


def changed(table: str, assignment: str, run_id: int) -> tuple[str]:
    """Return the change of the record of one run."""
    return (f"UPDATE madlib_mop.{table} SET {assignment} WHERE run_id = {run_id}",)


@pytest.mark.one_case
@pytest.mark.parametrize("change", ALIKE.values(), ids=ALIKE)
def test_a_run_on_a_table_alike_is_similar(iris, first, change):
    with planned(iris, changed(*change, first.run_id)) as (runs, notices):
        assert first.run_id in runs and "start_from: " in notices


@pytest.mark.one_case
@pytest.mark.parametrize("change", NOT_ALIKE.values(), ids=NOT_ALIKE)
def test_a_run_on_another_kind_of_table_is_not_similar(iris, first, change):
    with planned(iris, changed(*change, first.run_id)) as (runs, _):
        assert first.run_id not in runs


def test_without_a_similar_run_a_notice_says_so(iris, first):
    with planned(iris, ("UPDATE madlib_mop.run SET kind = 'fit'",)) as (runs, notices):
        assert runs == set() and "start_from='similar': none of your runs is similar" in notices


@pytest.fixture(scope="module")
def carol(iris) -> str:
    """A role that may read the tables and the record of the runs, but is not their owner."""
    role = user(iris, "carol")
    iris.rows("SELECT madlib_mop.grant_read(%s)", [role])
    iris.rows(f"GRANT SELECT ON train, train_summary, valid, valid_summary, arch TO {role}")
    return role


def call_of(start_from: str, table: str = "carol.refused", **options) -> tuple[str, list]:
    given = arguments(table, "tpe", f"num_configs=4, num_iterations=1, start_from={start_from}", **options)
    return statement(given), list(given.values())


def test_a_run_of_another_role_is_like_one_that_is_not_there(iris, first, carol):
    for run_id in (first.run_id, 999_999):
        error = refusal_of(iris, *call_of(f"'runs {run_id}'"), role=carol)
        assert error.sqlstate == "22023" and error.message == (
            "madlib_keras_automl: automl_params: start_from: you have no run with this run_id."
            f" Received: {run_id}"
        )  # fmt: skip
        assert "madlib_mop.progress" in error.hint


@pytest.mark.slow
def test_runs_of_other_roles_are_not_similar(iris, first, carol):
    """Not even if their owner granted the right to read them."""
    run = search(iris, "carol.own", "tpe", "num_configs=1, num_iterations=1, start_from=similar", role=carol)
    assert "none of your runs is similar" in run.notices and past_of(iris, run.run_id) == []
    again = search(iris, "carol.again", "tpe", "num_configs=1, num_iterations=1, start_from=similar", role=carol)
    assert {row[0] for row in past_of(iris, again.run_id)} == {run.run_id}


GRID = COMPILE.replace("Adam", "SGD")


@pytest.mark.parametrize(
    ("start_from", "change", "sqlstate", "words"),
    [
        ("'runs 999999'", {}, "22023", "you have no run with this run_id. Received: 999999"),
        ("'runs {}'", {"compile_params_grid": GRID}, "22023", "no configuration of run {} lies in this search space"),
        ("'runs {}, {}'", {"fit_params_grid": "{'batch_size': [16]}"}, "22023", "no configuration of run {} lies"),
        ("'runs'", {}, "22023", "start_from must be 'similar' or a list of runs such as 'runs 12, 15'"),
        ("runs 12", {}, "22P02", "automl_params"),
    ],
)
def test_bad_input_is_refused_before_any_work(iris, first, start_from, change, sqlstate, words):
    before = iris.value("SELECT count(*) FROM madlib_mop.run")
    ids = [first.run_id] * 2
    error = refusal_of(iris, *call_of(start_from.format(*ids), "refused", **change))
    assert error.sqlstate == sqlstate and words.format(*ids) in error.message and error.hint
    assert iris.value("SELECT count(*) FROM madlib_mop.run") == before


def test_a_run_without_metrics_is_refused(iris):
    poor = search(iris, "poor", "hyperopt", "num_configs=2, algorithm=rand, budget_s=0.01", random_state=1)
    with pytest.raises(psycopg2.Error, match=f"run {poor.run_id} has no metrics") as caught:
        iris.rows(*call_of(f"'runs {poor.run_id}'", "refused"))
    assert caught.value.pgcode == "55000"
