"""Promise 9: the states of a run use at most three times their size on disk, however often they are rewritten.

After the run, those that stay use hardly more than their size.
"""

import threading

import pytest

from tests.helpers.training import ADAM, fit, load_digits, mlp, one_thread, pack, select_configurations

pytestmark = [pytest.mark.one_session, pytest.mark.slow]

DISK = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = 'madlib_mop'::regnamespace AND relname LIKE 'model\\_state\\_%' AND relkind = 'r'
"""


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db, 120, 40)
    for n_hidden in (3000, 6000):
        db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(n_hidden)])
    pack(db, 2)
    select_configurations(db, "mst", [(1 + i % 2, ADAM, f"batch_size={60 - i}, epochs=1") for i in range(6)])
    return db


@pytest.mark.parametrize("schedule", ["rotation", "longest_first"])
def test_a_run_stays_small_while_its_caller_holds_a_snapshot(bench, schedule):
    before, peak, stop = bench.value(DISK), [0], threading.Event()

    def watch():
        connection = bench.connect()
        with connection.cursor() as cursor:
            while not stop.wait(0.05):
                cursor.execute(DISK)
                peak[0] = max(peak[0], cursor.fetchone()[0])
        connection.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    run = fit(bench, f"out_{schedule}", "mst", 6, seed=1, schedule=schedule)
    stop.set()
    watcher.join()
    states = bench.value("SELECT sum(state_bytes) FROM madlib_mop.model WHERE run_id = %s", [run.run_id])
    written = bench.value("SELECT sum(state_bytes) FROM madlib_mop.visit WHERE run_id = %s", [run.run_id])
    assert written > 10 * states
    assert peak[0] - before <= 3 * states, f"{(peak[0] - before) / states:.2f} times the states"


def test_the_states_that_stay_take_hardly_more_than_their_size(bench):
    """Also small ones, of which several share a slot with those that they have replaced."""
    bench.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(300)])
    select_configurations(bench, "mst_small", [(3, ADAM, f"batch_size={60 - i}, epochs=1") for i in range(7)])
    before = bench.value(DISK)
    run = fit(bench, "out_small", "mst_small", 5, seed=1)
    states = bench.value("SELECT sum(state_bytes)::bigint FROM madlib_mop.model WHERE run_id = %s", [run.run_id])
    assert 1 << 20 < states < 4 << 20
    stay = bench.value(DISK) - before
    assert stay <= 1.15 * states, f"{stay / states:.2f} times the states"


def test_only_newest_states_are_there(bench):
    parts = (
        "SELECT run_id, mst_key, sum(length(data)), count(DISTINCT version) FROM madlib_mop.model_state GROUP BY 1, 2"
    )
    newest = "SELECT run_id, mst_key, state_bytes, 1 FROM madlib_mop.model"
    assert sorted(bench.rows(parts)) == sorted(bench.rows(newest))
    assert bench.rows(DISK.replace("sum(pg_total_relation_size(oid))", "count(*)"))[0][0] > 0
