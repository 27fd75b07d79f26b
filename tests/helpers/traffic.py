"""Bytes that packing and a run on hosts send, and the least possible number; for test_bytes.py and the benchmark."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.conftest import Cluster
from tests.helpers.hosts import HOSTS, Hosts, joined, start_cluster
from tests.helpers.network import COORDINATOR, Cables, Count, Meters, NoNamespaces, Switch

_VISITS = """
SELECT count(*), sum(state_bytes)::bigint, (sum(state_bytes) FILTER (WHERE (epoch, position) = (1, 1)))::bigint
FROM madlib_mop.visit WHERE run_id = %s
"""
_EVALUATIONS = """
SELECT coalesce(sum(m.model_bytes), 0)::bigint
FROM (SELECT DISTINCT run_id, mst_key, epoch, data_set FROM madlib_mop.metric WHERE run_id = %s) e
JOIN madlib_mop.model m USING (run_id, mst_key)
JOIN madlib_mop.segment s ON s.run_id = e.run_id AND s.data_set = e.data_set
"""


@dataclass(frozen=True)
class Traffic:
    """Bytes sent by one packing and one run, and the sizes of the data to send.

    Attributes
    ----------
    packing, run : Count
    packed_bytes : int
        Bytes of the tensors in the packed table.
    n_visits : int
    visited_bytes : int
        Sum of the states' sizes over all visits: models x epochs x segments x state.
    unsent_bytes : int
        Bytes of states that were not sent, because the visit was the first of its model.
    evaluated_bytes : int
        Sum of the weights' sizes over all evaluations of a shard.
    """

    packing: Count
    run: Count
    packed_bytes: int
    n_visits: int
    visited_bytes: int
    unsent_bytes: int
    evaluated_bytes: int

    @property
    def formula_bytes(self) -> int:
        """Return the expected bytes of a run: each state to the host and back, and weights for evaluation."""
        return 2 * self.visited_bytes + self.evaluated_bytes

    @property
    def least_bytes(self) -> int:
        """Return the least bytes of a run: a model's first visit receives no state."""
        return self.formula_bytes - self.unsent_bytes


def measure(hosts: Hosts, count: Callable[[], Count], pack: Callable[[], str], fit: Callable[[], int]) -> Traffic:
    """Count the bytes that two calls send.

    Parameters
    ----------
    hosts : Hosts
    count : callable
        `Cables.count` or `Meters.count`.
    pack : callable
        Packs a table of one input and one output, x and y, and returns its name.
    fit : callable
        Trains on it, and returns the run_id.
    """
    start = count()
    table = pack()
    packed = count()
    run_id = fit()
    trained = count()
    n_visits, visited, unsent = hosts.db.rows(_VISITS, [run_id])[0]
    return Traffic(
        packing=packed - start,
        run=trained - packed,
        packed_bytes=hosts.db.value(f"SELECT sum(octet_length(x) + octet_length(y)) FROM {table}"),
        n_visits=n_visits,
        visited_bytes=visited,
        unsent_bytes=unsent,
        evaluated_bytes=hosts.db.value(_EVALUATIONS, [run_id]),
    )


@contextlib.contextmanager
def counted_hosts() -> Iterator[tuple[Hosts, Cables | Meters]]:
    """Start a coordinator and three hosts, with cables if possible, otherwise on loopback."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(cabled_hosts())
            return
        except NoNamespaces:
            pass
        coordinator = stack.enter_context(_destroyed(start_cluster("wire")))
        clusters = {name: stack.enter_context(_destroyed(start_cluster(f"wire-{name}"))) for name in HOSTS}
        yield stack.enter_context(metered_hosts(coordinator, clusters))


@contextlib.contextmanager
def cabled_hosts() -> Iterator[tuple[Hosts, Cables]]:
    """Start a coordinator and three hosts of one segment each, every one in a network namespace of its own.

    Raises
    ------
    NoNamespaces
        If that is impossible.
    """
    with Cables(HOSTS) as cables, _within(cables) as hosts:
        yield hosts, cables


@contextlib.contextmanager
def switched_hosts(rate: str | None = None) -> Iterator[tuple[Hosts, Switch]]:
    """Do the same, with hosts that reach each other (`Switch`)."""
    with Switch(HOSTS, rate) as switch, _within(switch, Switch.lets_in) as hosts:
        yield hosts, switch


@contextlib.contextmanager
def _within(cables: Cables, lets_in: str | None = None) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(_destroyed(start_cluster("wire", within=cables.within(COORDINATOR))))
        clusters = {}
        for name in HOSTS:
            address = cables.address(name)
            listens = f"listen_addresses = '127.0.0.1, {address}'"
            own = lets_in or f"{address}/30"
            host = start_cluster(f"wire-{name}", listens, within=cables.within(name), lets_in=own)
            clusters[name] = stack.enter_context(_destroyed(host))
        ways = {name: {"host": cables.address(name)} for name in HOSTS}
        yield stack.enter_context(joined(coordinator, clusters, ways))


@contextlib.contextmanager
def metered_hosts(coordinator: Cluster, clusters: dict[str, Cluster]) -> Iterator[tuple[Hosts, Meters]]:
    """Join clusters on loopback whose connections are counted."""
    with Meters({name: cluster.port for name, cluster in clusters.items()}) as meters:
        ways = {name: {"port": str(meters.port(name))} for name in clusters}
        with joined(coordinator, clusters, ways) as hosts:
            yield hosts, meters


@contextlib.contextmanager
def _destroyed(cluster: Cluster) -> Iterator[Cluster]:
    try:
        yield cluster
    finally:
        cluster.destroy()
