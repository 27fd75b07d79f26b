"""After any process is killed on a host or here, the run ends with the same bits, and nothing remains."""

import pytest

from tests.helpers.faults import BackgroundFit, answers, fit_statement, kill, kill_backend, newest_run, visits, wait_for
from tests.helpers.remote import N_EPOCHS, SEED, check, prepare, processes, relays, sessions, trainers_at, wait_for_work

pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    return hosts


def begin(hosts, table: str, settings: tuple[str, ...] = ()):
    """Start a run with known digests; return it and its run_id when all hosts work."""
    before = newest_run(hosts.db)
    call = BackgroundFit(hosts.db, fit_statement(table, "mst", N_EPOCHS, "train_2", SEED), settings=settings)
    run_id = wait_for(lambda: (newest_run(hosts.db) != before and newest_run(hosts.db)) or call.error)
    wait_for_work(hosts, call)
    return call, run_id


def visits_at(hosts, run_id: int, server: str) -> int:
    """Return the number of committed visits on one host."""
    return hosts.db.value(
        "SELECT count(*) FROM madlib_mop.visit v JOIN madlib_mop.segment s USING (run_id, segment_id)"
        " WHERE run_id = %s AND data_set = 'training' AND place = %s",
        [run_id, server],
    )


def test_a_trainer_a_relay_and_a_session(bench):
    """A trainer is killed on one host, a relay to the second, a session on the third: each visit is repeated."""
    call, run_id = begin(bench, "t_parts")
    seen = processes(bench)
    kill(trainers_at(bench.at["alpha"])[0])
    kill(relays(bench.db)[0])
    bench.at["gamma"].rows("SELECT pg_terminate_backend(%s)", [sessions(bench.at["gamma"])[0]])
    call.succeed()
    check(bench, run_id, bench.expected, seen)


def test_a_backend_killed_at_a_host(bench):
    """PostgreSQL then restarts all sessions of that host: the segment waits and continues."""
    call, run_id = begin(bench, "t_backend")
    seen = processes(bench)
    kill_backend(bench.at["beta"], sessions(bench.at["beta"])[0])
    call.succeed()
    check(bench, run_id, bench.expected, seen)


def test_a_whole_host(bench):
    """While a host is stopped, the others continue; after its restart the run ends with the same bits."""
    call, run_id = begin(bench, "t_host")
    seen, alpha = processes(bench), bench.at["alpha"].cluster
    alpha.stop_immediate()
    before = visits(bench.db, run_id), visits_at(bench, run_id, "alpha")
    wait_for(lambda: visits(bench.db, run_id) > before[0] or not call.running, what="a visit at another host")
    assert call.running and visits_at(bench, run_id, "alpha") == before[1]
    alpha.start()
    bench.move("alpha")
    call.succeed()
    notices = "".join(call.connection.notices)
    assert "waits for its host alpha" in notices and "its host is available again after" in notices
    check(bench, run_id, bench.expected, seen)


def test_a_host_that_does_not_come_back_in_time(bench):
    """After host_wait_s the run fails with one clear error; it can be resumed when the host is available."""
    call, run_id = begin(bench, "t_wait", ("SET madlib_mop.host_wait_s = 2",))
    seen, alpha = processes(bench), bench.at["alpha"].cluster
    alpha.stop()
    call.join(60)
    assert call.error.pgcode == "55000" and "was not available again within 2 s" in call.error.diag.message_primary
    assert "resume" in call.error.diag.message_hint
    assert bench.db.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [run_id]) == "failed"
    alpha.start()
    bench.move("alpha")
    bench.db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check(bench, run_id, bench.expected, seen)


def test_the_coordinators_server(bench):
    """When the coordinator stops, all processes on the hosts end too; resume continues the run."""
    call, run_id = begin(bench, "t_coordinator")
    seen = processes(bench)
    bench.db.cluster.stop_immediate()
    bench.db.cluster.start()
    call.join()
    wait_for(lambda: answers(bench.db), what="the server")
    bench.db.rows("SELECT madlib_mop.resume(%s)", [run_id])
    check(bench, run_id, bench.expected, seen)
