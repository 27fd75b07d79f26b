"""Promise 6: stopped in any way and in any phase, a run ends within 1 s, nothing remains, and it can be resumed.

tests/helpers/engines/promises.py tests on every engine how a run is cancelled, and that it has no output tables then.
"""

import subprocess

import psycopg2
import pytest

from tests.helpers.faults import (
    BackgroundFit,
    assert_nothing_left,
    assert_whole,
    children,
    fit_statement,
    kill,
    newest_run,
    trainers,
    undisturbed,
    visits,
    wait_for,
)

pytestmark = pytest.mark.alone
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 3, 2, 2, 78
REASONS = {
    "cancelled": "the caller's statement was stopped: canceling statement due to user request",
    "terminated": "the caller's session was terminated or has crashed",
    "timed out": "the caller's statement was stopped: canceling statement due to statement timeout",
    "client gone": "the client disconnected; its work was stopped",
}
WAYS = ("cancelled", "terminated", "timed out", "client gone", "cancelled by number")
PHASES = {
    "starting": lambda db, run_id: True,
    "trainers starting": lambda db, run_id: trainers(db),
    "training": lambda db, run_id: visits(db, run_id) >= 2,
    "evaluating": lambda db, run_id: db.value("SELECT count(*) FROM madlib_mop.metric WHERE run_id = %s", [run_id]) > 0,
}


@pytest.fixture(scope="module")
def bench(db):
    db.rows("INSERT INTO madlib_mop.setting VALUES ('trainer_idle_s', '0')")  # some runs end just before the signal
    return undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)


class Psql:
    """A call of fit by a psql process, which can be killed as a client can."""

    def __init__(self, db, statement: str):
        psql = db.cluster.bindir / "psql"
        self._process = subprocess.Popen(
            [psql, "-XAtq", "-d", db.dsn, "-c", statement], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.pid = wait_for(
            lambda: db.rows(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT madlib.madlib_keras%%' AND state = 'active'"
            ),
            what="psql's session",
        )[0][0]
        self.error = "killed"

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def vanish(self) -> None:
        self._process.kill()
        self._process.communicate()


SELECTED = [
    pytest.param(way, phase, marks=() if (way, phase) in {
        ("terminated", "trainers starting"), ("client gone", "evaluating"), ("timed out", "starting"),
    } else pytest.mark.slow)
    for way in WAYS for phase in PHASES
]  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize("way, phase", SELECTED)
def test_it_stops_at_once_and_goes_on_when_told(bench, way, phase):
    table = f"t_{way}_{phase}".replace(" ", "_")
    before = newest_run(bench)
    statement = fit_statement(table, "mst", N_EPOCHS, "train_2", SEED)
    if way == "timed out":
        call, run_id = timed_out(bench, table, statement, phase)
    else:
        call = Psql(bench, statement) if way == "client gone" else BackgroundFit(bench, statement)
        run_id = wait_for(lambda: newest_run(bench) != before and newest_run(bench), what="the run's start")
        wait_for(lambda: PHASES[phase](bench, run_id) or not call.running, what=phase)
    processes = {*trainers(bench), *children(call.pid, "madlib_mop.driver")}
    stop(bench, call, way, run_id)
    assert_nothing_left(bench, processes, within_s=1.0)
    finish(bench, call, way, run_id)
    assert bench.value(f"SELECT count(*) FROM {table}") == N_MODELS


def timed_out(db, table: str, statement: str, phase: str) -> tuple[BackgroundFit, int]:
    """Begin a call with a timeout within which a run reaches the phase, on a machine of any speed; return the run too.

    Where the call ended without the phase having been seen, as on a machine that stood still, the time was too long.
    """
    timeout_ms = 400
    for _ in range(20):
        before = newest_run(db)
        call = BackgroundFit(db, statement, settings=(f"SET statement_timeout = {timeout_ms}",))
        if reached(db, call, before, phase):
            return call, newest_run(db)
        timeout_ms = timeout_ms * 3 // 2 if call.error is not None else timeout_ms * 4 // 5
        if newest_run(db) != before:
            assert_nothing_left(db)
            db.rows("SELECT madlib_mop.drop_run(%s)", [newest_run(db)])
        db.rows(f"DROP TABLE IF EXISTS {table}, {table}_info, {table}_summary")
    raise AssertionError(f"no call with a timeout was {phase}")


def reached(db, call: BackgroundFit, before: int | None, phase: str) -> bool:
    """Wait until a call's run is in the phase; return False if the call ended before that."""

    def is_reached() -> bool:
        return newest_run(db) != before and PHASES[phase](db, newest_run(db))

    wait_for(lambda: is_reached() or not call.running, what=phase)
    return is_reached()


def stop(db, call, way: str, run_id: int) -> None:
    """Request the run to stop, and return once it is notified."""
    if way == "cancelled":
        db.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    elif way == "terminated":
        db.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    elif way == "client gone":
        call.vanish()
    elif way == "cancelled by number":
        connection = db.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT madlib_mop.cancel(%s)", [run_id])
        connection.close()
    else:
        wait_for(lambda: not call.running, what="the timeout")


def finish(db, call, way: str, run_id: int) -> None:
    """Hold what the caller was told, and that the rest of the run gives the expected bits."""
    if way != "client gone":
        call.join(10)
    state, detail = db.rows("SELECT state, state_detail FROM madlib_mop.run WHERE run_id = %s", [run_id])[0]
    if state == "finished":  # the run ended before the signal
        return
    if way in ("cancelled", "timed out"):
        assert isinstance(call.error, psycopg2.errors.QueryCanceled) and "Traceback" not in str(call.error)
    if way == "cancelled by number":
        assert state == "cancelled" and "cancelled by" in str(call.error) and "Traceback" not in str(call.error)
        assert call.error.pgcode == "57014"
    elif state == "interrupted":
        assert detail == REASONS[way]
    else:  # stopped after training, before the output tables were written
        assert (state, detail, visits(db, run_id)) == ("trained", None, N_MODELS * N_SEGMENTS * N_EPOCHS)
    done = visits(db, run_id)
    db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert visits(db, run_id) >= done
    assert_whole(db, run_id, db.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(db)


def test_a_trainer_dies_with_its_backend_in_the_middle_of_a_long_call(bench):
    """A trainer inside TensorFlow reads no pipe; it must die all the same when its backend does."""
    call = BackgroundFit(bench, fit_statement("t_long", "mst", 40, "train_2", SEED))
    victims = wait_for(lambda: len(trainers(bench)) == N_SEGMENTS and trainers(bench), what="trainers")
    wait_for(lambda: visits(bench, newest_run(bench)) > 4, what="visits")
    driver = wait_for(lambda: children(call.pid, "madlib_mop.driver"))[0]
    bench.rows("SELECT pg_terminate_backend(%s)", [call.pid])
    assert_nothing_left(bench, {driver, *victims}, within_s=1.0)
    kill(driver)
    bench.rows("SELECT madlib_mop.drop_run(%s)", [newest_run(bench)])
