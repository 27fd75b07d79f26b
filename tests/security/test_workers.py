"""Promise 7: the narrow functions obey a worker session of the run alone: its login role, its process, its token."""

import hashlib
import hmac
import json

import pytest

from tests.security.kit import fingerprint, record_run, refusal, user

ALICE, LOGIN, RUN, OTHER = "alice", "login_by_hand", 31, 32
TOKEN = "the token of this very session"
CALLS = {
    "worker_check": "",
    "worker_host": ", 'alpha'",
    "worker_plan": "",
    "worker_model": ", 1",
    "worker_custom_functions": "",
    "worker_start_weights": ", 1",
    "worker_state_part": f", 1, {RUN * 1000}, 0, 0",
    "worker_put_state_part": f", 1, {RUN * 1000}, 0, 1, 'forged'",
    "worker_keep_visit": """, 1, '{"old_version": 0, "digest_in": "d", "epoch": 1, "position": 1, "segment_id": 5}'""",
    "worker_fail_member": ", 1, 0, 'forged'",
    "worker_put_staged_part": f", 1, {RUN * 1000}, 1, 5, 0, 'forged'",
    "worker_keep_staged": """, 1, '{"old_version": 0, "digest_in": "d", "epoch": 1, "position": 1, "segment_id": 5}'""",
    "worker_staged_parts": f", 1, 1, 1, '{{{RUN * 1000}}}', 0",
    "worker_keep_average": f""", 1, '{{"epoch": 1, "version": 1, "n_visits": 0, "slots": [{RUN * 1000}]}}'""",
}
TRAINER = {"threads": 1, "shard_cache_bytes": 1 << 20, "sandbox": True}


@pytest.fixture(scope="module")
def runs(db):
    user(db, ALICE)
    db.cluster.create_role(LOGIN)
    db.rows(f"GRANT {ALICE} TO {LOGIN}")
    for run_id in (RUN, OTHER):
        record_run(db, run_id, ALICE, state="running", login_role=LOGIN if run_id == RUN else "another")
    db.rows("UPDATE madlib_mop.run SET plan = plan || %s", [json.dumps({"trainer": TRAINER})])
    yield db
    db.rows(f"REVOKE {ALICE} FROM {LOGIN}")


def admit(db, connection, run_id: int = RUN, token: str = TOKEN) -> None:
    """Make a session a worker of the run, as the driver does."""
    digest = hashlib.sha256(f"{connection.info.backend_pid}:{token}".encode()).digest()
    db.rows("UPDATE madlib_mop.run SET token_digests = %s WHERE run_id = %s", [[digest], run_id])


@pytest.fixture
def worker(runs):
    """A session that is logged in as the run's role, acts as alice, and was admitted."""
    connection = runs.connect(LOGIN)
    admit(runs, connection)
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {ALICE}")
    yield connection
    connection.close()


def call(name: str, run_id: int = RUN, token: str = TOKEN) -> str:
    """Write a call of a narrow function."""
    return f"SELECT madlib_mop.{name}({run_id}, '{token}'{CALLS[name]})"


def assert_refused(connection, statement: str) -> None:
    """Hold that a narrow function refuses a call."""
    error = refusal(connection, statement, internal=True)
    assert error.sqlstate == "42501" and error.message.endswith("only a worker session of this run may do this"), error


def test_a_worker_is_obeyed(runs, worker):
    with worker.cursor() as cursor:
        for name in ("check", "plan", "model", "custom_functions", "start_weights", "state_part"):
            cursor.execute(call(f"worker_{name}"))
            assert cursor.fetchone() is not None


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_token_is_refused(runs, worker, name):
    before = fingerprint(runs, RUN)
    for token in ("a wrong token", "", TOKEN.upper()):
        assert_refused(worker, call(name, token=token))
    assert_refused(worker, call(name).replace(f"'{TOKEN}'", "NULL"))
    assert fingerprint(runs, RUN) == before


@pytest.mark.parametrize("name", CALLS)
def test_the_token_is_of_no_use_in_another_session(runs, worker, name):
    """Sessions of one login role see each other's statements in pg_stat_activity: so they may see a token."""
    before = fingerprint(runs, RUN)
    for role in (LOGIN, ALICE, None):  # another worker of the run, its owner, a superuser
        stranger = runs.connect(role)
        assert_refused(stranger, call(name))
        stranger.close()
    assert fingerprint(runs, RUN) == before


def test_another_runs_worker_is_refused(runs, worker):
    admit(runs, worker, OTHER)
    for name in CALLS:
        assert_refused(worker, call(name, OTHER))
        assert_refused(worker, call(name, 4711))


def test_a_worker_is_refused_once_its_run_has_ended(runs, worker):
    for change in ("state = 'interrupted'", "login_role = NULL", "token_digests = '{}'"):
        connection = runs.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE madlib_mop.run SET {change} WHERE run_id = {RUN}")
        for name in CALLS:
            assert_refused(worker, call(name))
        runs.rows("UPDATE madlib_mop.run SET state = 'running', login_role = %s WHERE run_id = %s", [LOGIN, RUN])
        admit(runs, worker)
        connection.close()


def test_worker_open_starts_nothing_for_a_stranger(runs):
    for role, token in ((ALICE, TOKEN), (LOGIN, TOKEN), (None, TOKEN), (LOGIN, "")):
        connection = runs.connect(role)
        assert_refused(connection, f"SELECT madlib_mop.worker_open({RUN}, '{token}', 0)")
        error = refusal(connection, "SELECT madlib_mop.worker_do('{\"number\": 1}', '')", internal=True)
        assert (error.sqlstate, "this session is no worker" in error.message) == ("42501", True)
        connection.close()


def test_a_worker_takes_each_task_of_the_drivers_once_and_none_from_others(runs, worker):
    """User code in a worker session, such as a deferred trigger's, can call the functions that the driver calls."""
    with worker.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.worker_open(%s, %s, 0)", [RUN, TOKEN])
        before = fingerprint(runs, RUN)
        forged = json.dumps({"do": "train", "data_set": "training", "segment_id": 0, "mst_key": 1, "number": 99})
        for seal in ("", "0" * 64, hashlib.sha256(forged.encode()).hexdigest(), None):
            assert_not_the_drivers(worker, forged, seal)
        task = json.dumps({"do": "load", "data_set": "nowhere", "segment_id": 0, "number": 3})
        seal = hmac.new(TOKEN.encode(), task.encode(), "sha256").hexdigest()
        taken = refusal(worker, "SELECT madlib_mop.worker_do(%s, %s)", [task, seal], internal=True)
        assert "nowhere" in taken.message
        assert_not_the_drivers(worker, task, seal)
        assert_not_the_drivers(worker, task.replace("3", "4"), seal)
        older = task.replace("3", "2")
        assert_not_the_drivers(worker, older, hmac.new(TOKEN.encode(), older.encode(), "sha256").hexdigest())
        error = refusal(worker, "SELECT madlib_mop.worker_open(%s, %s, 0)", [RUN, "x"], internal=True)
        assert (error.sqlstate, "worker already" in error.message) == ("42501", True)
    assert fingerprint(runs, RUN) == before


def assert_not_the_drivers(connection, task: str, seal: str | None) -> None:
    """Hold that a worker refuses a task."""
    error = refusal(connection, "SELECT madlib_mop.worker_do(%s, %s)", [task, seal], internal=True)
    assert (error.sqlstate, "is not the driver's" in error.message) == ("42501", True), error
