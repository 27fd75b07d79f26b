"""The time of training_preprocessor_dl, compared with a CREATE TABLE AS of the same rows in the same server.

    make/python.sh benchmarks/packing.py "$(make -s dsn)"

Target: 50,000 rows of 3,072 reals in less than 60 s on two cores, in memory that depends on the buffers, not on the
table. Numbers are random, so that they do not compress; both sides start from a table that was read once.
"""

import argparse
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg2

SOURCE, PACKED, COPY = "bench_packing_source", "bench_packing_packed", "bench_packing_copy"
_POLL_S = 0.02


@dataclass(frozen=True)
class Measurement:
    """One comparison.

    Attributes
    ----------
    n_rows, width, n_bytes : int
        Rows, reals per row, and bytes of the packed x.
    pack_s, copy_s : float
        Seconds of training_preprocessor_dl, and of CREATE TABLE AS.
    driver_peak_bytes : int
        Highest resident memory of the driver process.
    """

    n_rows: int
    width: int
    n_bytes: int
    pack_s: float
    copy_s: float
    driver_peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.n_rows:,} rows of {self.width:,} reals: packed in {self.pack_s:.1f} s"
            f" ({self.n_bytes / 1e6 / self.pack_s:.0f} MB/s), copied in {self.copy_s:.1f} s, ratio"
            f" {self.pack_s / self.copy_s:.2f}, driver's peak {self.driver_peak_bytes / 1e6:.0f} MB"
        )


def measure(dsn: str, n_rows: int = 50_000, width: int = 3_072) -> Measurement:
    """Create a table of random reals, copy it, pack it, and drop all tables.

    Parameters
    ----------
    dsn : str
        Of a local server with the extension.
    n_rows, width : int
        Rows, and reals a row.
    """
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        _drop(cursor)
        cursor.execute(
            f"CREATE TABLE {SOURCE} AS SELECT mod(i, 10) AS y,"
            " (SELECT array_agg((random() * (i + j))::real) FROM generate_series(1, %s) j) AS x"
            " FROM generate_series(1, %s) i",
            [width, n_rows],
        )
        cursor.execute(f"VACUUM ANALYZE {SOURCE}")
        cursor.execute("CHECKPOINT")
        try:
            copy_s = _seconds(cursor, f"CREATE TABLE {COPY} AS TABLE {SOURCE}")
            cursor.execute("CHECKPOINT")
            with _PeakMemory(connection.info.backend_pid) as driver:
                pack_s = _seconds(
                    cursor, f"SELECT madlib.training_preprocessor_dl('{SOURCE}', '{PACKED}', 'y', 'x', seed => 1)"
                )
            cursor.execute(f"SELECT sum(x_shape[1]), sum(octet_length(x)) FROM {PACKED}")
            n_packed, n_bytes = cursor.fetchone()
            if n_packed != n_rows:
                raise RuntimeError(f"{n_packed} of {n_rows} rows were packed")
        finally:
            _drop(cursor)
    return Measurement(n_rows, width, int(n_bytes), pack_s, copy_s, driver.peak_bytes)


class _PeakMemory:
    """Monitors the children of a backend while a block runs; records the highest resident memory of any of them."""

    def __init__(self, backend_pid: int):
        self.peak_bytes = 0
        self._backend_pid = backend_pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _watch(self):
        children = Path(f"/proc/{self._backend_pid}/task/{self._backend_pid}/children")
        while not self._done.wait(_POLL_S):
            for pid in children.read_text().split():
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                for line in status.splitlines():
                    if line.startswith("VmHWM:"):
                        self.peak_bytes = max(self.peak_bytes, int(line.split()[1]) * 1024)


def _seconds(cursor, query: str) -> float:
    started = time.monotonic()
    cursor.execute(query)
    return time.monotonic() - started


def _drop(cursor) -> None:
    cursor.execute(f"DROP TABLE IF EXISTS {SOURCE}, {COPY}, {PACKED}, {PACKED}_summary")


def main() -> None:
    """Measure with half of the rows and with all rows: the driver needs the same memory for both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn", help="URI of a local server with the extension")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=3_072)
    arguments = parser.parse_args()
    for n_rows in (arguments.rows // 2, arguments.rows):
        print(measure(arguments.dsn, n_rows, arguments.width), flush=True)


if __name__ == "__main__":
    main()
