"""A run in the background, its processes, and checks that nothing of it remains."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psycopg2
from mop_backend.forkserver import backend_words

from tests.helpers.training import ALIKE, digests, fit, load_architectures, load_digits, pack, select_configurations

WORKERS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop writer%' AND datname = current_database()"
)


class BackgroundFit:
    """A call of fit, or of resume, in a thread with a session of its own."""

    def __init__(self, db, statement: str, parameters=(), settings: tuple[str, ...] = (), role: str | None = None):
        self.db = db
        self.connection = db.connect(role=role)
        self.pid = self.connection.info.backend_pid
        self.error: psycopg2.Error | None = None
        self._thread = threading.Thread(target=self._call, args=(statement, parameters, settings), daemon=True)
        self.ended_at = 0.0
        self._thread.start()

    def _call(self, statement, parameters, settings):
        try:
            with self.connection.cursor() as cursor:
                for setting in settings:
                    cursor.execute(setting)
                cursor.execute(statement, parameters)
        except psycopg2.Error as error:
            self.error = error
        finally:
            self.ended_at = time.monotonic()

    @property
    def running(self) -> bool:
        """Return whether the call has not returned yet."""
        return self._thread.is_alive()

    def join(self, within_s: float = 120) -> None:
        """Wait for the call to return, with or without an error."""
        self._thread.join(within_s)
        assert not self.running, "the call did not come back in time"

    def succeed(self, within_s: float = 180) -> None:
        """Wait for the call to return without an error."""
        self.join(within_s)
        assert self.error is None, self.error


def fit_statement(table: str, selection: str, n_iterations: int, source: str, seed: int, schedule="rotation") -> str:
    """Return the statement of a call of fit."""
    return (
        f"SELECT madlib.madlib_keras_fit_multiple_model('{source}', '{table}', '{selection}', {n_iterations},"
        f" validation_table := 'valid_2', metrics_compute_frequency := 1, seed := {seed}, schedule := '{schedule}')"
    )


def prepared(db, n_models: int, n_segments: int):
    """Create what `fit_statement` needs."""
    load_digits(db)
    load_architectures(db)
    pack(db, n_segments, suffix="_2")
    select_configurations(db, "mst", ALIKE[:n_models])
    return db


def undisturbed(db, n_models: int, n_segments: int, n_epochs: int, seed: int):
    """Create what `fit_statement` needs, and train once without a fault."""
    return train_undisturbed(prepared(db, n_models, n_segments), n_epochs, seed)


def train_undisturbed(db, n_epochs: int, seed: int):
    """Train once without a fault what `prepared` has created; store the digests as ``db.expected``."""
    run = fit(
        db, "undisturbed", "mst", n_epochs, source_table="train_2", validation_table="valid_2",
        metrics_compute_frequency=1, seed=seed, schedule="rotation",
    )  # fmt: skip
    db.expected = digests(db, run.run_id)
    db.seconds = seconds_of(db, run.run_id)
    return db


def seconds_of(db, run_id: int) -> float:
    """Return the time from a run's first to its last visit: a fault within that time meets a run at work."""
    span = "SELECT extract(epoch FROM max(ended_at) - min(started_at)) FROM madlib_mop.visit WHERE run_id = %s"
    return float(db.value(span, [run_id]))


def wait_for(condition, within_s: float = 60, what: str = "a condition", log=lambda: ""):
    """Wait until a condition holds; return its value. ``log`` returns what to show if it does not."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {within_s} s for {what}\n{log()}")


def newest_run(db) -> int | None:
    """Return the run_id of the newest run."""
    return db.value("SELECT max(run_id) FROM madlib_mop.run")


def visits(db, run_id: int) -> int:
    """Return the number of committed visits of a run."""
    return db.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [run_id])


def workers(db) -> list[int]:
    """Return the worker backends of the database."""
    return [row[0] for row in db.rows(WORKERS)]


def children(pid: int, module: str) -> list[int]:
    """Return the live processes of a process that run one of our modules: its children, and forked ones."""
    comm = f"{module.rpartition('.')[2]} {pid}".encode()  # of a forked trainer or driver
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # tests call it in short intervals
        with contextlib.suppress(OSError):
            named, _, rest = _content(f"/proc/{name}/stat").rpartition(b")")
            state, parent, _ = rest.split(maxsplit=2)
            is_one = named.partition(b"(")[2] == comm or (
                int(parent) == pid and module.encode() in _content(f"/proc/{name}/cmdline").split(b"\0")
            )
            if state != b"Z" and is_one:
                found.append(int(name))
    return found


def _content(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def trainers(db) -> list[int]:
    """Return the trainer processes of the database's workers."""
    return [child for pid in workers(db) for child in children(pid, "madlib_mop.trainer")]


def rows_files(db, pids: Iterable[int]) -> dict[int, os.stat_result]:
    """Return the files for rows that trainers have, by their number on the file system."""
    directory = os.path.realpath(db.value("SELECT current_setting('data_directory')")) + "/base/pgsql_tmp/"
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()]
    found = [link.stat() for link in links if str(link.readlink()).startswith(directory)]
    return {file.st_ino: file for file in found}


def forkservers(db, comm: str = "mop forkserver", backend: str | None = None) -> list[int]:
    """Return the fork servers of the database's server: of trainers (with one backend), or the ``mop drivers``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            named = [word for word in words if word.startswith("--backend=")]
            is_one = (process / "comm").read_text() == f"{comm}\n" and str(db.cluster.server_pid) in words
            if is_one and (backend is None or named == backend_words(backend)):
                found.append(int(process.name))
    return found


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


_TRACES_WITHIN_S = 3.0  # the driver drops its login role and lock after the end of all work


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return False if the process has just ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_backend(db, pid: int) -> bool:
    """Kill a backend with SIGKILL and wait until the server, which restarts all sessions, answers again; return False
    if the backend has just ended."""
    with contextlib.closing(db.connect()) as witness:
        restarts = kill(pid)

        def ended():
            try:
                witness.cursor().execute("SELECT 1")
            except psycopg2.Error:
                return True

        if restarts:
            wait_for(ended, what="the end of all sessions")
    wait_for(lambda: answers(db), what="the server")
    return restarts


def answers(db) -> int | None:
    """Return 1 if the server accepts sessions, otherwise None."""
    try:
        db.connect().close()  # a session that is open may answer until the crash has reached it too
    except psycopg2.OperationalError:
        return None
    return 1


def pause(chance: random.Random, at_most_s: float) -> None:
    """Wait for a random time: the test depends on the moment of a fault."""
    time.sleep(chance.uniform(0, at_most_s))


def login_roles(db) -> list:
    """Return the login roles of this database's runs; the server may have those of other databases too."""
    return db.rows(
        "SELECT rolname FROM pg_roles WHERE starts_with(rolname, (SELECT 'madlib_mop_run_' || oid || '_'"
        " FROM pg_database WHERE datname = current_database()))"
    )


def assert_nothing_left(db, pids=(), within_s: float = 1.0) -> None:
    """Assert that all sessions and processes of a run end within some time, and that nothing else remains."""

    def at_work() -> list:
        sessions = db.rows(
            "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop%%'"
            " AND datname = current_database()"
        )
        return [*sessions, *[pid for pid in pids if alive(pid)]]

    def traces() -> list:
        roles = login_roles(db)
        locks = db.rows(  # not those of Citus' own daemon, which starts again when a node does
            "SELECT locktype, pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
            " WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT EXISTS"
            " (SELECT FROM pg_stat_activity a WHERE a.pid = l.pid AND a.backend_type LIKE 'Citus Maintenance Daemon%%')"
        )
        return [*roles, *locks]

    for left, limit_s in ((at_work, within_s), (traces, _TRACES_WITHIN_S)):
        deadline = time.monotonic() + limit_s
        while left() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left(), f"left behind after {limit_s} s: {left()}"


def assert_whole(db, run_id: int, expected: dict[int, str], n_models: int, n_segments: int, n_epochs: int) -> None:
    """Assert that a run has each visit once, a complete chain of digests, and the digests of a run without faults."""
    rows = db.rows(
        "SELECT mst_key, epoch, segment_id, digest_in, digest_out FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY mst_key, epoch, position",
        [run_id],
    )
    assert len(rows) == len({row[:3] for row in rows}) == n_models * n_segments * n_epochs
    for before, after in zip(rows, rows[1:], strict=False):
        assert before[0] != after[0] or before[4] == after[3]
    digests = dict(db.rows("SELECT mst_key, digest FROM madlib_mop.model WHERE run_id = %s", [run_id]))
    assert digests == expected
    n_metrics = db.value("SELECT count(*) FROM madlib_mop.metric WHERE run_id = %s AND ordinal = 0", [run_id])
    assert n_metrics == n_models * n_epochs * 2
