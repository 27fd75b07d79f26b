"""The input and the result of a way of training, both JSON files; read and written by comparison.py and the ways.

Times are Unix times in seconds (`time.time`), so that those of several processes are comparable.
"""

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spec:
    """The input of a way.

    Attributes
    ----------
    workload : str
        A key of `workloads.WORKLOADS`.
    rows : str
        Path of the .npz file of `workloads.Rows`. A way must not train from it: it writes its own copies (or shards) of
        the training rows below ``directory``, so that their bytes are counted. Test rows may be read here.
    directory : str
        An empty directory for this way only.
    n_epochs, n_workers : int
        Each worker is one process with one thread.
    seed : int
        For start weights (`Workload.compiled`), shuffles and all other random numbers.
    mst_keys : list of int
        The configurations to train, in this order.
    dsn : str
        The database to train in, for the ways that do so; otherwise empty.
    """

    workload: str
    rows: str
    directory: str
    n_epochs: int
    n_workers: int
    seed: int
    mst_keys: list[int]
    dsn: str = ""

    def worker_directory(self, worker: int) -> Path:
        """Return the directory of one worker's own files; create it if necessary."""
        directory = Path(self.directory, f"worker_{worker}")
        directory.mkdir(exist_ok=True)
        return directory


@dataclass(frozen=True)
class Span:
    """A time in which one worker trained or evaluated one configuration; between spans, a worker is idle.

    ``kind`` is "train" or "evaluate". If several workers train one model together, each of them has a span.
    """

    mst_key: int
    worker: int
    begin: float
    end: float
    kind: str = "train"


@dataclass(frozen=True)
class Epoch:
    """Results of a model after an epoch: its errors on test rows and training rows, and the time."""

    mst_key: int
    epoch: int  # 1-based
    at: float
    test_error: float
    train_error: float


@dataclass(frozen=True)
class Outcome:
    """The result of a way.

    Attributes
    ----------
    ready_at : float
        When everything was loaded and started: at the latest the start of the first span.
    spans : list of Span
    epochs : list of Epoch
    digests : dict of str to str
        Of each configuration's final weights (`digest_of`), by its mst_key as text.
    data_bytes : int
        Stored size of all copies of the training rows.
    versions : dict of str to str
        Versions of the main packages.
    written_bytes : int or None
        Bytes that the database wrote (write-ahead log, pages of relations); None without a database.
    database_bytes : int or None
        Size of the database afterwards, with source tables and the record; None without a database.
    begun_at, ended_at : float or None
        Start and end of the work, for a way that trains on a running server; None: start and end of the process.
    loopback_bytes : int or None
        Bytes sent over the loopback interface between those two; None if they are None.
    stages : dict of str to float
        Breakdown of the workers' time in seconds, with idle time, if known (`breakdown`).
    steady_stages : dict of str to float
        The same for the time after the first epoch; empty if there is only one.
    """

    ready_at: float
    spans: list[Span]
    epochs: list[Epoch]
    digests: dict[str, str]
    data_bytes: int
    versions: dict[str, str]
    written_bytes: int | None = None
    database_bytes: int | None = None
    begun_at: float | None = None
    ended_at: float | None = None
    loopback_bytes: int | None = None
    stages: dict[str, float] = dataclasses.field(default_factory=dict)
    steady_stages: dict[str, float] = dataclasses.field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> "Outcome":
        """Read the result that a way wrote."""
        told = json.loads(path.read_text())
        told["spans"] = [Span(**span) for span in told["spans"]]
        told["epochs"] = [Epoch(**epoch) for epoch in told["epochs"]]
        return Outcome(**told)


def run_way(work) -> None:
    """Run the main program of a way: read the Spec, do the work, write the Outcome."""
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    outcome = work(spec)
    Path(sys.argv[2]).write_text(json.dumps(dataclasses.asdict(outcome)))


def digest_of(weights) -> str:
    """Return the SHA-256 of a model's weights (`model.get_weights()`), as text."""
    import hashlib

    digest = hashlib.sha256()
    for array in weights:
        digest.update(array.tobytes())
    return digest.hexdigest()


def loopback_bytes(pid: int | str = "self") -> int:
    """Return the bytes sent until now over the loopback interface that a process sees, with headers."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise RuntimeError("there is no loopback interface")


def tensorflow_versions() -> dict[str, str]:
    """Return the versions of TensorFlow and Keras, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        tensorflow = version("tensorflow-cpu")
    except PackageNotFoundError:
        tensorflow = version("tensorflow")
    return {"TensorFlow": tensorflow, "Keras": version("keras")}


def now() -> float:
    """Return the Unix time in seconds."""
    return time.time()
