"""Rows that do not stay in a trainer's memory: they are in its file on disk, read once, with the same bits."""

import time

import psycopg2
import pytest

from tests.helpers.faults import (
    BackgroundFit,
    alive,
    answers,
    assert_nothing_left,
    assert_whole,
    fit_statement,
    kill,
    kill_backend,
    newest_run,
    rows_files,
    trainers,
    undisturbed,
    visits,
    wait_for,
    workers,
)
from tests.helpers.security.attacks import user
from tests.helpers.training import ALIKE, digests, fit, select_configurations

pytestmark = pytest.mark.one_session

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 4, 2, 4, 77
ON_DISK = "SET madlib_mop.shard_cache_mb = 0"
NOT_AT_ALL = "SET madlib_mop.shard_disk_mb = 0"
N_READS = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'reader_send'"
TEMPORARY = "SELECT name FROM pg_ls_tmpdir()"
#: Visits that began while their rows arrived: of each segment's trainer, its first one.
BEGUN_EARLY = (
    "SELECT epoch, segment_id, count(*) FROM madlib_mop.visit WHERE run_id = %s AND timing ? 'rows_s'"
    " GROUP BY 1, 2 ORDER BY 2"
)
METRICS = (
    "SELECT mst_key, epoch, data_set, ordinal, name, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3, 4"
)


@pytest.fixture(scope="module")
def bench(db):
    db.rows(f'ALTER DATABASE "{db.name}" SET track_functions = \'all\'')
    undisturbed(db, N_MODELS, N_SEGMENTS, N_EPOCHS, SEED)
    return db


def reads(db) -> int:
    """Return how often rows of a shard were read; the numbers come when the readers' sessions end."""
    db.rows("SELECT pg_sleep(0.5)")
    return reads_so_far(db)


def reads_so_far(db) -> int:
    return sum(calls for (calls,) in db.rows(N_READS))


def fitted(db, table: str, *settings: str, role=None):
    given = {"source_table": "train_2", "seed": SEED, "schedule": "rotation"}
    return fit(db, table, "mst", N_EPOCHS, settings, role, **given)


def test_each_shard_is_read_once_and_the_bits_are_those_in_memory(bench):
    before = reads(bench)
    run = fitted(bench, "on_disk", ON_DISK)
    assert digests(bench, run.run_id) == bench.expected
    wait_for(lambda: reads_so_far(bench) - before >= N_SEGMENTS, 30, "the numbers")
    assert reads(bench) - before == N_SEGMENTS
    assert bench.rows(TEMPORARY) == []
    assert bench.rows(BEGUN_EARLY, [run.run_id]) == [(1, n, 1) for n in range(N_SEGMENTS)]


def test_few_rows_that_stay_in_memory_are_there_before_a_visit_begins(bench):
    run = fitted(bench, "in_memory")
    assert digests(bench, run.run_id) == bench.expected and bench.rows(BEGUN_EARLY, [run.run_id]) == []


def test_two_networks_over_rows_on_disk_have_the_bits_and_the_metrics_of_those_in_memory(bench):
    """The segments train and evaluate both at once; three settings of each."""
    select_configurations(bench, "mixed", [(model_id, *params) for model_id in (1, 3) for _, *params in ALIKE[:3]])
    given = {"source_table": "train_2", "validation_table": "valid_2", "metrics_compute_frequency": 1, "seed": SEED}
    given["schedule"] = "rotation"
    memory, disk = (fit(bench, f"mixed_{len(s)}", "mixed", 2, s, **given).run_id for s in ((), (ON_DISK,)))
    assert digests(bench, memory) == digests(bench, disk)
    assert bench.rows(METRICS, [memory]) == bench.rows(METRICS, [disk]) != []
    assert bench.rows(BEGUN_EARLY, [disk]) == [(1, n, 1) for n in range(N_SEGMENTS)]


@pytest.mark.slow
def test_without_the_file_they_are_read_for_every_visit(bench):
    before = reads(bench)
    run = fitted(bench, "nowhere", ON_DISK, NOT_AT_ALL)
    assert digests(bench, run.run_id) == bench.expected
    deadline = time.monotonic() + 30
    while reads(bench) - before <= N_SEGMENTS and time.monotonic() < deadline:
        pass
    assert reads(bench) - before > N_SEGMENTS


@pytest.mark.slow
def test_a_killed_trainer_leaves_no_file_and_the_run_ends_with_the_same_bits(bench):
    before = newest_run(bench)
    call = BackgroundFit(bench, fit_statement("killed", "mst", N_EPOCHS, "train_2", SEED), settings=(ON_DISK,))
    run_id = wait_for(lambda: (newest_run(bench) != before and newest_run(bench)) or call.error, what="the run")
    for _ in range(2):
        victims = wait_for(lambda: trainers(bench) or not call.running, what="a trainer")
        if victims is True:
            break
        kill(victims[0])
        assert bench.rows(TEMPORARY) == []
    call.succeed()
    assert_whole(bench, run_id, bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(bench)
    assert bench.rows(TEMPORARY) == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a writer's backend", "the server"])
def test_killed_processes_of_the_server_leave_no_file_and_the_run_resumes_with_the_same_bits(bench, what):
    before = newest_run(bench)
    table = f"killed_{what[-6:]}"
    call = BackgroundFit(bench, fit_statement(table, "mst", N_EPOCHS, "train_2", SEED), settings=(ON_DISK,))
    run_id = wait_for(lambda: (newest_run(bench) != before and newest_run(bench)) or call.error, what="the run")
    wait_for(lambda: visits(bench, run_id), what="a visit")
    seen = trainers(bench)
    files = rows_files(bench, seen)
    assert len(files) == N_SEGMENTS and {file.st_nlink for file in files.values()} == {0}
    if what == "the server":
        bench.cluster.stop_immediate()
        bench.cluster.start()
    else:
        kill_backend(bench, workers(bench)[0])
    call.join()
    assert call.error is not None
    bench.close()  # its session has ended with the others
    wait_for(lambda: answers(bench) and not any(map(alive, seen)), what="the end of the trainers")
    assert bench.rows(TEMPORARY) == []
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert_whole(bench, run_id, bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_nothing_left(bench, seen)


def test_a_role_s_limit_of_temporary_files_holds_for_trainers(bench):
    role = "with_few_files"
    user(bench, role)
    for table in ("train_2", "train_2_summary", "arch", "mst", "mst_summary"):
        bench.rows(f"GRANT SELECT ON {table} TO {role}")
    bench.rows(f"ALTER ROLE {role} SET temp_file_limit = '3MB'")
    fitted(bench, f"{role}.few", ON_DISK, role=role)
    run_id = newest_run(bench)
    plan = "SELECT plan -> 'trainer' ->> 'shard_disk_bytes' FROM madlib_mop.run WHERE run_id = %s"
    assert bench.value(plan, [run_id]) == str(3 << 20)
    assert digests(bench, run_id) == bench.expected


@pytest.mark.parametrize("path", ["relative", "/no/such/directory", "/proc/version"])
def test_a_directory_that_cannot_be_used_is_named_before_any_work(bench, path):
    before = newest_run(bench)
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('shard_directory', %s)", [path])
    try:
        with pytest.raises(psycopg2.errors.InvalidParameterValue) as caught:
            fitted(bench, "nowhere_to_go")
    finally:
        bench.rows("DELETE FROM madlib_mop.setting")
    assert "shard_directory must be the absolute path of a directory in which the server's" in str(caught.value)
    assert repr(path) in str(caught.value) and newest_run(bench) == before


def test_another_directory_is_used(bench):
    path = bench.value("SELECT current_setting('data_directory') || '/madlib_mop_rows'")
    bench.rows(f"COPY (SELECT 1) TO PROGRAM 'cat && mkdir -m 700 {path}'")  # cat: what is not read is a broken pipe
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('shard_directory', %s)", [path])
    try:
        run = fitted(bench, "elsewhere", ON_DISK)
        assert digests(bench, run.run_id) == bench.expected
        assert bench.rows(f"SELECT pg_ls_dir('{path}')") == []
    finally:
        bench.rows("DELETE FROM madlib_mop.setting")
        bench.rows(f"COPY (SELECT 1) TO PROGRAM 'cat && rmdir {path}'")


def test_an_estimate_says_what_is_on_disk(bench):
    given = (
        '{"source_table": "train_2", "model_output_table": "x", "model_selection_table": "mst", "num_iterations": 2}'
    )
    connection = bench.connect()
    with connection.cursor() as cursor:
        explain = "SELECT item, value, note FROM madlib_mop.explain_fit('madlib_keras_fit_multiple_model', %s)"
        cursor.execute(explain, [given])
        assert "rows on disk" not in [item for item, *_ in cursor.fetchall()]
        cursor.execute(ON_DISK)
        cursor.execute(explain, [given])
        found = {item: (value, note) for item, value, note in cursor.fetchall()}
    connection.close()
    value, note = found["rows on disk"]
    assert 0 < value <= 2 * found["packed rows"][0] + 0.1
    assert note == "in the trainers' files while it trains: rows that do not fit into shard_cache_mb"
