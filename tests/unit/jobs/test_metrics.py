"""Metrics for Prometheus: read at most once a second, counters that never fall, trainers' memory, and who may ask."""

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing

import psycopg2
import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from madlib_mop.catalog.figures import DatabaseFigures
from madlib_mop.errors import NotReady
from madlib_mop.jobs.metrics import Metrics, trainers_memory
from madlib_mop.jobs.metrics_page import only_metrics, serve_metrics
from tests.helpers.faults import wait_for


def figures(failed_runs: int = 0, failed_jobs: int = 0, n_visits: int = 5) -> DatabaseFigures:
    states = {"running": 1, "failed": failed_runs}
    return DatabaseFigures(states, {"failed": 0}, {"waiting": 2, "failed": failed_jobs}, n_visits, 1, 7.5)


class Source:
    """The figures of a database, with a clock; counts how often they are read."""

    def __init__(self, *given):
        self._given = list(given)
        self.n_read = 0
        self.now = 0.0
        self.metrics = Metrics(self, lambda: self.now)

    def __call__(self):
        self.n_read += 1
        found = self._given[min(self.n_read, len(self._given)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    def values(self) -> dict[tuple, float]:
        """Return the values by name and labels; a second passes first."""
        self.now += 1.0
        samples = [sample for family in self.metrics.collect() for sample in family.samples]
        return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_many_requests_within_a_second_read_the_database_once():
    source = Source(figures())
    threads = [threading.Thread(target=lambda: list(source.metrics.collect())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.n_read == 1
    source.now = 0.99
    list(source.metrics.collect())
    assert source.n_read == 1
    source.now = 1.0
    list(source.metrics.collect())
    assert source.n_read == 2


def test_counters_of_failures_do_not_fall_when_runs_are_dropped():
    source = Source(figures(failed_runs=3), figures(failed_runs=5), figures(failed_runs=1), figures(failed_runs=2))
    counted = []
    for _ in range(4):
        values = source.values()
        counted.append(values["madlib_mop_failures_total", "run"])
    assert counted == [0, 2, 2, 3]
    assert values["madlib_mop_runs", "failed"] == 2 and values["madlib_mop_failures_total", "job"] == 0


def test_states_queue_and_visits_are_those_of_the_database():
    values = Source(figures(n_visits=9)).values()
    assert values["madlib_mop_up",] == 1
    assert (values["madlib_mop_runs", "running"], values["madlib_mop_jobs", "waiting"]) == (1, 2)
    assert values["madlib_mop_job_queue_length",] == 1 and values["madlib_mop_job_queue_oldest_seconds",] == 7.5
    assert values["madlib_mop_visits_total",] == 9


@pytest.mark.parametrize("error", [psycopg2.OperationalError("gone"), NotReady("no login")])
def test_a_database_that_does_not_answer_is_not_up_and_may_come_back(error):
    source = Source(error, figures())
    values = source.values()
    assert values["madlib_mop_up",] == 0 and ("madlib_mop_runs", "running") not in values
    assert "madlib_mop_trainer_memory_bytes" in {name for name, *_ in values}
    assert source.values()["madlib_mop_up",] == 1


def test_trainers_are_known_by_their_names(tmp_path):
    def process(pid: str, comm: str, cmdline: str, rss_kb: int | None) -> None:
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{comm}\n")
        (tmp_path / pid / "cmdline").write_text(cmdline.replace(" ", "\0"))
        size = "" if rss_kb is None else f"VmRSS:\t  {rss_kb} kB\n"
        (tmp_path / pid / "status").write_text(f"Name:\t{comm}\n{size}")

    process("11", "trainer 4711", "python -I -m madlib_mop.trainer.forkserver 5", 300)
    process("12", "python", "python -I -m madlib_mop.trainer", 200)
    process("13", "mop forkserver", "python -I -m madlib_mop.trainer.forkserver 5", 900)
    process("14", "trainer", "/usr/bin/trainer of dogs", 900)
    process("15", "trainer 12", "python", None)  # a zombie has no memory
    (tmp_path / "self").mkdir()
    (tmp_path / "16").mkdir()  # it has just ended
    assert trainers_memory(tmp_path) == (2, 500 << 10)


def answer(**environ) -> str:
    """Return the status of a request."""
    registry = CollectorRegistry()
    registry.register(Source(figures()).metrics)
    seen: list[str] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "HTTP_HOST": "127.0.0.1:9187", **environ}
    body = only_metrics(make_wsgi_app(registry))(asked, lambda status, headers: seen.append(status))
    assert ("madlib_mop_up" in b"".join(body).decode()) == seen[0].startswith("200")
    return seen[0]


@pytest.mark.parametrize("host", ["127.0.0.1:9187", "127.0.0.1", "localhost:9187", "localhost"])
def test_this_machine_may_ask(host):
    assert answer(HTTP_HOST=host) == "200 OK"


@pytest.mark.parametrize("host", ["evil.example:9187", "evil.example", "127.0.0.1.evil.example", "", "localhost.no:1"])
def test_a_page_whose_name_points_here_gets_nothing(host):
    assert answer(HTTP_HOST=host) == "403 Forbidden"


def test_there_is_one_page_and_one_verb():
    assert answer(PATH_INFO="/") == "404 Not Found"
    assert answer(REQUEST_METHOD="POST") == "405 Method Not Allowed"


def test_it_listens_on_this_machine_only_and_a_port_that_is_taken_is_one_clear_error():
    server = serve_metrics("host=/nonexistent", 0)
    with closing(server.socket):
        assert server.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20) as page:
            assert "madlib_mop_up 0.0" in page.read().decode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=20)
        assert refused.value.code == 404
        with pytest.raises(NotReady, match=f"--metrics-port: port {server.server_port} of 127.0.0.1 cannot be used"):
            serve_metrics("", server.server_port)
        server.shutdown()


def test_connections_that_are_held_give_way_to_others(monkeypatch):
    """Any user of the machine can connect; the worker's files are for the sessions of jobs."""
    monkeypatch.setattr("madlib_mop.jobs.metrics_page._Handler.timeout", 600)
    with serve_metrics("host=127.0.0.1 port=1", 0) as server, ExitStack() as stack:
        stack.callback(server.shutdown)
        for _ in range(60):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 30))
            held.sendall(b"GET /met")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/nothing", timeout=30)
        assert caught.value.code == 404
        wait_for(lambda: len(server._open) <= 20, what="the end of the oldest connections")
