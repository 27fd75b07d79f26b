"""Each default that follows from the machine follows the limits of a container: 2 of 64 processors, 4 of 256 GiB."""

import itertools
import re
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
from mop_backend.machine import examine
from mop_backend.memory import share_of_memory, start_here
from mop_backend.spinning import SPIN_S, Spinner

from madlib_mop.catalog.drivers import N_LEFT_FREE
from madlib_mop.cli.doctor import greenplum, server
from madlib_mop.cli.doctor.findings import CheckState
from madlib_mop.cli.work import work
from madlib_mop.driver import __main__ as driver
from madlib_mop.driver.columns import rows, spool
from madlib_mop.driver.inference.trainer import start_settings
from madlib_mop.driver.running import admission
from madlib_mop.driver.running.hopper import RunningModels
from madlib_mop.driver.session.settings import read_admission, read_settings
from madlib_mop.engines.base.interface import HERE
from madlib_mop.engines.postgres import _carriers
from madlib_mop.jobs import stopping, working
from madlib_mop.packing.images import DecoderPool
from tests.helpers.unit.machines import GIB, FakeMachine

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def container(monkeypatch, tmp_path):
    """A process in a container with 2 processors and 4 GiB of memory, 3 of them free."""
    fake = FakeMachine(monkeypatch, tmp_path)
    fake.limit()
    return fake


class Session:
    """A caller's session and a record without settings."""

    is_superuser = False

    @property
    def info(self):
        return self

    def settings(self):
        return {}

    def caller_setting(self, name):
        return None

    def execute(self, statement, *parameters):
        return []


SESSION = Session()


def test_segments():
    (carrier,) = _carriers(SESSION)
    assert (carrier.place, carrier.n_segments) == (HERE, 2)


def test_memory_of_trainers_here_and_at_hosts():
    assert share_of_memory(2) == int(1.6 * 1024) * MIB
    assert read_settings(SESSION, SESSION, 2, use_caching=False).trainer_memory_bytes == share_of_memory(2)
    there = start_here({"op": "start", "share": {"n_trainers": 1, "cache_divisor": 2}})
    assert (there["memory_limit_bytes"], there["shard_cache_bytes"]) == (3276 * MIB, 1638 * MIB)


def test_threads_of_the_one_trainer_of_evaluate_and_predict():
    assert start_settings(SESSION)["threads"] == 2


def test_first_visits_at_once():
    """The number of processors divided by the threads of a trainer."""
    segments = [SimpleNamespace(place=None)]
    plan = SimpleNamespace(training=SimpleNamespace(segments=segments))
    run = SimpleNamespace(run=SimpleNamespace(plan=plan, n_threads=1))
    assert RunningModels._n_at_once.fget(run) == 2


def test_runs_at_once(container):
    assert read_admission(SESSION, SESSION).max_runs == 2
    container.limit(processors=5)
    assert read_admission(SESSION, SESSION).max_runs == 5


@pytest.mark.parametrize("used_gib, fits", [(1, True), (3, False)])
def test_admission(container, used_gib, fits):
    """A run of two segments here needs 1.2 GB and its rows in each trainer, which 200 GiB of the machine would fit.

    Two connections for each segment, one for each at a host; the others are left free.
    """
    container.limit(used_bytes=used_gib * GIB)
    asked = []

    class Record(Session):
        def listen_for_admission(self):
            pass

        def ask(self, run_id):
            pass

        def admit(self, run_id, limit, n_connections, is_room):
            asked.append((n_connections, is_room))

    here, at_host = (SimpleNamespace(server=server, n_bytes=10 * MIB) for server in (None, "sales"))
    for shards, n_sessions in (([here, here], 4), ([here, here, at_host], 5)):
        plan = SimpleNamespace(training=SimpleNamespace(segments=shards), any_trainer=True)
        run = SimpleNamespace(run_id=1, plan=plan, n_segments=len(shards))
        admission.admit(SimpleNamespace(session=SESSION, continue_run=None), Record(), run)
        assert asked.pop() == (n_sessions + N_LEFT_FREE, fits)


@pytest.mark.parametrize("has_gib, gets_gib", [(12, 6), (6, 4), (3, 3)])
def test_memory_of_a_driver(container, monkeypatch, has_gib, gets_gib):
    """Half of 12 GiB, and not of 256; at least 4 GiB, but not more than there are."""
    container.limit(memory_bytes=has_gib * GIB)
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    driver._limit_memory()
    assert limits == [(gets_gib * GIB, resource.RLIM_INFINITY)]


def test_jobs_at_once(monkeypatch):
    slots = []
    monkeypatch.setattr(stopping.StopSignals, "install", lambda self: None)
    monkeypatch.setattr(working, "limit_memory", lambda: None)  # it would limit this process for good
    monkeypatch.setattr(working, "work", lambda dsn, n, *others: slots.append(n))
    work("", None)
    assert slots == [2]


def test_processes_that_decode_images():
    assert DecoderPool()._n_decoders == 2


@pytest.mark.parametrize(
    "module, start",
    [(rows, lambda: rows.SourceRows.statistics(SimpleNamespace(columns={}))), (spool, lambda: spool.Spool().columns())],
)
def test_threads_of_columns(monkeypatch, module, start):
    started = []

    class Threads(module.ThreadPoolExecutor):
        def __init__(self, n):
            started.append(n)
            super().__init__(n)

    monkeypatch.setattr(module, "ThreadPoolExecutor", Threads)
    start()
    assert started == [2]


def test_waits_do_not_spin_on_a_single_processor(container, monkeypatch):
    """The peer needs the processor; with two, the same wait spins."""
    timeouts, moments = [], itertools.count(step=SPIN_S / 4)  # another process may have the processor meanwhile
    monkeypatch.setattr("mop_backend.spinning.time", SimpleNamespace(monotonic=lambda: next(moments)))
    poller = SimpleNamespace(poll=lambda timeout_ms: timeouts.append(timeout_ms) or [])
    container.limit(processors=1)
    Spinner().poll(poller, 7)
    assert timeouts == [7]
    container.limit(processors=2)
    Spinner().poll(poller, 7)
    assert timeouts[1] == 0 and timeouts[-1] == 7


def facts():
    """Return the doctor's facts of this machine, as it gets them from a server."""
    return examine()._asdict()


def doctor(machine):
    """Return the doctor's findings about limits and memory, as texts by their names."""
    probe, settings = {"machine": machine}, {"setting": lambda _: None, "number": lambda _: 100, "value": lambda _: 0}
    context = SimpleNamespace(product=None, extension_version=None, database="shop", probe=probe, **settings)
    return {finding.check: finding for finding in server.check_resources(context)}


def test_the_doctor_shows_the_limits(container):
    found = doctor(facts())
    assert found["limits"].found.endswith("may use 2 processor(s) and 4.0 GiB of memory")
    assert found["memory"].found.startswith("3.0 GiB free; 2 trainer(s) need 1.2 GiB")
    assert found["limits"].state is found["memory"].state is CheckState.OK
    assert "a run on 2 segment(s)" in found["connections"].found
    container.limit(processors=1.5, memory_bytes="max")
    assert doctor(facts())["limits"].found.endswith("may use 1.5 processor(s)")


def test_the_doctor_shows_no_limits_where_there_are_none(container):
    container.limit(processors=64, memory_bytes="max")
    container.write("sys/fs/cgroup/cpu.max", "max 100000\n")
    found = doctor(facts())
    assert "limits" not in found and "200.0 GiB free; 64 trainer(s)" in found["memory"].found
    assert doctor(None)["memory"].state is CheckState.SKIP


def test_the_doctor_shows_the_limits_of_a_host(container):
    versions = {"version": "1", "modules": {"tensorflow": {"version": "2.21.0"}}}
    answer = {"user": "gpadmin", "python": "3.11.2", "machine": facts(), "versions": versions}
    found = greenplum._host("host a", answer, versions, 2, "again")
    assert found.state is CheckState.OK and found.found.endswith("limited to 2 processor(s) and 4.0 GiB of memory")
    found = greenplum._host("host a", answer, versions, 6, "again")
    assert found.state is CheckState.WARN and "3.0 GiB free; 6 trainer(s)" in found.found


def test_one_module_only_asks_the_system():
    """Code that asks the system itself would ignore the limits."""
    asks = re.compile(r"os\.sched_getaffinity|cpu_count\(|SC_PHYS_PAGES|SC_NPROCESSORS|MemAvailable")
    paths = [path for folder in ("madlib_mop", "plpython", "sql") for path in (ROOT / folder).rglob("*.*")]
    texts = {path.relative_to(ROOT): path.read_text() for path in paths if path.suffix in (".py", ".sql")}
    found = {str(path) for path, text in texts.items() if asks.search(text) and "released" not in path.parts}
    assert found == {"plpython/mop_backend/machine.py"}
