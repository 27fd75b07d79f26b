"""Many sessions that predict one row a statement: rows a second, the time of a row alone, and the memory of all.

pgbench calls two registered models, one of a class and one of a number, by turns, with shared trainers and without. It
is measured when each session has used both models. Memory is the proportional set size (PSS) of all processes of the
server, trainers and fork servers too: a page that several processes share counts once. Run by `make bench`, or alone:

    make/python.sh benchmarks/sessions.py "$(make -s dsn)"

Targets, on two cores that nothing else uses: 80 sessions take at most 1.2 GB in all, and predict at least 3,000 rows a
second; a row alone takes at most 0.4 ms.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from ratios import Ratio

SCHEMA, CLASS, NUMBER = "mop_sessions", "bench_sessions_class", "bench_sessions_number"
N_ROWS, SECONDS, MANY = 5000, 6.0, 80
MOST_BYTES, LEAST_ROWS, MOST_ALONE_S = 1.2e9, 3000, 0.0004
_WAIT_S = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")
_TABLE = f"""
CREATE TABLE {SCHEMA}.rows AS
SELECT i AS id, random() * 60 AS age, random()::real AS spent, (random() * 9)::integer AS calls,
       'c' || (random() * 8)::integer AS city,
       CASE WHEN random() < 0.9 THEN 'k' || (random() * 40)::integer END AS plan,
       date '2020-01-01' + (random() * 1500)::integer AS joined, CASE WHEN random() < 0.4 THEN 'yes' ELSE 'no' END AS y,
       random() * 100 AS z
FROM generate_series(1, {N_ROWS}) AS i
"""
_TRAIN = (
    "SELECT madlib_mop.pack_columns('rows', 'packed_{y}', '{y}', exclude => '{{id,{other}}}', seed => 1)",
    "SELECT madlib_mop.propose_networks('packed_{y}', 'networks_{y}', 'configs_{y}', n_configs => 1, seed => 1)",
    "SELECT madlib.madlib_keras_fit_multiple_model('packed_{y}', 'models_{y}', 'configs_{y}', 1, seed => 1)",
    "SELECT madlib_mop.register('{name}', 'models_{y}')",
)
#: What a session does, as expressions of the two statements.
_PLAIN = f"{SCHEMA}.plain(r.age)"
_KINDS = {
    "a PL/Python function": (_PLAIN, _PLAIN),
    "predict": (f"madlib_mop.predict('{CLASS}', r)", f"madlib_mop.predict('{NUMBER}', r)"),
    "predict_class, _number": (f"madlib_mop.predict_class('{CLASS}', r)", f"madlib_mop.predict_number('{NUMBER}', r)"),
}


@dataclass(frozen=True)
class Load:
    """What pgbench is to do: an entry of `_KINDS`, its number of clients, whether they prepare the statements, and
    whether they share trainers."""

    kind: str
    n_clients: int
    prepared: bool = False
    shares: bool = True


@dataclass(frozen=True)
class Measurement:
    """What was measured.

    Attributes
    ----------
    rows_per_s, row_s : float
        Rows a second; mean time of a statement in seconds.
    cpu_s : float
        Processor time of a statement in seconds, of the server's processes and pgbench.
    n_bytes : int
        PSS of the server's processes, less that before pgbench began.
    """

    load: Load
    rows_per_s: float
    row_s: float
    cpu_s: float
    n_bytes: int

    def __str__(self) -> str:
        way = self.load.kind + (", prepared" if self.load.prepared else "") + ("" if self.load.shares else ", unshared")
        return (
            f"{self.load.n_clients:3} sessions, {way:42} {self.rows_per_s:8,.0f} rows/s"
            f"  {self.row_s * 1e3:7.2f} ms a row  {self.cpu_s * 1e3:6.2f} ms of processor"
            f"  {self.n_bytes / 1e6:7,.0f} MB more"
        )


def compare_sessions(dsn: str, n_clients: Sequence[int] = (1, 8, MANY), seconds: float = SECONDS) -> list[Ratio]:
    """Measure and print; return the ratios.

    Parameters
    ----------
    dsn : str
        Of a superuser of a local server with the extension.
    n_clients : sequence of int
        Numbers of sessions.
    seconds : float
        How long each is measured.
    """
    print()
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _drop(cursor)
        try:
            _make_models(cursor)
            cursor.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
            pgbench = Path(cursor.fetchone()[0]) / "pgbench"
            postmaster = _postmaster(cursor)
            measured = []
            for load in _loads(n_clients):
                measured.append(_measure(pgbench, dsn, postmaster, load, seconds))
                print(measured[-1], flush=True)
        finally:
            _drop(cursor)
    return list(_ratios(measured))


def _loads(n_clients: Sequence[int]) -> Iterator[Load]:
    for n in n_clients:
        kinds = list(_KINDS) if n < MANY else list(_KINDS)[-1:]
        yield from (Load(kind, n) for kind in kinds)
        yield from (Load(kinds[-1], n, prepared=True, shares=shares) for shares in (True, False))


def _ratios(measured: Sequence[Measurement]) -> Iterator[Ratio]:
    plain_s = {one.load.n_clients: one.cpu_s for one in measured if one.load.kind == list(_KINDS)[0]}
    for one in measured:
        if not one.load.shares:
            continue
        if one.load.n_clients == 1 and one.load.prepared:
            yield Ratio("sessions: a row alone, ms / 0.4 ms", one.row_s / MOST_ALONE_S, 1.0)
        if one.load.n_clients in plain_s and one.load.kind == list(_KINDS)[-1] and not one.load.prepared:
            name = f"sessions: processor time, {one.load.n_clients} x predict_class / PL/Python"
            yield Ratio(name, one.cpu_s / plain_s[one.load.n_clients])
        if one.load.n_clients == MANY and one.load.prepared:
            yield Ratio(f"sessions: 3,000 rows a second / rows of {MANY} sessions", LEAST_ROWS / one.rows_per_s, 1.0)
            yield Ratio(f"sessions: memory of {MANY} sessions / 1.2 GB", one.n_bytes / MOST_BYTES, 1.0)


def _measure(pgbench: Path, dsn: str, postmaster: int, load: Load, seconds: float) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        before = _pss(postmaster)
        with _running(pgbench, dsn, Path(folder), load) as process:
            _await_warm(Path(folder), load.n_clients)
            began, busy = time.time(), _cpu_s(postmaster, process.pid)
            time.sleep(seconds)
            ended, cpu_s = time.time(), _cpu_s(postmaster, process.pid) - busy
            n_bytes = _pss(postmaster) - before
            time.sleep(1)  # pgbench writes its log in blocks
        times = [line.took_s for line in _log(Path(folder)) if began <= line.ended < ended]
    return Measurement(load, len(times) / (ended - began), sum(times) / len(times), cpu_s / len(times), n_bytes)


@contextmanager
def _running(pgbench: Path, dsn: str, folder: Path, load: Load) -> Iterator[subprocess.Popen]:
    """Run pgbench, which logs into a folder, until the end of the block."""
    command = [pgbench, "-n", "-c", str(load.n_clients), "-j", "1", "-T", "3600", "-l"]
    command += ["-M", "prepared" if load.prepared else "simple"]
    for number, expression in enumerate(_KINDS[load.kind]):
        file = folder / f"{number}.sql"
        file.write_text(f"\\set id random(1, {N_ROWS})\nSELECT {expression} FROM {SCHEMA}.rows AS r WHERE id = :id;\n")
        command += ["-f", file]
    environment = {**os.environ, "PGOPTIONS": f"-c madlib_mop.share_trainers={'on' if load.shares else 'off'}"}
    with open(folder / "messages", "w") as messages:
        process = subprocess.Popen([*command, dsn], cwd=folder, env=environment, stdout=messages, stderr=messages)
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"pgbench ended: {(folder / 'messages').read_text()}")
    finally:
        process.terminate()  # not SIGINT, which programs in the background ignore
        process.wait()


@dataclass(frozen=True)
class _Line:
    """A transaction in pgbench's log: client, its time in seconds, number of the script, end in seconds since 1970."""

    client: int
    took_s: float
    script: int
    ended: float


def _log(folder: Path) -> Iterator[_Line]:
    for file in folder.glob("pgbench_log.*"):
        for line in file.read_text().splitlines()[:-1]:  # the last one may be half written
            client, _, took_us, script, second, us = map(int, line.split()[:6])
            yield _Line(client, took_us / 1e6, script, second + us / 1e6)


def _await_warm(folder: Path, n_clients: int) -> None:
    """Wait until each client has called both scripts."""
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        seen = Counter((line.client, line.script) for line in _log(folder))
        if len(seen) == 2 * n_clients:
            return
        time.sleep(0.5)
    raise RuntimeError(f"not all sessions had predicted after {_WAIT_S:.0f} s: {(folder / 'messages').read_text()}")


def _postmaster(cursor) -> int:
    """Return the number of the server's first process."""
    cursor.execute("SELECT pg_backend_pid()")
    return int(_stat(cursor.fetchone()[0])[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _processes(postmaster: int) -> list[int]:
    """Return the server's processes, and those of the library that live with it: fork servers and their children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                pid = int(entry.name)
                words = (entry / "cmdline").read_bytes().split(b"\0")
                of_library = str(postmaster).encode() in words and any(w.startswith(b"madlib_mop.") for w in words)
                if of_library or postmaster in (pid, int(_stat(pid)[1])):
                    found.append(pid)
            except OSError:  # it has ended
                pass
    return found


def _pss(postmaster: int) -> int:
    """Return the bytes that the server's processes have together, shared pages counted once."""
    total = 0
    for pid in _processes(postmaster):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def _cpu_s(postmaster: int, pgbench: int) -> float:
    """Return the processor time of the processes so far, in seconds."""
    total = 0
    for pid in [*_processes(postmaster), pgbench]:
        try:
            fields = _stat(pid)
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _make_models(cursor) -> None:
    cursor.execute(f"CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}, public; SET madlib_mop.segments = 1")
    cursor.execute(f"SELECT setseed(0.5); {_TABLE}; ALTER TABLE rows ADD PRIMARY KEY (id)")
    cursor.execute("VACUUM ANALYZE rows")
    cursor.execute("CREATE FUNCTION plain(x float8) RETURNS float8 LANGUAGE plpython3u STABLE AS 'return x + 1'")
    for y, other, name in (("y", "z", CLASS), ("z", "y", NUMBER)):
        for statement in _TRAIN:
            cursor.execute(statement.format(y=y, other=other, name=name))
        cursor.execute("SELECT madlib_mop.set_alias(%s, 'newest', 1)", [name])


def _drop(cursor) -> None:
    for dropped in (
        "drop_alias(name, alias) FROM madlib_mop.model_alias",
        "drop_registered(name) FROM madlib_mop.registered_model",
    ):
        cursor.execute(f"SELECT madlib_mop.{dropped} WHERE name IN (%s, %s)", [CLASS, NUMBER])
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn", help="URI of a superuser of a local server with the extension")
    parser.add_argument("--clients", type=int, action="append", help=f"numbers of sessions (1, 8, {MANY})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"time of each measurement ({SECONDS:.0f})")
    arguments = parser.parse_args()
    print(*compare_sessions(arguments.dsn, arguments.clients or (1, 8, MANY), arguments.seconds), sep="\n")


if __name__ == "__main__":
    main()
