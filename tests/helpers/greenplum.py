"""Processes of a Greenplum cluster on this machine, for its tests: trainers, and their owners."""

import re
from collections import Counter
from pathlib import Path

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
