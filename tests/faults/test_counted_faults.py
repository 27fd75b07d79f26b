"""Promise 5: the count of attempts at a visit continues when an interrupted run is resumed."""

import re
import signal
import time

import pytest

from tests.helpers.faults import BackgroundFit, kill, trainers, undisturbed, visits, wait_for
from tests.helpers.gates import Gate, begun

pytestmark = pytest.mark.slow

FAULTS = "SELECT faults FROM madlib_mop.run WHERE run_id = %s"
WAITING = """
SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'madlib_mop driver'
    AND datname = current_database()
"""


@pytest.fixture(scope="module")
def bench(db):
    return undisturbed(db, 2, 2, 1, 82)


def test_a_visit_that_failed_before_the_interruption_is_at_its_second_attempt_after_it(bench):
    call = "SELECT madlib.madlib_keras_fit_multiple_model('train_2', 't_faults', 'mst', 40, seed := 82)"
    with begun(bench, call) as (call, run_id):
        pass
    wait_for(lambda: visits(bench, run_id) > 2, what="visits")
    row = Gate(bench, f"SELECT 1 FROM madlib_mop.run WHERE run_id = {run_id} FOR NO KEY UPDATE")

    def fault_is_being_recorded():
        """Kill a trainer, and give the driver the time to notice it: a second kill would be a second fault."""
        for pid in trainers(bench)[:1]:
            kill(pid, signal.SIGABRT)
        deadline = time.monotonic() + 2
        while not (found := bench.rows(WAITING)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    wait_for(fault_is_being_recorded, what="the driver's record of a fault")
    asked = BackgroundFit(bench, "SELECT madlib_mop.cancel(%s)", [run_id])
    row.wait_for_driver(2)
    row.open()
    asked.succeed()
    call.join()
    assert call.error.pgcode == "57014", call.error
    ((task, counts),) = bench.value(FAULTS, [run_id]).items()
    assert counts == {"faults": 1, "killed": 0}
    place = [int(number) for number in re.findall(r"=(\d+)", task)]
    assert task.startswith("Visit(") and len(place) == 4
    attempt = (
        "SELECT attempt FROM madlib_mop.visit"
        " WHERE run_id = %s AND mst_key = %s AND segment_id = %s AND epoch = %s AND position = %s"
    )
    assert bench.rows(attempt, [run_id, *place]) == []
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert bench.value(attempt, [run_id, *place]) == 2
    assert bench.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s AND attempt > 1", [run_id]) == 1
