"""Processes of a Greenplum cluster on this machine, for its tests: trainers, and their owners."""

import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.faults import login_roles, wait_for


def n_segments(db) -> int:
    """Return the number of the cluster's segments."""
    return db.value("SELECT count(*) FROM gp_segment_configuration WHERE content >= 0 AND role = 'p'")


def trainers(db) -> dict[int, int]:
    """Return the trainers of this database's sessions, each with its segment (-1: none)."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().startswith("trainer "):
                title = Path(f"/proc/{owner(int(entry.name))}/cmdline").read_text()
                if db.name in title:
                    words = [word for word in title.replace("\0", " ").split() if word.startswith("seg")]
                    found[int(entry.name)] = int(words[0].removeprefix("seg")) if words else -1
        except (OSError, ValueError, IndexError):
            continue
    return found


def backends(db) -> tuple[int, Counter]:
    """Return the number of sessions of this database's runs, and their number of processes on each segment."""
    query = "SELECT sess_id FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop%%' AND datname = %s"
    sessions = {f"con{number}" for (number,) in db.rows(query, [db.name])}
    at = Counter()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().replace("\0", " ").split()
        except OSError:
            continue
        if db.name in words and sessions & {*words}:
            at.update(word for word in words if re.fullmatch("seg[0-9]+", word))
    return len(sessions), at


def owner(pid: int) -> int:
    """Return the process that owns a trainer: the session's process on its segment."""
    return int(Path(f"/proc/{pid}/comm").read_text().split()[1])


def nothing_left(db, within_s: float = 3.0) -> None:
    """Wait for a limited time until no role, session or trainer of a run remains."""
    wait_for(lambda: not [*login_roles(db), *at_work(db)], within_s, "the end of all that belongs to the run")


def at_work(db) -> list:
    """Return the sessions and trainers of runs."""
    sessions = db.rows(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop%%' AND datname = current_database()"
    )
    return [*sessions, *trainers(db)]


def processes_of(db, pid: int) -> dict[int, tuple[int, bool]]:
    """Return the processes at segments of a session, by the process of the coordinator: each with its segment, and
    whether it has a trainer."""
    session = db.value("SELECT sess_id FROM pg_stat_activity WHERE pid = %s", [pid])
    owners, found = {owner(trainer) for trainer in trainers(db)}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().replace("\0", " ").split()
        except OSError:
            continue
        at = [word for word in words if re.fullmatch("seg[0-9]+", word)]
        if f"con{session}" in words and at:
            found[int(entry.name)] = int(at[0].removeprefix("seg")), int(entry.name) in owners
    return found


class NetworkBytes:
    """The bytes that processes send to sockets and receive from them, counted by strace; a context manager.

    Parameters
    ----------
    pids : sequence of int

    Attributes
    ----------
    n_bytes : int
        Known at the end.
    """

    _CALLS = "trace=sendto,recvfrom,sendmsg,recvmsg,sendmmsg,recvmmsg"

    def __init__(self, pids: Sequence[int]):
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self._pids = pids
        self.n_bytes = 0

    def __enter__(self) -> "NetworkBytes":
        self._directory = tempfile.TemporaryDirectory()
        self._output = Path(self._directory.name, "calls")
        attached = [word for pid in self._pids for word in ("-p", str(pid))]
        command = ["strace", "-f", "-qq", "-e", self._CALLS, "-s", "0", "-o", str(self._output), *attached]
        self._strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        traced = re.compile(rf"^TracerPid:\t{self._strace.pid}$", re.MULTILINE)
        wait_for(lambda: all(traced.search(Path(f"/proc/{p}/status").read_text()) for p in self._pids), what="strace")
        return self

    def __exit__(self, *_: object) -> None:
        if self._strace.poll() is None:
            self._strace.send_signal(signal.SIGINT)  # it detaches from what is still there
        self._strace.wait(10)
        lines = self._output.read_text().splitlines()
        self.n_bytes = sum(int(found[1]) for line in lines if (found := re.search(r" = (\d+)$", line)))
        self._directory.cleanup()
