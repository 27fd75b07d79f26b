"""The guarantees on three PostgreSQL hosts (three clusters on loopback), and the places of work and of secrets."""

from pathlib import Path

import pytest

from tests.conftest import PASSWORD
from tests.helpers.engines.promises import Promises
from tests.helpers.engines.tables import Bench, prepared
from tests.helpers.hosts import Hosts
from tests.helpers.remote import assert_gone, processes, trainers_at


class ThreeHosts(Bench):
    """A coordinator's database, with a segment on each of three hosts."""

    def __init__(self, hosts: Hosts):
        super().__init__(hosts.db, len(hosts.at))
        self.hosts = hosts

    def trainers(self) -> list[int]:
        return [pid for at in self.hosts.at.values() for pid in trainers_at(at)]

    def processes(self) -> set[int]:
        return processes(self.hosts)

    def assert_nothing_left(self, pids=(), within_s: float = 5.0) -> None:
        assert_gone(self.hosts, pids, within_s)
        super().assert_nothing_left(pids, within_s)

    def traces(self) -> list:
        tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '_seg' ORDER BY 1"
        return super().traces() + [at.rows(tables) for at in self.hosts.at.values()]

    def observe(self) -> None:
        """Record the processes' command lines and environments, and pg_stat_activity on all servers."""
        texts = []
        for entry in Path("/proc").iterdir():
            for name in ("cmdline", "environ") if entry.name.isdigit() else ():
                try:
                    texts.append((entry / name).read_bytes().decode(errors="replace"))
                except OSError:
                    continue
        seen = [text for text in texts if "madlib_mop" in text or "postgres" in text]
        for at in (self.db, *self.hosts.at.values()):
            seen += [str(row) for row in at.rows("SELECT * FROM pg_stat_activity")]
        self.seen = "\n".join(seen)


@pytest.fixture(scope="module")
def bench(hosts):
    return prepared(ThreeHosts(hosts))


class TestHosts(Promises):
    """All of them."""


def test_work_was_done_at_the_hosts(bench):
    """The record has the place of each segment; each host had a trainer, or the run would not have begun."""
    places = "SELECT place FROM madlib_mop.segment WHERE run_id = %s AND data_set = 'training' ORDER BY segment_id"
    assert bench.db.rows(places, [bench.run_id]) == [("alpha",), ("beta",), ("gamma",)]


def test_each_host_is_told_how_many_share_its_memory(bench):
    """The coordinator does not know a host's memory; the host divides it."""
    shares = bench.db.value("SELECT plan -> 'shares' FROM madlib_mop.run WHERE run_id = %s", [bench.run_id])
    assert shares == dict.fromkeys(("alpha", "beta", "gamma"), {"n_trainers": 1, "cache_divisor": 4})


def test_the_callers_transaction_is_at_no_host(bench):
    """A host that restarts must not take the caller's transaction, and the whole run's outputs, with it."""
    assert "madlib_mop segment of run" in bench.seen and "postgres_fdw" not in bench.seen


def test_secrets_are_nowhere(bench):
    """Passwords, keys and connection strings are not in logs, process list, activity, plan or errors."""
    keys = bench.db.rows("SELECT encode(key, 'hex'), coordinator FROM madlib_mop.host")
    logs = [at.cluster.log_tail(100_000) for at in (bench.db, *bench.hosts.at.values())]
    plan = bench.db.value("SELECT plan::text FROM madlib_mop.run WHERE run_id = %s", [bench.run_id])
    assert "train" in plan and "madlib_mop segment of run" in bench.seen
    for secret in [PASSWORD, *[value for row in keys for value in row]]:
        for text in (bench.seen, plan, *logs):
            assert secret not in text
