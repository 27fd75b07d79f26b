"""States on Greenplum: each lies at the segment that made it, and does not pass the coordinator when it hops."""

import signal

import pytest

from tests.helpers.averaging import fit_statement
from tests.helpers.faults import BackgroundFit, kill, newest_run, visits, wait_for, workers
from tests.helpers.greenplum import NetworkBytes, at_work, backends, n_segments, processes_of
from tests.helpers.training import ADAM, digests, fit, load_digits, mlp, pack, select_configurations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
N_EPOCHS, SEED = 2, 5
N_HIDDEN = 22_000  # with Adam's variables, a state of 20 MB
FIT = (
    "SELECT madlib.madlib_keras_fit_multiple_model('train', %s, 'mst', {}, seed := {}, schedule := '{}',"
    " metrics_compute_frequency := 1)"
)
#: The segments where the newest state of each model is.
WHERE = (
    "SELECT m.mst_key, array_agg(DISTINCT s.gp_segment_id) FROM madlib_mop.model m JOIN madlib_mop.model_state s"
    " ON s.slot = m.state_slot AND s.run_id = m.run_id AND s.mst_key = m.mst_key AND s.version = m.state_version"
    " WHERE m.run_id = %s GROUP BY 1"
)


def prepare(db, segments: int):
    """Pack the digits, and select two large configurations and two small ones."""
    load_digits(db)
    pack(db, segments)
    for n_hidden in (N_HIDDEN, 24):
        db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(n_hidden)])
    select_configurations(db, "mst", [(1 + i // 2, ADAM, f"batch_size={60 - i}, epochs=1") for i in range(4)])
    return db


@pytest.fixture(scope="module")
def bench(greenplum):
    prepare(greenplum, n_segments(greenplum))
    run = fit(greenplum, "undisturbed", "mst", N_EPOCHS, seed=SEED, schedule="rotation", metrics_compute_frequency=1)
    greenplum.expected = digests(greenplum, run.run_id)
    greenplum.run_id = run.run_id
    return greenplum


@pytest.fixture(scope="module")
def one_server(bench, db):
    prepare(db, n_segments(bench))
    run = fit(db, "undisturbed", "mst", N_EPOCHS, seed=SEED, schedule="rotation", metrics_compute_frequency=1)
    db.run_id = run.run_id
    return db


def begin(db, table: str, schedule: str = "rotation", n_epochs: int = N_EPOCHS) -> tuple[BackgroundFit, int]:
    """Start the call; return it and its run when each segment has a writer."""
    before = newest_run(db)
    call = BackgroundFit(db, FIT.format(n_epochs, SEED, schedule), [table])
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db) or call.error, what="its start")
    wait_for(lambda: not call.running or len(workers(db)) >= n_segments(db), what="the writers")
    assert call.running, call.error
    return call, run_id


def test_same_bits_as_on_one_server(bench, one_server):
    """Promise 1, with large states and small ones."""
    sizes = dict(bench.rows("SELECT mst_key, state_bytes FROM madlib_mop.model WHERE run_id = %s", [bench.run_id]))
    assert sizes[1] > 20_000_000 > 100_000 > sizes[3]
    assert digests(one_server, one_server.run_id) == bench.expected


def test_a_state_lies_where_its_last_visit_was(bench):
    last = (
        "SELECT mst_key, array_agg(segment_id) FROM madlib_mop.visit JOIN madlib_mop.model"
        " USING (run_id, mst_key, epoch, position) WHERE run_id = %s GROUP BY 1"
    )
    found = dict(bench.rows(WHERE, [bench.run_id]))
    assert found == dict(bench.rows(last, [bench.run_id])) and len(found) == 4
    assert bench.value("SELECT count(*) FROM madlib_mop.state_inbox") == 0


@pytest.mark.parametrize("schedule", ["rotation", "longest_first"])
def test_no_bytes_of_states_pass_the_coordinator(bench, schedule):
    """What the kernel counts for the writers' processes at the coordinator, whatever it is about."""
    call, run_id = begin(bench, f"counted_{schedule}", schedule, 3)
    wait_for(lambda: visits(bench, run_id) >= 14 or not call.running, what="visits at all segments")
    n_sessions, at_segments = backends(bench)
    assert n_sessions == n_segments(bench) + 1, "readers have ended"
    assert max(at_segments.values()) <= 2 * n_segments(bench) + 1, "with one that sends for the driver, perhaps"
    with NetworkBytes(workers(bench)) as counted:
        before = visits(bench, run_id)
        call.succeed()
    n_visits = visits(bench, run_id) - before
    states = "SELECT sum(state_bytes)::bigint FROM madlib_mop.visit WHERE run_id = %s"
    moved = bench.value(states, [run_id])
    assert n_visits > 24 and moved > 10_000_000 * n_visits
    assert counted.n_bytes < 0.02 * moved, f"{counted.n_bytes / n_visits:.0f} bytes a visit"


def query_during(db, call: BackgroundFit) -> None:
    """Run queries that redistribute the rows of the record until a call returns, and look that it succeeded."""
    while call.running:
        for column, table in (("epoch", "visit"), ("epoch", "model"), ("version", "model_state")):
            db.rows(f"SELECT {column}, count(DISTINCT mst_key) FROM madlib_mop.{table} GROUP BY 1")
    call.succeed()


def test_queries_of_others_lose_no_rows(bench):
    """What sends rows for a query takes those of subtransactions in progress for rolled back, and marks them so."""
    call, run_id = begin(bench, "queried")
    query_during(bench, call)
    assert digests(bench, run_id) == bench.expected
    assert visits(bench, run_id) == 4 * N_EPOCHS * n_segments(bench)


def test_queries_of_others_lose_no_rows_of_an_average(bench):
    found = []
    for table in ("alone", "queried_average"):
        call = BackgroundFit(bench, *fit_statement(table, N_EPOCHS, source_table="train", seed=SEED))
        query_during(bench, call) if found else call.succeed()
        run_id = newest_run(bench)
        assert visits(bench, run_id) == N_EPOCHS * n_segments(bench)
        found.append(digests(bench, run_id))
    assert found[0] == found[1] and len(found[0]) == 1


@pytest.mark.parametrize("at", ["its own segment", "another segment"])
def test_a_killed_process_at_a_segment(bench, at):
    """Promise 4: of a writer's processes, the one that has the trainer, or the one that sends a state."""
    call, run_id = begin(bench, f"killed_at_{at.split()[0]}", n_epochs=N_EPOCHS)
    wait_for(lambda: visits(bench, run_id) >= 4 or not call.running, what="visits")
    found = processes_of(bench, workers(bench)[0])
    own = next(pid for pid, (_, has_trainer) in found.items() if has_trainer)
    others = [pid for pid, (segment, _) in found.items() if segment != found[own][0]]
    assert kill(own if at == "its own segment" else others[0], signal.SIGKILL)
    call.join()
    if call.error is not None:
        call.connection.close()
        wait_for(lambda: not at_work(bench), 100, "the driver's end")
        bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(bench, run_id) == bench.expected
    chain = (
        "SELECT count(*) FROM (SELECT digest_in, lag(digest_out) OVER (PARTITION BY mst_key ORDER BY epoch, position)"
        " AS before FROM madlib_mop.visit WHERE run_id = %s) v WHERE before <> digest_in"
    )
    assert bench.value(chain, [run_id]) == 0


def test_a_clone_begins_with_the_state_where_it_is(bench, one_server):
    """A copy of a state stays at its segment, where the clone has made no visit."""
    found = []
    for db in (bench, one_server):
        clone = db.value("SELECT madlib_mop.clone_model(%s, 4, num_iterations => 1)", [db.run_id])
        if db is bench:
            at = dict(db.rows(WHERE, [db.run_id]))
            assert at[clone] == at[4] and len(at) == 5
        db.rows("SELECT madlib_mop.resume(%s)", [db.run_id])
        visits_of_clone = "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s AND mst_key = %s"
        assert db.value(visits_of_clone, [db.run_id, clone]) == n_segments(bench)
        found.append(digests(db, db.run_id))
    assert found[0] == found[1] and found[0].keys() == {1, 2, 3, 4, clone}
