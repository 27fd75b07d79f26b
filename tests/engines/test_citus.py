"""The guarantees in a Citus cluster with segments on its worker nodes; tests of Citus only are in tests/citus."""

import pytest

from tests.helpers.citus import NEEDS_CITUS, CitusCluster, citus  # noqa: F401
from tests.helpers.engines.promises import Promises
from tests.helpers.engines.tables import Bench, prepared
from tests.helpers.faults import kill, kill_backend
from tests.helpers.remote import assert_gone, processes, relays, sessions, trainers_at

pytestmark = [*NEEDS_CITUS, pytest.mark.slow, pytest.mark.timeout(900)]


class Nodes(Bench):
    """A coordinator's database, with two segments on each of its nodes."""

    def __init__(self, cluster: CitusCluster):
        super().__init__(cluster.db, 2 * len(cluster.at))
        self.cluster = cluster

    def trainers(self) -> list[int]:
        return [pid for at in self.cluster.at.values() for pid in trainers_at(at)]

    def processes(self) -> set[int]:
        return processes(self.cluster)

    def assert_nothing_left(self, pids=(), within_s: float = 5.0) -> None:
        assert_gone(self.cluster, pids, within_s)
        super().assert_nothing_left(pids, within_s)

    def traces(self) -> list:
        tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '_[0-9]+$' ORDER BY 1"
        return super().traces() + [at.rows(tables) for at in self.cluster.at.values()]

    def observe(self) -> None:
        """Record the connections that Citus itself opens to the nodes during the run."""
        query = "SELECT application_name, state FROM pg_stat_activity WHERE xact_start IS NOT NULL"
        ours = " AND application_name LIKE 'citus_internal%%' AND datname = current_database()"
        self.open_at_nodes = [row for at in self.cluster.at.values() for row in at.rows(query + ours)]


@pytest.fixture(scope="module")
def bench(citus):  # noqa: F811
    return prepared(Nodes(citus))


class TestCitus(Promises):
    """All of them."""


def test_the_callers_transaction_is_at_no_node(bench):
    """A node that restarts must not take the caller's transaction, and the whole run's outputs, with it."""
    assert bench.open_at_nodes == []


def test_a_session_a_relay_and_a_backend_at_a_node(bench):
    """Promise 4: same bits after the end of a relay, of a session on a node, and of all sessions of a node."""
    call, run_id = bench.begin("at_nodes")
    seen = bench.processes()
    first, last = list(bench.cluster.at.values())[0], list(bench.cluster.at.values())[-1]
    kill(relays(bench.db)[0])
    last.rows("SELECT pg_terminate_backend(%s)", [sessions(last)[0]])
    call.succeed()
    bench.check(run_id, seen)
    call, run_id = bench.begin("node_restarted")
    seen = bench.processes()
    kill_backend(first, sessions(first)[0])
    call.succeed()
    bench.check(run_id, seen)
