"""The live page: the first screen of 10,000 models, its CPU time with 50 viewers, a run's makespan with ten viewers.

Called by run.py. The runs that the viewers watch are rows without training, changed twice a second, except in the
comparison of makespans, which trains the same run with and without viewers in turn.
"""

import http.client
import os
import re
import secrets
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from hopper import SCHEMA, configure
from psycopg2 import sql
from ratios import Ratio
from server import Server
from tables import make_table
from workload import images

from tests.helpers.invented import invent_run

ROLE = "madlib_mop_bench_viewer"
#: The run that is compared trains so many times the epochs of other benchmarks: it lasts most of a minute.
N_TIMES_EPOCHS = 10
N_MODELS, N_VIEWERS, N_FEW, N_TURNS, WATCHED_S = 10_000, 50, 10, 6, 30.0
MOST_SCREEN_S, MOST_CORES, MOST_SLOWER = 1.0, 0.5, 1.02
ROOT = Path(__file__).resolve().parents[1]
_SCRIPT = (ROOT / "madlib_mop/dash/static/dash.js").read_text()
FIGURES_EVERY_S = int(re.search(r"FIGURES_EVERY_MS = ([0-9_]+);", _SCRIPT)[1]) / 1000
_FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models_{}', 'mst', %s, seed := 1)"


def compare_dash(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Measure and print; return the ratios."""
    password = secrets.token_hex(16)
    with closing(Server(dsn).connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET client_min_messages = warning")
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE])
        verb = "ALTER" if cursor.fetchone() else "CREATE"
        statement = sql.SQL(verb + " ROLE {} LOGIN SUPERUSER PASSWORD {}")
        cursor.execute(statement.format(sql.Identifier(ROLE), sql.Literal(password)))
        large = invent_run(Server(dsn), N_MODELS, 4, 3, state="running")
        small = invent_run(Server(dsn), 16, 4, 3, state="running")
        try:
            with _live_page(connection.info, password) as page:
                screen_s = _first_screen(page, large)
                cores = {run_id: _cores(page, cursor, run_id) for run_id in (small, large)}
                turns = _makespans(page, cursor, n_rows, N_TIMES_EPOCHS * n_epochs)
        finally:
            cursor.execute("DELETE FROM madlib_mop.run WHERE run_id = ANY (%s)", [[large, small]])
            cursor.execute(sql.SQL("ALTER ROLE {} NOLOGIN NOSUPERUSER").format(sql.Identifier(ROLE)))
    print(f"\nlive page: {N_MODELS:,} models; {N_VIEWERS} viewers; makespans with {N_FEW} viewers, {N_TURNS} turns")
    print(f"  first screen of {N_MODELS:,} models              {screen_s:7.2f} s")
    print(f"  cores, {N_VIEWERS} viewers of 16 models               {cores[small]:7.2f}")
    print(f"  cores, {N_VIEWERS} viewers of {N_MODELS:,} models           {cores[large]:7.2f}")
    for alone_s, watched_s in turns:
        print(f"  makespan without and with {N_FEW} viewers        {alone_s:7.2f} s {watched_s:7.2f} s")
    alone_s, watched_s = (sum(column) for column in zip(*turns, strict=True))
    ratios = [
        Ratio("live page: first screen of 10,000 models / 1 s", screen_s / MOST_SCREEN_S, 1.0),
        Ratio("live page: cores with 50 viewers / 0.5", max(cores.values()) / MOST_CORES, 1.0),
        Ratio("live page: makespan with ten viewers / without", watched_s / alone_s, MOST_SLOWER),
    ]
    print(*ratios, sep="\n", flush=True)
    return ratios


class _Page:
    """A live page in a process of its own, and a browser's session."""

    def __init__(self, url: str, pid: int, password: str):
        self.url, self.pid = url, pid
        self.client = httpx.Client(base_url=url, headers={"Origin": url}, timeout=120, trust_env=False)
        token = re.search(r'name="token" value="([^"]+)"', self.client.get("/login").text)[1]
        form = {"role": ROLE, "password": password, "token": token, "next": "/"}
        assert self.client.post("/login", data=form).status_code == 303, "the login failed"
        self._password = password

    def cpu_s(self) -> float:
        """Return the CPU seconds so far, of the process and of the one that draws figures."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")
        children = [child for task in tasks for child in task.read_text().split()]
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (self.pid, *children)]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def viewers(self, run_id: int, n: int) -> Iterator[None]:
        """Let browsers show a run: each reads its updates, and asks for figures as often as dash.js does."""
        stop, ready = threading.Event(), threading.Semaphore(0)
        sessions = [self if i == 0 else _Page(self.url, self.pid, self._password) for i in range(-(-n // 20))]
        threads = [
            threading.Thread(target=_watch, args=(sessions[i // 20].client, run_id, stop, ready), daemon=True)
            for i in range(n)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            ready.acquire()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)


def _watch(client: httpx.Client, run_id: int, stop: threading.Event, ready: threading.Semaphore) -> None:
    """Do what a browser does, with little CPU time: browsers run on other machines."""
    tag, asked_at, is_ready = "", 0.0, False
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    host, port, path = client.base_url.host, client.base_url.port, f"/runs/{run_id}"
    events, figures = (http.client.HTTPConnection(host, port, timeout=120) for _ in range(2))
    with closing(events), closing(figures):
        events.request("GET", path + "/events", headers={"Cookie": cookies})
        response = events.getresponse()
        while not stop.is_set() and (line := response.readline()):
            if line.startswith(b"data: ") and time.monotonic() > asked_at + FIGURES_EVERY_S:
                figures.close()  # the server may have closed an idle connection
                figures.request("GET", path + "/figures", headers={"Cookie": cookies, "If-None-Match": tag})
                answer = figures.getresponse()
                answer.read()
                tag, asked_at = answer.headers["etag"], time.monotonic()
                if not is_ready:
                    is_ready = True
                    ready.release()


@contextmanager
def _live_page(info, password: str) -> Iterator[_Page]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dsn = f"host=127.0.0.1 port={info.port} dbname={info.dbname}"
    command = [sys.executable, "-m", "madlib_mop.cli", "dash", "--port", str(port), "--dsn", dsn]
    path = os.pathsep.join([str(ROOT), str(ROOT / "plpython")])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline(), "the live page did not start"
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(url + "/login", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield _Page(url, process.pid, password)
    finally:
        process.terminate()
        process.wait(20)


def _first_screen(page: _Page, run_id: int) -> float:
    times = []
    for _ in range(6):
        began = time.perf_counter()
        assert page.client.get(f"/runs/{run_id}").status_code == 200
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def _cores(page: _Page, cursor, run_id: int) -> float:
    """Return the CPU seconds of the live page in a second, while a run changes twice a second."""
    with page.viewers(run_id, N_VIEWERS):
        began, cpu_s = time.monotonic(), page.cpu_s()
        step = 0
        while time.monotonic() < began + WATCHED_S:
            changed = "UPDATE madlib_mop.metric SET value = random() WHERE run_id = %s AND mst_key = %s"
            cursor.execute(changed, [run_id, step % 16 + 1])
            cursor.execute("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])
            step += 1
            time.sleep(0.5)
        return (page.cpu_s() - cpu_s) / (time.monotonic() - began)


def _makespans(page: _Page, cursor, n_rows: int, n_epochs: int) -> list[tuple[float, float]]:
    """Return the makespans without and with viewers, in seconds, of each turn: a pair of runs one after the other.

    The speed of a shared machine changes from minute to minute. The order of the two changes from turn to turn, so that
    slow changes cancel in the sums over all turns.
    """
    x, y, *_ = images(n_rows, 1)
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    cursor.execute("SET madlib_mop.segments = 2")
    make_table(cursor, "train_rows", x, y)
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
    configure(cursor, "mlp")
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(N_TURNS + 1):
        for watched in (False, True) if turn % 2 else (True, False):
            makespan_s = _train(page, cursor, f"{turn}_{int(watched)}", n_epochs, watched)
            if turn:  # the first ones start the fork servers
                found[watched].append(makespan_s)
    cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE; SET search_path = DEFAULT")
    return list(zip(found[False], found[True], strict=True))


def _train(page: _Page, cursor, name: str, n_epochs: int, watched: bool) -> float:
    cursor.execute("SELECT last_value + 1 FROM madlib_mop.run_run_id_seq")
    (run_id,) = cursor.fetchone()
    statement = _FIT.format(name)
    if watched:
        done = threading.Thread(target=cursor.execute, args=(statement, [n_epochs]))
        done.start()
        while page.client.get(f"/runs/{run_id}").status_code != 200:
            time.sleep(0.05)
        with page.viewers(run_id, N_FEW):
            done.join()
    else:
        cursor.execute(statement, [n_epochs])
    cursor.execute("SELECT makespan_s FROM madlib_mop.run WHERE run_id = %s", [run_id])
    (makespan_s,) = cursor.fetchone()
    cursor.execute("SELECT madlib_mop.drop_run(%s)", [run_id])
    return float(makespan_s)
