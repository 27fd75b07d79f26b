"""The foreign server of each node of a Citus cluster, and plans after a shard's move; without a server."""

from dataclasses import replace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.plan import ShardAccess
from madlib_mop.driver.data.moved_shards import _in_plan
from madlib_mop.driver.data.packed import shard_query
from madlib_mop.engines.base.interface import ShardPlace
from madlib_mop.engines.citus_nodes import Added, Node, servers_of
from madlib_mop.errors import NotReady
from tests.helpers.unit.rows import packed

ADDRESSES = {"worker-1": {"10.0.0.1"}, "one.example": {"10.0.0.1", "fd00::1"}, "worker-2": {"10.0.0.2"}}
ONE, TWO = Node("worker-1", 5432), Node("worker-2", 6000)


def resolve(host):
    return frozenset(ADDRESSES.get(host, ()))


def find(nodes, *added):
    return servers_of(nodes, [Added(*fields) for fields in added], "training", resolve)


def test_a_node_is_found_by_host_port_and_database():
    """Host names are compared without case; the default port is PostgreSQL's."""
    found = find([ONE, TWO, ONE], ("beta", "worker-2", "6000", "training", 2), ("a", "Worker-1", None, "training", 2))
    assert found == {ONE: "a", TWO: "beta"}


def test_a_node_is_found_by_its_address_where_the_names_differ():
    """A server with exactly that name has priority."""
    by_address = ("by_address", "one.example", "5432", "training", 1)
    assert find([ONE], by_address) == {ONE: "by_address"}
    assert find([ONE], by_address, ("by_name", "worker-1", "5432", "training", 1)) == {ONE: "by_name"}


@pytest.mark.parametrize(
    "added",
    [
        ("a", "worker-1", "5433", "training", 1),
        ("a", "worker-1", "5432", "other", 1),
        ("a", "worker-1", "5432", None, 1),
        ("a", "worker-3", "5432", "training", 1),
        ("a", None, "5432", "training", 1),
    ],
)
def test_what_differs_is_another_server(added):
    """One error names all nodes without a server, and the solution for the first one."""
    with pytest.raises(NotReady) as caught:
        find([ONE, TWO], added)
    assert caught.value.message.endswith("worker-1:5432, worker-2:6000")
    assert "host 'worker-1', port '5432', dbname 'training'" in caught.value.hint


def test_the_callers_own_server_needs_none():
    """A shard on the coordinator is trained on there."""
    here = Node("localhost", 5432, is_here=True)
    assert find([here]) == {here: None}


def test_a_plan_follows_a_shard():
    """The query at the new place equals that of planning, for any names of columns."""
    table, shard = Relation("s", 'a "t"'), Relation("s", "a t_102008")
    columns = ["x", 'of FROM "s"."a ""t"" " '.strip()]
    source = replace(packed([(0, 1)]), query=shard_query(table, columns, True), sql_name=table.sql)
    assert _in_plan(source, ShardPlace(None, shard)) is None
    assert _in_plan(source, ShardPlace("alpha", shard)) == ShardAccess(shard_query(shard, columns, True), "alpha")
