"""Training at three hosts: the bits of one server; nobody but the coordinator gives a host work; clear errors."""

import hashlib
import hmac
import json

import psycopg2
import pytest

from tests.conftest import PASSWORD
from tests.faults.lab import BackgroundFit, fit_statement
from tests.hosts.remote import N_EPOCHS, RUN, check, prepare, processes, wait_for_work
from tests.hosts_kit import ANALYST
from tests.workbench import digests, weights


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    return hosts


@pytest.fixture(scope="module")
def run(bench):
    """A run at the hosts, and what could be seen of its processes meanwhile."""
    db = bench.db
    call = BackgroundFit(db, fit_statement("there", "mst", N_EPOCHS, "train_2", RUN["seed"]))
    wait_for_work(bench, call)
    bench.seen = command_lines_and_activity(bench)
    bench.pids = processes(bench)
    call.succeed()
    bench.run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
    return bench


def command_lines_and_activity(hosts) -> str:
    """Give the process list's command lines, environments included, and all that pg_stat_activity shows anywhere."""
    from pathlib import Path

    texts = []
    for entry in Path("/proc").iterdir():
        for name in ("cmdline", "environ") if entry.name.isdigit() else ():
            try:
                texts.append((entry / name).read_bytes().decode(errors="replace"))
            except OSError:
                continue
    ours = [text for text in texts if "madlib_mop" in text or "postgres" in text]
    for at in (hosts.db, *hosts.at.values()):
        ours += [str(row) for row in at.rows("SELECT * FROM pg_stat_activity")]
    return "\n".join(ours)


def test_bits_are_those_of_one_server(run):
    """Promise 1 over hosts: every model's digest at its end, each visit once, nothing left here or there."""
    check(run, run.run_id, run.expected, run.pids)
    assert weights(run.db, "there") == weights(run.db, "here")


def test_work_was_done_at_the_hosts(run):
    """A trainer was at each host, and the record says where each segment is."""
    places = run.db.rows(
        "SELECT DISTINCT place FROM madlib_mop.segment WHERE run_id = %s AND data_set = 'training'", [run.run_id]
    )
    assert {place for (place,) in places} == {"alpha", "beta", "gamma"}


def test_the_callers_transaction_is_at_no_host(run):
    """A host that restarts must not take the caller's transaction, and the whole run's outputs, with it."""
    assert "madlib_mop segment of run" in run.seen and "postgres_fdw" not in run.seen


def test_secrets_are_nowhere(run):
    """Passwords, keys and connection strings: not in logs, process list, activity, plan or error."""
    keys = run.db.rows("SELECT encode(key, 'hex'), coordinator FROM madlib_mop.host")
    logs = [at.cluster.log_tail(100_000) for at in (run.db, *run.at.values())]
    plan = run.db.value("SELECT plan::text FROM madlib_mop.run WHERE run_id = %s", [run.run_id])
    assert "train_2" in plan and "madlib_mop segment of run" in run.seen
    for secret in [PASSWORD, *[value for row in keys for value in row]]:
        for text in (run.seen, plan, *logs):
            assert secret not in text


def test_average_and_evaluation_at_hosts(bench):
    """Model averaging: segments train at hosts, the coordinator averages; the bits of one server."""
    db, found = bench.db, {}
    for suffix in ("_here", "_2"):
        table = f"averaged{suffix}"
        db.rows(
            f"SELECT madlib.madlib_keras_fit('train{suffix}', '{table}', 'arch', 1, $a$loss='categorical_crossentropy',"
            " optimizer='SGD(lr=0.05)', metrics=['accuracy']$a$, 'batch_size=16, epochs=1', 2,"
            f" validation_table := 'valid{suffix}', seed := 3)"
        )
        run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
        metrics = "SELECT epoch, data_set, ordinal, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3"
        found[suffix] = digests(db, run_id), db.rows(metrics, [run_id])
    assert found["_2"] == found["_here"]


def refused(connection, statement: str, *values) -> psycopg2.Error:
    """Give the error of a statement that must fail."""
    with connection, connection.cursor() as cursor, pytest.raises(psycopg2.Error) as caught:
        cursor.execute(statement, values)
    return caught.value


def test_users_at_the_host_can_do_nothing_by_hand(bench):
    """Who may use the extension at a host, and even knows the coordinator's name, cannot give a trainer work."""
    at = bench.at["alpha"]
    coordinator = bench.db.value("SELECT coordinator FROM madlib_mop.host WHERE server = 'alpha'")
    connection = at.connect(ANALYST)
    calls = {
        "SELECT madlib_mop.segment_put('x')": (),
        "SELECT madlib_mop.segment_send(%s, '', true)": ('{"op": "start"}',),
        "SELECT madlib_mop.segment_get(0)": (),
        "SELECT madlib_mop.segment_open(%s)": ("a coordinator that there is not",),
        "SELECT madlib_mop.segment_open(NULL)": (),
    }
    for statement, values in calls.items():
        assert refused(connection, statement, *values).pgcode == "42501"
    for table in ("coordinator", "host"):
        assert refused(connection, f"SELECT * FROM madlib_mop.{table}").pgcode == "42501"
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.segment_open(%s)", [coordinator])
        nonce = cursor.fetchone()[0]
    header = json.dumps({"op": "start", "threads": 1, "shard_cache_bytes": 1 << 20, "number": 1, "n_blobs": 0})
    for seal in ("", "0" * 64, hmac.new(nonce.encode(), header.encode(), "sha256").hexdigest(), None, "é"):
        error = refused(connection, "SELECT madlib_mop.segment_send(%s, %s, true)", header, seal)
        assert (error.pgcode, "not the coordinator's" in error.diag.message_primary) == ("42501", True)
    assert refused(connection, "SELECT madlib_mop.segment_open(%s)", coordinator).pgcode == "42501"
    connection.close()


def test_a_message_is_done_once_and_in_its_own_session(bench):
    """A sealed message that somebody has seen is of no use: not twice, and not to another session."""
    at = bench.at["alpha"]
    coordinator, key = bench.db.rows("SELECT coordinator, key FROM madlib_mop.host WHERE server = 'alpha'")[0]
    header = json.dumps({"op": "stats", "number": 1, "n_blobs": 0})
    ours, other = at.connect(ANALYST), at.connect(ANALYST)
    nonces = []
    for connection in (ours, other):
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT madlib_mop.segment_open(%s)", [coordinator])
            nonces.append(cursor.fetchone()[0])
    seal = hmac.new(bytes(key), (nonces[0] + header).encode(), hashlib.sha256).hexdigest()
    assert refused(other, "SELECT madlib_mop.segment_send(%s, %s, true)", header, seal).pgcode == "42501"
    with ours, ours.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.segment_send(%s, %s, true)", [header, seal])
        assert "died" in json.loads(cursor.fetchone()[0])  # taken, but there is no trainer yet
    assert refused(ours, "SELECT madlib_mop.segment_send(%s, %s, true)", header, seal).pgcode == "42501"
    for connection in (ours, other):
        connection.close()


