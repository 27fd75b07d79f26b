"""What packing and a run at hosts send over the network, beside what they must: for test_bytes.py and the benchmark."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.conftest import Cluster
from tests.helpers.hosts import HOSTS, Hosts, joined, start_cluster
from tests.helpers.network import COORDINATOR, Cables, Count, Meters, NoNamespaces

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
    """What one packing and one run have sent, and the sizes of what they had to send.

    Attributes
    ----------
    packing, run : Count
    packed_bytes : int
        Of the tensors in the packed table.
    n_visits : int
    visited_bytes : int
        Sum of the states' sizes over all visits: models x epochs x segments x state.
    unsent_bytes : int
        Of states that a visit did not begin with, for it was its model's first.
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
        """What a run should send: each state out and back, and weights to be evaluated."""
        return 2 * self.visited_bytes + self.evaluated_bytes

    @property
    def least_bytes(self) -> int:
        """What a run cannot do without: a model's first visit is sent no state."""
        return self.formula_bytes - self.unsent_bytes


def measure(hosts: Hosts, count: Callable[[], Count], pack: Callable[[], str], fit: Callable[[], int]) -> Traffic:
    """Count what two calls send.

    Parameters
    ----------
    hosts : Hosts
    count : callable
        `Cables.count` or `Meters.count`.
    pack : callable
        Packs a table of one input and one output, x and y, and gives its name.
    fit : callable
        Trains on it, and gives the run_id.
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
    """Start a coordinator and three hosts, cabled where that can be, else on loopback."""
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
        Where that cannot be.
    """
    with contextlib.ExitStack() as stack:
        cables = stack.enter_context(Cables(HOSTS))
        coordinator = stack.enter_context(_destroyed(start_cluster("wire", within=cables.within(COORDINATOR))))
        clusters = {}
        for name in HOSTS:
            address = cables.address(name)
            listens = f"listen_addresses = '127.0.0.1, {address}'"
            host = start_cluster(f"wire-{name}", listens, within=cables.within(name), lets_in=f"{address}/30")
            clusters[name] = stack.enter_context(_destroyed(host))
        ways = {name: {"host": cables.address(name)} for name in HOSTS}
        yield stack.enter_context(joined(coordinator, clusters, ways)), cables


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
