"""Promise 7: only sessions of the server's own user write the record, and rows are accepted only from a reader."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mop_backend.rows import RowsListener, RowsLost, Sender

from tests.helpers.security.attacks import fingerprint, record_run, refusal, user

ALICE, LOGIN, CREATOR, RUN = "alice", "login_by_hand", "may_create_roles", 31
CALLS = {
    "writer_open": f"{RUN}, 0",
    "writer_do": '\'{"class": "StartTrainer"}\'',
    "host_access": f"{RUN}, 'alpha'",
    "model_of": f"{RUN}, 1",
    "custom_functions_of": f"{RUN}",
    "start_weights_of": f"{RUN}, 1",
    "state_part_of": f"{RUN}, 1, {RUN * 1000}, 0, 0",
    "keep_visit": f"""{RUN}, 1, '{{"old_version": 0, "digest_in": "d", "epoch": 1, "position": 1, "segment_id": 5}}'""",
    "keep_copies": f"{RUN}, 1, '{{}}', NULL",
    "keep_again": f"""{RUN}, 1, '{{"version": 0, "server": "mine", "epoch": 1, "position": 1, "segment_id": 0}}'""",
    "state_at": f"{RUN}, 1, 0",
    "released_copies": f"{RUN}, 'alpha'",
    "copies_gone": f"{RUN}, 'alpha', '[[1, 1]]'",
    "fail_member": f"{RUN}, 1, 0, 'forged'",
    "keep_staged": f"""{RUN}, 1, '{{"old_version": 0, "digest_in": "d", "epoch": 1, "position": 1}}'""",
    "staged_parts": f"{RUN}, 1, 1, 1, '{{{RUN * 1000}}}', 0",
    "keep_average": f"""{RUN}, 1, '{{"epoch": 1, "version": 1, "n_visits": 0, "slots": [{RUN * 1000}]}}'""",
}
OWN_PID = os.getpid()
BACKEND = str(Path(sys.modules["mop_backend"].__file__).parent.parent)


@pytest.fixture(scope="module")
def runs(db):
    user(db, ALICE)
    for role in (LOGIN, CREATOR):
        db.cluster.create_role(role)
    db.rows(f"GRANT {ALICE} TO {LOGIN}")
    record_run(db, RUN, ALICE, state="running", login_role=LOGIN)
    yield db
    db.rows(f"REVOKE {ALICE} FROM {LOGIN}")


@pytest.mark.parametrize("role", [ALICE, LOGIN])
def test_no_role_of_a_run_can_act_as_its_writer(runs, role):
    """A reader is logged in as the run's role, and users' code in it can RESET ROLE: neither role has these rights."""
    before = fingerprint(runs, RUN)
    connection = runs.connect(role)
    for name, arguments in CALLS.items():
        error = refusal(connection, f"SELECT madlib_mop_internal.{name}({arguments})")
        assert (error.sqlstate, error.message) == ("42501", "permission denied for schema madlib_mop_internal"), name
    connection.close()
    assert fingerprint(runs, RUN) == before


def test_even_who_may_execute_it_opens_no_writer_without_being_a_superuser(runs):
    """A second defence: a GRANT by mistake is not sufficient."""
    connection = runs.connect()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN; GRANT USAGE ON SCHEMA madlib_mop_internal TO alice")
        cursor.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA madlib_mop_internal TO alice")
        cursor.execute("SET SESSION AUTHORIZATION alice")
        error = refusal(connection, f"SELECT madlib_mop_internal.writer_open({RUN}, 0)", internal=True)
    connection.rollback()
    connection.close()
    assert (error.sqlstate, "has no right to write the record" in error.message) == ("42501", True)


def test_a_writer_takes_no_task_before_it_is_opened(runs):
    connection = runs.connect()
    error = refusal(connection, "SELECT madlib_mop_internal.writer_do('{}')", internal=True)
    assert (error.sqlstate, "is not a writer" in error.message) == ("42501", True)
    connection.close()


@pytest.mark.parametrize("address", ["", "madlib_mop.rows.0000", "/tmp/elsewhere", "madlib_mop.123.abc"])
def test_reader_send_reaches_nothing_but_who_expects_rows(runs, address):
    connection = runs.connect(ALICE)
    call = "SELECT madlib_mop_calls.reader_send(%s, 'select 1', 0, 1, NULL)"
    error = refusal(connection, call, [address], internal=True)
    assert (error.sqlstate, "rows" in error.message or "address" in error.message) == ("55000", True)
    connection.close()


def take(listener, pid, taken: list):
    """Receive rows in a thread of its own, and store the result."""

    def work():
        try:
            taken.append(listener.forward(lambda shapes, blobs: taken.append((shapes, blobs)), lambda: None, pid))
        except RowsLost as loss:
            taken.append(loss)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_rows_come_whole(tmp_path):
    listener, taken = RowsListener(), []
    thread = take(listener, OWN_PID, taken)
    sender = Sender(listener.address, lambda: None)
    sender.send([[2, 3]], [b"123456"])
    sender.send([[1, 3]], [b"789"])
    assert sender.end() == 2
    thread.join(20)
    assert taken == [([[2, 3]], [bytearray(b"123456")]), ([[1, 3]], [bytearray(b"789")]), 2]


def test_rows_that_end_too_soon_are_lost():
    listener, taken = RowsListener(), []
    thread = take(listener, OWN_PID, taken)
    sender = Sender(listener.address, lambda: None)
    sender.send([[2, 3]], [b"123456"])
    sender.close()
    thread.join(20)
    assert isinstance(taken[-1], RowsLost)


def test_another_process_is_not_heard_even_one_of_the_servers_user():
    """Users' code that knows an address could use it in its own session, which is another process."""
    listener, taken = RowsListener(), []
    thread = take(listener, OWN_PID, taken)
    forged = (
        f"import sys; sys.path.insert(0, {BACKEND!r})\n"
        "from mop_backend.rows import Sender\n"
        f"sender = Sender({listener.address!r}, lambda: None)\n"
        "sender.send([[1]], [b'forged'])\n"
        "sender.end()"
    )
    subprocess.run([sys.executable, "-c", forged], timeout=30, capture_output=True)
    sender = Sender(listener.address, lambda: None)
    sender.send([[1]], [b"true"])
    sender.end()
    thread.join(20)
    assert taken == [([[1]], [bytearray(b"true")]), 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another operating system user")
def test_another_operating_system_user_neither_sends_nor_takes_rows():
    def as_nobody(code: str) -> str:
        head = f"import sys, os, socket; sys.path.insert(0, {BACKEND!r})\nfrom mop_backend.rows import *\n"
        head += "os.setuid(65534)\n"
        done = subprocess.run([sys.executable, "-c", head + code], timeout=30, capture_output=True, text=True)
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    listener, taken = RowsListener(), []
    thread = take(listener, None, taken)
    # the listener belongs to another user
    assert "RowsLost" in as_nobody(f"Sender({listener.address!r}, lambda: None)")
    connect = f"s = socket.socket(socket.AF_UNIX); s.connect('\\0' + {listener.address!r})\n"
    connect += "s.send(b'x' * 100); print(s.recv(1))"
    assert as_nobody(connect).partition(":")[0] in ("b''", "ConnectionResetError", "BrokenPipeError")
    sender = Sender(listener.address, lambda: None)
    sender.end()
    thread.join(20)
    assert taken == [0]


def test_a_superusers_run_makes_no_role_that_another_could_join(bench_of_a_superuser):
    """On PostgreSQL 15, a CREATEROLE role may grant itself any role except superusers."""
    db, seen = bench_of_a_superuser
    assert seen == [[]] * len(seen) and len(seen) > 0
    assert db.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = (SELECT max(run_id) FROM madlib_mop.run)") > 0


@pytest.fixture
def bench_of_a_superuser(db):
    """A superuser's run, and the login roles that existed at each check during the run."""
    from tests.helpers.faults import BackgroundFit, wait_for, workers
    from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations

    load_digits(db, 60, 20)
    pack(db, 2)
    load_architectures(db)
    select_configurations(db, "mst", ALIKE[:1])
    call = BackgroundFit(db, "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', 1)")
    wait_for(lambda: not call.running or workers(db), what="the workers")
    seen = []
    while call.running:
        seen.append(db.rows("SELECT rolname FROM pg_roles WHERE rolname LIKE 'madlib\\_mop\\_run\\_%%'"))
    call.succeed()
    return db, seen


def test_settings_and_limits_of_the_caller_hold_for_a_runs_role(runs):
    from madlib_mop.engines.sessions.login import create_login, drop_login

    runs.rows("ALTER ROLE alice CONNECTION LIMIT 3")
    settings = ("temp_file_limit = '100MB'", "log_statement = 'all'", "search_path = 'a b', c", "app.tenant = 'x, y'")
    for setting in settings:
        runs.rows(f"ALTER ROLE alice SET {setting}")
    runs.rows(f"ALTER ROLE alice IN DATABASE \"{runs.name}\" SET work_mem = '5MB'")
    session = runs.connect()
    session.autocommit = True
    login = create_login(session, RUN, ALICE)
    try:
        ((limit,),) = runs.rows("SELECT rolconnlimit FROM pg_roles WHERE rolname = %s", [login.role])
        assert limit == 3
        query = "SELECT setdatabase <> 0, unnest(setconfig) FROM pg_db_role_setting WHERE setrole = %s::regrole"
        of_login = set(runs.rows(query, [login.role]))
        assert of_login - {(False, "track_activities=off")} == set(runs.rows(query, [ALICE]))
        assert (False, "track_activities=off") in of_login
    finally:
        drop_login(session, login.role)
        session.close()
        for statement in ("RESET ALL", f'IN DATABASE "{runs.name}" RESET ALL', "CONNECTION LIMIT -1"):
            runs.rows(f"ALTER ROLE alice {statement}")
    assert runs.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", [login.role]) == []


def test_the_rows_socket_is_not_in_the_file_system():
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError):
        probe.connect(RowsListener().address)
