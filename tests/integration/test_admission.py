"""Admission: a run that the server has no room for waits for its turn, fair between roles, or fails at once."""

import time
from contextlib import closing

import pytest

from madlib_mop.catalog.drivers import N_CALLER_AND_DRIVER, n_segment_sessions
from tests.helpers.faults import BackgroundFit, kill, newest_run, visits, wait_for
from tests.helpers.security.attacks import refusal, refusal_of, user
from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations

ALICE, CAROL = "alice_waits", "carol_waits"
STATE = "SELECT state, state_detail FROM madlib_mop.progress WHERE run_id = %s"


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, 1, suffix="_1")
    select_configurations(db, "mst", ALIKE[:1])
    for role in (ALICE, CAROL):
        user(db, role)
        for table in ("train_1", "train_1_summary", "arch", "mst", "mst_summary"):
            db.rows(f"GRANT SELECT ON {table} TO {role}")
    db.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('max_runs', '1')")
    return db


class RoleFit(BackgroundFit):
    """A call of fit by a role, in a thread; ``run_id`` is its run."""

    def __init__(self, db, role: str, name: str, n_iterations: int, settings=()):
        before = newest_run(db)
        fit = "SELECT madlib.madlib_keras_fit_multiple_model('train_1', %s, 'mst', %s, seed => 1)"
        super().__init__(db, fit, (f"{role}.{name}", n_iterations), settings, role)
        self.run_id = wait_for(
            lambda: not self.running or (newest_run(db) if newest_run(db) != before else None), what="a run"
        )


@pytest.fixture
def at_work(bench):
    """A run of Alice's that trains until it is cancelled."""
    call = RoleFit(bench, ALICE, f"long_{time.monotonic_ns()}", 100000)
    wait_for(lambda: visits(bench, call.run_id) > 0, what="a visit")
    yield call
    if call.running:
        bench.rows("SELECT madlib_mop.cancel(%s)", [call.run_id])
    call.join()


def waits(db, run_id: int) -> bool:
    ((state, detail),) = db.rows(STATE, [run_id])
    return state == "running" and (detail or "").startswith("waits for its turn: ")


def test_a_run_has_the_sessions_that_admission_and_the_doctor_count(bench, at_work):
    """2 N + 2 (docs/administration.md), here with the caller's, whose name is another."""
    of_run = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE starts_with(application_name, 'madlib_mop ') AND datname = current_database()"
    )
    n_sessions = n_segment_sessions(1) + N_CALLER_AND_DRIVER
    assert n_sessions == 2 * 1 + 2
    wait_for(lambda: bench.value(of_run) + 1 == n_sessions, what="its sessions")


@pytest.mark.slow
def test_a_second_run_waits_and_says_why(bench, at_work):
    call = RoleFit(bench, CAROL, "second", 1)
    wait_for(lambda: waits(bench, call.run_id), what="the wait")
    why = "waits for its turn: 1 run is in progress, and max_runs is 1"
    assert bench.rows(STATE, [call.run_id]) == [("running", why)]
    assert visits(bench, call.run_id) == 0
    workers = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'madlib_mop writer of run ' || %s"
    assert bench.value(workers, [call.run_id]) == 0
    bench.rows("SELECT madlib_mop.cancel(%s)", [at_work.run_id])
    call.succeed()
    assert f"NOTICE:  run {call.run_id} {why}" in "".join(call.connection.notices)
    assert bench.rows(STATE, [call.run_id]) == [("finished", None)]


@pytest.mark.slow
def test_the_second_run_of_one_user_does_not_pass_the_first_of_another(bench, at_work):
    second = RoleFit(bench, ALICE, "hers", 1)
    wait_for(lambda: waits(bench, second.run_id), what="the wait")
    first = RoleFit(bench, CAROL, "the_other_s", 1)
    wait_for(lambda: waits(bench, first.run_id), what="the wait")
    bench.rows("SELECT madlib_mop.cancel(%s)", [at_work.run_id])
    first.succeed()
    second.succeed()
    order = "SELECT run_id FROM madlib_mop.run WHERE run_id IN (%s, %s) ORDER BY admitted_at"
    assert bench.rows(order, [first.run_id, second.run_id]) == [(first.run_id,), (second.run_id,)]


@pytest.mark.slow
def test_four_users_with_two_runs_each_all_get_their_turn(bench, at_work):
    """None fails for want of memory or connections, and nobody's second run passes another's first."""
    roles = [user(bench, f"one_of_four_{n}") for n in range(4)]
    for role in roles:
        for table in ("train_1", "train_1_summary", "arch", "mst", "mst_summary"):
            bench.rows(f"GRANT SELECT ON {table} TO {role}")
    calls = []
    for role in sorted(2 * roles):  # both runs of a user, one after the other
        calls.append(RoleFit(bench, role, f"run_{len(calls)}", 1))
        wait_for(lambda: waits(bench, calls[-1].run_id), what="the wait")
    bench.rows("UPDATE madlib_mop.setting SET value = '2' WHERE name = 'max_runs'")
    bench.rows("SELECT madlib_mop.cancel(%s)", [at_work.run_id])
    for call in calls:
        call.succeed()
    bench.rows("UPDATE madlib_mop.setting SET value = '1' WHERE name = 'max_runs'")
    admitted = bench.rows(
        "SELECT owner::regrole::text FROM madlib_mop.run WHERE run_id = ANY(%s) ORDER BY admitted_at",
        [[call.run_id for call in calls]],
    )
    owners = [owner for (owner,) in admitted]
    assert len(owners) == 8 and set(owners[:4]) == set(owners[4:]) == set(roles)


@pytest.mark.slow
def test_a_waiting_run_is_cancelled_and_resumed(bench, at_work):
    call = RoleFit(bench, CAROL, "cancelled", 1)
    wait_for(lambda: waits(bench, call.run_id), what="the wait")
    begun = time.monotonic()
    assert bench.value("SELECT madlib_mop.cancel(%s)", [call.run_id], CAROL) is True
    call.join(10)
    assert time.monotonic() - begun < 5 and "was cancelled by" in str(call.error)
    assert bench.rows(STATE, [call.run_id])[0][0] == "cancelled"
    stopped = RoleFit(bench, CAROL, "stopped", 1, settings=("SET statement_timeout = 3000",))
    stopped.join(20)
    assert stopped.error.pgcode == "57014" and bench.rows(STATE, [stopped.run_id])[0][0] == "interrupted"
    bench.rows("SELECT madlib_mop.cancel(%s)", [at_work.run_id])
    at_work.join()
    bench.rows("SELECT madlib_mop.resume(%s)", [call.run_id], CAROL)
    assert bench.rows(STATE, [call.run_id]) == [("finished", None)]


def test_a_run_whose_driver_was_killed_makes_room(bench, at_work):
    """Nobody wakes the waiting run; its backend, too, is gone."""
    call = RoleFit(bench, CAROL, "after_a_kill", 1)
    wait_for(lambda: waits(bench, call.run_id), what="the wait")
    driver = bench.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [at_work.run_id])
    bench.rows("SELECT pg_terminate_backend(%s)", [at_work.pid])
    kill(driver)
    call.succeed()


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_keeps_its_place(bench, at_work):
    """The new driver of the same call does not wait."""
    other = RoleFit(bench, CAROL, "behind", 1)
    wait_for(lambda: waits(bench, other.run_id), what="the wait")
    kill(bench.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [at_work.run_id]))
    n = visits(bench, at_work.run_id)
    wait_for(lambda: visits(bench, at_work.run_id) > n + 2, what="more visits")
    assert waits(bench, other.run_id)
    bench.rows("SELECT madlib_mop.cancel(%s)", [at_work.run_id])
    other.succeed()


def test_it_fails_at_once_if_the_session_wants_that(bench, at_work):
    call = RoleFit(bench, CAROL, "at_once", 1, settings=("SET madlib_mop.admission = 'error'",))
    call.join(20)
    assert call.error.pgcode == "53000"
    assert "would have to wait: 1 run is in progress, and max_runs is 1" in call.error.diag.message_primary
    assert "lets it wait" in call.error.diag.message_hint


@pytest.mark.slow
def test_only_superusers_turn_it_off(bench, at_work):
    error = refused(bench, CAROL, "off")
    assert "setting madlib_mop.admission must be one of wait, error, off (off: superusers only)" in error
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET madlib_mop.admission = 'off'")
        cursor.execute("SELECT madlib.madlib_keras_fit_multiple_model('train_1', 'not_asked', 'mst', 1, seed => 1)")
    connection.close()
    assert at_work.running
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('admission', 'off')")
    fit = f"SELECT madlib.madlib_keras_fit_multiple_model('train_1', '{CAROL}.for_all', 'mst', 1, seed => 1)"
    bench.rows(fit, role=CAROL)
    bench.rows("DELETE FROM madlib_mop.setting WHERE name = 'admission'")


def refused(db, role: str, value: str) -> str:
    fit = f"SELECT madlib.madlib_keras_fit_multiple_model('train_1', '{role}.refused', 'mst', 1)"
    with closing(db.connect(role)) as connection:
        connection.cursor().execute("SET madlib_mop.admission = %s", [value])
        return refusal(connection, fit).message


@pytest.mark.parametrize("value", ["sometimes", ""])
def test_wrong_settings_are_one_error(bench, value):
    if value:
        assert f"Received: {value!r} (SET madlib_mop)" in refused(bench, CAROL, value)
    bench.rows("UPDATE madlib_mop.setting SET value = 'many' WHERE name = 'max_runs'")
    fit = f"SELECT madlib.madlib_keras_fit_multiple_model('train_1', '{CAROL}.wrong', 'mst', 1)"
    error = refusal_of(bench, fit, role=CAROL)
    bench.rows("UPDATE madlib_mop.setting SET value = '1' WHERE name = 'max_runs'")
    assert "max_runs must be a whole number of 1 or more. Received: 'many'" in error.message


def test_a_stranger_s_lock_holds_up_no_admission(bench):
    """All roles can take advisory locks: whoever holds this one is ended."""
    stranger = bench.connect("stranger_waits")
    with stranger.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(x'6d6f70'::int, 0)")
    call = RoleFit(bench, CAROL, "not_held_up", 1)
    call.succeed(60)
    stranger.close()


@pytest.mark.slow
def test_a_run_that_only_waits_for_rows_gives_its_place_back(bench):
    """A view can take any time for a row: a few such runs would keep all others from training."""
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('reading_limit_s', '1')")
    sleeping = f"{ALICE}.sleeping"
    bench.rows(
        f"CREATE VIEW {sleeping} AS SELECT t.* FROM train_1 AS t, LATERAL ("
        "SELECT CASE WHEN session_user LIKE 'madlib_mop_run%' THEN pg_sleep(600 + 0 * buffer_id) END) AS s"
    )
    bench.rows(f"CREATE TABLE {sleeping}_summary AS TABLE train_1_summary")
    for relation in (sleeping, f"{sleeping}_summary"):
        bench.rows(f"ALTER TABLE {relation} OWNER TO {ALICE}")
    before = newest_run(bench)
    fit = f"SELECT madlib.madlib_keras_fit_multiple_model('{sleeping}', '{ALICE}.never', 'mst', 1, seed => 1)"
    call = BackgroundFit(bench, fit, role=ALICE)
    run_id = wait_for(lambda: not call.running or (newest_run(bench) != before and newest_run(bench)), what="a run")
    assert call.running, call.error
    try:
        RoleFit(bench, CAROL, "meanwhile", 1).succeed(60)
        assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "running"
    finally:
        bench.rows("SELECT madlib_mop.cancel(%s)", [run_id])
        call.join()
        bench.rows("DELETE FROM madlib_mop.setting WHERE name = 'reading_limit_s'")
    assert "another run may train meanwhile" in "".join(call.connection.notices)
