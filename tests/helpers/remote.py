"""Helpers of the tests of training on hosts: packed digits on three hosts, and the processes there."""

from contextlib import contextmanager
from pathlib import Path

from tests.helpers.faults import alive, assert_nothing_left, assert_whole, children, wait_for, workers
from tests.helpers.training import (
    ALIKE,
    MIXED,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    script,
    select_configurations,
)

CONFIGURATIONS = [ALIKE[0], MIXED[1], ALIKE[2]]
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = len(CONFIGURATIONS), 3, 2, 77
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'madlib_mop segment of run%'"
#: Where `hops_allowed`.
DIRECT = ("SET madlib_mop.direct_hops = on",)
RUN = {"metrics_compute_frequency": 1, "seed": SEED, "schedule": "rotation"}


@contextmanager
def hops_allowed(db):
    """Let a superuser allow direct hops."""
    db.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('direct_hops', 'on')")
    yield
    db.rows("DELETE FROM madlib_mop.setting WHERE name = 'direct_hops'")


def prepare(hosts) -> dict[int, str]:
    """Pack the digits here (suffix _here) and on the hosts (_2); return the final digests of a run here."""
    db = hosts.db
    load_digits(db)
    load_architectures(db)
    select_configurations(db, "mst", CONFIGURATIONS)
    pack(db, N_SEGMENTS, suffix="_2")
    script(
        db,
        "SET madlib_mop.hosts = 'here'",
        f"SET madlib_mop.segments = {N_SEGMENTS}",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train_here', 'y', 'x', 37, 16.0, seed := 5)",
        "SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid_here', 'y', 'x', 'train_here', 37)",
    )
    here = fit(db, "here", "mst", N_EPOCHS, source_table="train_here", validation_table="valid_here", **RUN)
    return digests(db, here.run_id)


def sessions(at) -> list[int]:
    """Return the backends on a host that work for a coordinator."""
    return [pid for (pid,) in at.rows(SESSIONS + " AND datname = current_database()")]


def trainers_at(at) -> list[int]:
    """Return the trainers of a host."""
    return [child for pid in sessions(at) for child in children(pid, "madlib_mop.trainer")]


def relays(db) -> list[int]:
    """Return the relays of the coordinator's workers."""
    return [child for pid in workers(db) for child in children(pid, "madlib_mop.engines.hosts.relay")]


def processes(hosts) -> set[int]:
    """Return all our processes of runs, here and on the hosts."""
    there = {pid for at in hosts.at.values() for pid in (*sessions(at), *trainers_at(at))}
    return {*workers(hosts.db), *relays(hosts.db), *there}


def wait_for_work(hosts, call, n_hosts: int = 3) -> None:
    """Wait until trainers work on this number of hosts."""

    def at_work():
        return call.error or sum(bool(trainers_at(at)) for at in hosts.at.values()) >= n_hosts

    wait_for(at_work, what="trainers at the hosts")
    assert call.error is None, call.error


def assert_gone(hosts, pids, within_s: float = 1.0) -> None:
    """Assert that all processes of a run end within some time, here and on the hosts."""
    left = set()

    def none_left():
        left.clear()
        left.update(pid for pid in pids if alive(pid))
        return not left

    try:
        wait_for(none_left, within_s, "the end of all processes")
    except AssertionError as error:
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in left if alive(pid)}
        raise AssertionError(f"{error}: {names}") from None
    for at in hosts.at.values():
        assert not sessions(at)


def check(hosts, run_id: int, expected: dict[int, str], pids=()) -> None:
    """Assert what must hold after any fault: the bits of a run here, each visit once, and no leftovers."""
    assert_whole(hosts.db, run_id, expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    assert_gone(hosts, pids)
    assert_nothing_left(hosts.db, pids)
