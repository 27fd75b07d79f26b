"""Direct hops in a network that is cut, and whose bytes the kernel counts: four network namespaces at one switch."""

import contextlib
import time

import pytest

from tests.helpers.faults import BackgroundFit, assert_whole, fit_statement, newest_run, visits, wait_for
from tests.helpers.hosts import HOSTS
from tests.helpers.network import COORDINATOR, NoNamespaces
from tests.helpers.remote import DIRECT, N_EPOCHS, N_MODELS, SEED, hops_allowed, prepare, wait_for_work
from tests.helpers.traffic import switched_hosts
from tests.helpers.training import ADAM, mlp, select_configurations

pytestmark = [pytest.mark.slow, pytest.mark.alone]
MOST_BYTES_A_VISIT = 10_000
MOST_BYTES_BY_SIZE = 2_000
_SLOW_S = 900


@pytest.fixture(scope="module")
def bench(state):
    with contextlib.ExitStack() as stack:
        try:
            hosts, switch = stack.enter_context(switched_hosts())
        except NoNamespaces as reason:
            pytest.skip(str(reason))
        hosts.expected, hosts.switch = prepare(hosts), switch
        stack.enter_context(hops_allowed(hosts.db))
        yield hosts


def begin(bench, table: str, *settings: str) -> tuple[BackgroundFit, int]:
    before = newest_run(bench.db)
    statement = fit_statement(table, "mst", N_EPOCHS, "train_2", SEED)
    call = BackgroundFit(bench.db, statement, settings=(*DIRECT, *settings))
    return call, wait_for(lambda: (newest_run(bench.db) != before and newest_run(bench.db)) or call.error)


def check(bench, run_id: int) -> None:
    assert_whole(bench.db, run_id, bench.expected, N_MODELS, len(HOSTS), N_EPOCHS)


@contextlib.contextmanager
def cut(switch, one: str, other: str):
    switch.cut(one, other)
    try:
        yield
    finally:
        switch.heal(one, other)


def test_hosts_that_cannot_reach_each_other(bench):
    """States go through the coordinator, and the caller is told so once for each direction."""
    with cut(bench.switch, "alpha", "beta"):
        call, run_id = begin(bench, "t_apart")
        call.succeed(_SLOW_S)
    check(bench, run_id)
    told = [n for n in call.connection.notices if "through this server" in n]
    pairs = [("alpha", "beta"), ("beta", "alpha")]
    counts = [sum(f"from host {one} to host {other} through" in n for n in told) for one, other in pairs]
    print("".join(told))
    assert max(counts) == 1 and sum(counts) == len(told)


def test_hosts_that_are_cut_off_from_each_other_during_a_run(bench):
    call, run_id = begin(bench, "t_cut")
    wait_for_work(bench, call)
    wait_for(lambda: visits(bench.db, run_id) > N_MODELS or not call.running, what="states that hop")
    with contextlib.ExitStack() as cuts:
        for one, other in (("alpha", "beta"), ("beta", "gamma"), ("gamma", "alpha")):
            cuts.enter_context(cut(bench.switch, one, other))
        call.succeed(_SLOW_S)
    check(bench, run_id)


def test_a_host_that_is_cut_off_from_the_coordinator(bench):
    """Its segment and the models whose states it has wait until it is back; old sessions there end by themselves."""
    call, run_id = begin(bench, "t_away")
    wait_for_work(bench, call)
    wait_for(lambda: visits(bench.db, run_id) > N_MODELS or not call.running, what="states that hop")
    with cut(bench.switch, COORDINATOR, "beta"):
        time.sleep(30)  # a host that does not answer counts as lost after 20 s
        assert call.running, "the run needs the host"
    call.succeed(_SLOW_S)
    assert "host beta" in "".join(call.connection.notices)
    check(bench, run_id)


def test_a_host_that_is_cut_off_for_a_moment(bench):
    call, run_id = begin(bench, "t_moment")
    wait_for_work(bench, call)
    with cut(bench.switch, COORDINATOR, "gamma"):
        time.sleep(3)
    call.succeed(_SLOW_S)
    check(bench, run_id)


def bytes_of_a_visit(bench, n_hidden: int) -> float:
    """Train small models for ten iterations; return what a visit of the third to the ninth one takes, in bytes.

    Before and after them come the trainers' starts, the last states, and the sweeps of the hosts.
    """
    db, before = bench.db, newest_run(bench.db)
    arch, mst = f"arch_{n_hidden}", f"mst_{n_hidden}"
    db.rows("SELECT madlib.load_keras_model(%s, %s::json)", [arch, mlp(n_hidden)])
    configurations = [(1, ADAM, f"batch_size={size}, epochs=1") for size in (15, 21, 40)]
    select_configurations(db, mst, configurations, arch)
    statement = (
        f"SELECT madlib.madlib_keras_fit_multiple_model('train_2', 'models_{n_hidden}', '{mst}', 10, seed := 3,"
        " schedule := 'rotation')"
    )
    call = BackgroundFit(db, statement, settings=DIRECT)
    run_id = wait_for(lambda: (newest_run(db) != before and newest_run(db)) or call.error)
    an_iteration = len(configurations) * len(HOSTS)
    counted = []
    for n_visits in (2 * an_iteration, 9 * an_iteration):
        while (found := visits(db, run_id)) < n_visits:
            assert call.running
            time.sleep(0.01)
        counted.append((found, bench.switch.count()))
    (few, first), (many, last) = counted
    assert many < 10 * an_iteration - 2, "a state of the last iteration has come home"
    call.succeed(_SLOW_S)
    sent = last - first
    state_bytes = db.value("SELECT max(state_bytes) FROM madlib_mop.visit WHERE run_id = %s", [run_id])
    out, back, packets = (n / (many - few) for n in (sent.out_bytes, sent.back_bytes, sent.n_packets))
    print(
        f"states of {state_bytes / 1e6:.2f} MB, {many - few} visits: {out:.0f} bytes to hosts, {back:.0f} bytes back,"
        f" {packets:.1f} packets a visit"
    )
    return out + back


def test_bytes_at_the_coordinator(bench):
    """Of a state there is nothing, except at the end: a visit costs at most 10 KB, however large it is."""
    small, large = bytes_of_a_visit(bench, 1024), bytes_of_a_visit(bench, 16384)
    assert max(small, large) <= MOST_BYTES_A_VISIT
    assert abs(large - small) <= MOST_BYTES_BY_SIZE
