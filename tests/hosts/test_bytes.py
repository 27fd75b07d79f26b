"""Network bytes: a run on three hosts sends each state to and from the host once per visit, and the rows once.

The formula is in docs/hosts.md: 2 x models x iterations x segments x state, plus 10 % for everything else.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.faults import alive, wait_for
from tests.helpers.hosts import HOSTS
from tests.helpers.network import COORDINATOR, Cables, NoNamespaces
from tests.helpers.traffic import Traffic, cabled_hosts, measure, metered_hosts
from tests.helpers.training import ADAM, fit, load_digits, mlp, one_thread, script, select_configurations

N_MODELS, N_EPOCHS = 2, 2


def traffic_of(hosts, count) -> Traffic:
    """Pack the digits, and train two networks with states of about a megabyte, evaluated at the end."""
    db = hosts.db
    load_digits(db)
    one_thread()
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(1024)])
    configurations = [(1, ADAM, "batch_size=15, epochs=1"), (1, ADAM, "batch_size=21, epochs=1")]
    select_configurations(db, "mst", configurations)

    def pack():
        script(db, "SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', 37, 16.0, seed := 5)")
        return "train"

    def train():
        return fit(db, "models", "mst", N_EPOCHS, schedule="rotation", seed=3).run_id

    return measure(hosts, count, pack, train)


@pytest.mark.slow
def test_in_connections_on_loopback(cluster, host_clusters):
    """Counted by relays, without special rights: frames and SQL add little."""
    with metered_hosts(cluster, host_clusters) as (hosts, meters):
        traffic = traffic_of(hosts, meters.count)
    hold(traffic)


@pytest.mark.slow
def test_on_the_wire_between_network_namespaces(state):
    """Counted by the kernel at the coordinator's interfaces, with packets as in a network."""
    with contextlib.ExitStack() as stack:
        try:
            hosts, cables = stack.enter_context(cabled_hosts())
        except NoNamespaces as reason:
            pytest.skip(str(reason))
        traffic = traffic_of(hosts, cables.count)
    assert traffic.run.n_packets > traffic.run.n_bytes / 1514
    hold(traffic)


_RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as listener:
    print(flush=True)
    connection, _ = listener.accept()
    while connection.recv(1 << 16):
        pass
"""
_SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    for _ in range(800):
        connection.sendall(bytes(1 << 17))
"""


@pytest.mark.slow
def test_a_cable_keeps_the_order_of_packets():
    """The count excludes packets that TCP would send again after the kernel had reordered them."""
    with contextlib.ExitStack() as stack:
        try:
            cables = stack.enter_context(Cables(["alpha"]))
        except NoNamespaces as reason:
            pytest.skip(str(reason))
        address = cables.address("alpha")
        receiver, sender = (
            [*cables.within(name), sys.executable, "-c", code, address]
            for name, code in (("alpha", _RECEIVER), (COORDINATOR, _SENDER))
        )
        with subprocess.Popen(receiver, stdout=subprocess.PIPE) as receiving:
            receiving.stdout.readline()
            subprocess.run(sender, check=True)
        assert cables.count().n_bytes > 800 << 17
        assert cables.overtaken() == 0


_KILLED = """
import subprocess, time
from tests.helpers.network import Cables
with Cables(["alpha"]) as cables:
    command = [*cables.within("alpha"), "sh", "-c", "echo; exec sleep 600"]
    inside = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    inside.stdout.readline()  # it is in the namespace
    print(*cables.pids(), inside.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_test_leaves_no_namespace():
    """After the creator of namespaces is killed, their processes end, and namespaces and cables are removed."""
    try:
        with Cables(["alpha"]):
            pass
    except NoNamespaces as reason:
        pytest.skip(str(reason))
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", _KILLED]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment) as maker:
        pids = [int(word) for word in maker.stdout.readline().split()]
        namespaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        maker.kill()
    assert len(pids) == 3 and len(namespaces - {os.readlink("/proc/self/ns/net")}) == 2
    wait_for(lambda: not any(alive(pid) for pid in pids), 10, "the end of what ran in the namespaces")


def hold(traffic: Traffic) -> None:
    """Assert the formula: at most 10 % above it, and not below the minimum."""
    assert traffic.n_visits == N_MODELS * N_EPOCHS * len(HOSTS)
    assert traffic.visited_bytes / traffic.n_visits > 500_000
    assert traffic.least_bytes <= traffic.run.n_bytes <= 1.1 * traffic.formula_bytes
    assert traffic.run.back_bytes >= traffic.visited_bytes
    sessions = 10_000 * len(HOSTS)  # for logins and DDL; the table has 66 kB
    assert traffic.packed_bytes <= traffic.packing.n_bytes <= 1.1 * traffic.packed_bytes + sessions
