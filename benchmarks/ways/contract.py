"""What a way of training is given, and what it tells: both as JSON files; read and written by comparison.py and ways.

Times are Unix times in seconds (`time.time`), so that those of several processes fit together.
"""

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spec:
    """What a way is to do.

    Attributes
    ----------
    workload : str
        A key of `workloads.WORKLOADS`.
    rows : str
        Path of the .npz file of `workloads.Rows`. Not to be trained from: a way puts its own copies (or shards) of the
        training rows where it needs them, below ``directory``, so that they are counted. Test rows may be read here.
    directory : str
        An empty directory of this way's own.
    n_epochs, n_workers : int
        Each worker is one process with one thread.
    seed : int
        For start weights (`Workload.compiled`), shuffles and all else that is drawn.
    mst_keys : list of int
        Which configurations to train, in this order.
    dsn : str
        The database to train in, for the ways that do; else empty.
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
        """Return the directory of one worker's own files, made if need be."""
        directory = Path(self.directory, f"worker_{worker}")
        directory.mkdir(exist_ok=True)
        return directory


@dataclass(frozen=True)
class Span:
    """A time in which one worker trained or evaluated one configuration; what is between spans, a worker idled.

    ``kind`` is "train" or "evaluate". Where several workers train one model together each has a span.
    """

    mst_key: int
    worker: int
    begin: float
    end: float
    kind: str = "train"


@dataclass(frozen=True)
class Epoch:
    """What is known of a model after an epoch: its error on the test rows, at what time, and on the training rows."""

    mst_key: int
    epoch: int  # 1-based
    at: float
    test_error: float
    train_error: float


@dataclass(frozen=True)
class Outcome:
    """What a way has done.

    Attributes
    ----------
    ready_at : float
        When everything was loaded and started: the first span's begin at the latest.
    spans : list of Span
    epochs : list of Epoch
    digests : dict of str to str
        Of each configuration's final weights (`digest_of`), by its mst_key as text.
    data_bytes : int
        All copies of the training rows, as they are stored.
    versions : dict of str to str
        Of what a reader wants to know.
    written_bytes : int or None
        What the database wrote (write-ahead log, pages of relations), where there is one.
    database_bytes : int or None
        Size of the database afterwards, source tables and the record included, where there is one.
    begun_at, ended_at : float or None
        When the work began and ended, for a way that trains on a server that runs already; None: the process's start
        and end.
    loopback_bytes : int or None
        What was sent over the loopback interface between those two; None where they are None.
    stages : dict of str to float
        Where the workers' time went, in seconds, where it is known (`breakdown`): idle time and all.
    steady_stages : dict of str to float
        The same for the time after the first epoch; empty where there is no other.
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
        """Read what a way wrote."""
        told = json.loads(path.read_text())
        told["spans"] = [Span(**span) for span in told["spans"]]
        told["epochs"] = [Epoch(**epoch) for epoch in told["epochs"]]
        return Outcome(**told)


def run_way(work) -> None:
    """Be the main program of a way: read the Spec, do the work, write the Outcome."""
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
    """Return what has been sent so far over the loopback interface that a process sees, headers included."""
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
