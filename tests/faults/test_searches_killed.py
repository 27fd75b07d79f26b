"""A search that was killed and continues ends with the history and the weights of a search without faults."""

import random

import pytest

from tests.helpers.faults import BackgroundFit, assert_nothing_left, kill, newest_run, wait_for
from tests.helpers.searches import arguments, decisions, prepare, results, search, statement, states
from tests.helpers.training import one_thread, weights
from tests.helpers.unit.searches import SMALLEST, SYNCHRONOUS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def iris(db):
    one_thread()
    prepare(db)
    return db


def begin(db, table: str, method: str, n_events: int, **options) -> tuple[BackgroundFit, int]:
    """Start a search, and wait until it has received this number of events."""
    before = newest_run(db)
    given = arguments(table, method, SMALLEST[method], random_state=5, **options)
    call = BackgroundFit(db, statement(given), list(given.values()))
    run_id = wait_for(lambda: (newest_run(db) != before and newest_run(db)) or call.error, what="the run's start")
    assert call.error is None, call.error
    count = "SELECT count(*) FROM madlib_mop.search_event WHERE run_id = %s"
    wait_for(lambda: db.value(count, [run_id]) >= n_events or not call.running, 120, "the search's events")
    assert call.running, call.error
    return call, run_id


def hold(db, expected: int, run_id: int, table: str, undisturbed: str) -> None:
    """Assert that two searches were the same."""
    assert results(db, run_id) == results(db, expected)
    assert decisions(db, run_id) == decisions(db, expected)
    assert states(db, run_id) == states(db, expected)
    assert weights(db, table) == weights(db, undisturbed)
    assert_nothing_left(db)


@pytest.mark.parametrize("objective", ["loss", "loss, size_bytes"])
def test_a_search_whose_driver_is_killed(iris, objective):
    """The caller's backend starts another driver, which restores the search from the record."""
    whole, killed = (f"{state}_{len(objective)}" for state in ("undisturbed", "driver_killed"))
    run = search(iris, whole, "hyperband", SMALLEST["hyperband"], random_state=5, objective=objective)
    call, run_id = begin(iris, killed, "hyperband", 3, objective=objective)
    kill(iris.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id]))
    call.succeed()
    hold(iris, run.run_id, run_id, killed, whole)
    n_starts = "SELECT count(*) FROM madlib_mop.search_event WHERE run_id = %s AND event = 'start'"
    assert iris.value(n_starts, [run_id]) == 1
    elapsed = iris.rows("SELECT elapsed_s FROM madlib_mop.metric WHERE run_id = %s ORDER BY at", [run_id])
    assert elapsed == sorted(elapsed), "the seconds of the driver that was killed count"


@pytest.mark.parametrize("method", SMALLEST)
def test_a_search_whose_server_is_stopped_and_that_is_cancelled_then(iris, method):
    chance = random.Random(method)
    call, run_id = begin(iris, f"{method}_killed", method, chance.randint(2, 4))
    iris.cluster.stop_immediate()
    iris.cluster.start()
    call.join()
    resumed = BackgroundFit(iris, "SELECT madlib_mop.resume(%s)", [run_id])
    count = "SELECT count(*) FROM madlib_mop.search_event WHERE run_id = %s"
    before = iris.value(count, [run_id])
    wait_for(lambda: iris.value(count, [run_id]) > before or not resumed.running, 120, "another event")
    iris.rows("SELECT madlib_mop.cancel(%s)", [run_id])
    resumed.join()
    if resumed.error is not None:
        assert resumed.error.pgcode == "57014"
        iris.rows("SELECT madlib_mop.resume(%s)", [run_id])
    undisturbed = f"{method}_whole"
    if method in SYNCHRONOUS:
        expected = search(iris, undisturbed, method, SMALLEST[method], random_state=5).run_id
    else:  # its decisions depend on the order of results; a replay repeats them
        iris.rows("SELECT madlib_mop.replay(%s, %s)", [run_id, undisturbed])
        expected = newest_run(iris)
    hold(iris, expected, run_id, f"{method}_killed", undisturbed)


def test_a_budget_ends_a_search_with_the_best_so_far(iris):
    """Models end after whole epochs, and are evaluated then; a replay has the same bits."""
    params = "population=30, num_iterations=1000, interval=2, budget_s=40"
    run = search(iris, "budget", "pbt", params, random_state=5)
    event = "SELECT count(*) FROM madlib_mop.search_event WHERE run_id = %s AND event = 'budget'"
    assert iris.value(event, [run.run_id]) == 1
    info = iris.rows("SELECT mst_key, status, metrics_iters, validation_loss_final FROM budget_info")
    trained = [row for row in info if row[1] == "trained"]
    assert trained and {row[1] for row in info} <= {"trained", "stopped"}
    epochs = dict(iris.rows("SELECT mst_key, epoch FROM madlib_mop.model WHERE run_id = %s", [run.run_id]))
    assert all(row[2][-1] == epochs[row[0]] for row in trained)
    assert iris.value("SELECT mst_key FROM budget_mst") == min(trained, key=lambda row: (row[3], row[0]))[0]
    iris.rows("SELECT madlib_mop.replay(%s, 'budget_again')", [run.run_id])
    assert weights(iris, "budget") == weights(iris, "budget_again")
    # such a model may have taken over a state without training since
    stopped = {row[0] for row in info if row[1] == "stopped"}
    ended, again = states(iris, run.run_id), states(iris, newest_run(iris))
    assert {key: ended[key] for key in ended.keys() - stopped} == {key: again[key] for key in again.keys() - stopped}
    assert {key: ended[key][:2] for key in stopped} == {key: again[key][:2] for key in stopped}
