"""The measurements of the comparison, as files of a directory: written by comparison.py, read by the report."""

import dataclasses
import datetime
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ways.contract import Epoch, Outcome, Span

_PACKAGES = ("tensorflow-cpu", "tensorflow", "keras", "numpy", "psycopg2-binary")
_ABOUT = "comparison.json"


@dataclass(frozen=True)
class Measurement:
    """One run of one way.

    Attributes
    ----------
    workload, way : str
    repetition : int
        Distinguishes runs with equal seeds.
    seed : int
    n_workers : int
    makespan_s : float
        From the start to the end of the work, measured by the caller.
    socket_bytes : int or None
        Bytes over the network's interface in that time; None if they were not counted.
    outcome : Outcome
    begun_at : float
        Start of the makespan, in Unix time.
    """

    workload: str
    way: str
    repetition: int
    seed: int
    n_workers: int
    makespan_s: float
    socket_bytes: int | None
    outcome: Outcome
    begun_at: float

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Identity of a measurement within a comparison: workload, way, seed, repetition."""
        return self.workload, self.way, self.seed, self.repetition

    def write(self, directory: Path) -> Path:
        """Write a file for this measurement, immediately, so that an interrupted comparison keeps it."""
        return _write(directory / f"measurement-{'-'.join(map(str, self.key))}.json", self)

    @staticmethod
    def read(path: Path) -> "Measurement":
        """Read what `write` wrote."""
        told = json.loads(path.read_text())
        outcome = told.pop("outcome")
        outcome["spans"] = [Span(**span) for span in outcome["spans"]]
        outcome["epochs"] = [Epoch(**epoch) for epoch in outcome["epochs"]]
        return Measurement(outcome=Outcome(**outcome), **told)


@dataclass(frozen=True)
class Failure:
    """A way that could not train a workload, with the reason in one line."""

    workload: str
    way: str
    error: str

    def write(self, directory: Path) -> Path:
        """Write it as a file of its own."""
        return _write(directory / f"failure-{self.workload}-{self.way}.json", self)

    @staticmethod
    def read(path: Path) -> "Failure":
        """Read what `write` wrote."""
        return Failure(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Machine:
    """Machine and date of the measurements.

    Attributes
    ----------
    cpu, kernel, date, commit : str
    n_cores : int
        Number of cores that this process may use.
    memory_bytes : int
    versions : dict of str to str
    """

    cpu: str
    n_cores: int
    memory_bytes: int
    kernel: str
    versions: dict[str, str]
    commit: str
    date: str

    @property
    def described(self) -> "Machine":
        """This without the date; equal for measurements that may be compared."""
        return dataclasses.replace(self, date="")

    @staticmethod
    def here() -> "Machine":
        """Describe this machine."""
        return Machine(
            cpu=_field("/proc/cpuinfo", "model name") or platform.machine(),
            n_cores=len(os.sched_getaffinity(0)),
            memory_bytes=int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) * 1024,
            kernel=f"{platform.system()} {platform.release()}",
            versions={"Python": platform.python_version(), **_package_versions()},
            commit=_commit(),
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )


@dataclass(frozen=True)
class Comparison:
    """All data of a report.

    Attributes
    ----------
    measurements : list of Measurement
    failures : list of Failure
    machine : Machine
    workloads : dict of str to str
        Description of each workload in one line; tables have the same order.
    """

    measurements: list[Measurement]
    failures: list[Failure]
    machine: Machine
    workloads: dict[str, str]

    def write(self, directory: Path) -> None:
        """Write what `read` reads."""
        directory.mkdir(parents=True, exist_ok=True)
        for part in [*self.measurements, *self.failures]:
            part.write(directory)
        about = {"machine": dataclasses.asdict(self.machine), "workloads": self.workloads}
        (directory / _ABOUT).write_text(json.dumps(about, indent=1))

    @staticmethod
    def read(directory: Path) -> "Comparison":
        """Read a directory of measurements.

        Raises
        ------
        FileNotFoundError
            The directory has none.
        """
        about = json.loads((directory / _ABOUT).read_text())
        measurements = [Measurement.read(path) for path in sorted(directory.glob("measurement-*.json"))]
        failures = [Failure.read(path) for path in sorted(directory.glob("failure-*.json"))]
        if not measurements and not failures:
            raise FileNotFoundError(f"{directory} has no measurements")
        return Comparison(measurements, failures, Machine(**about["machine"]), about["workloads"])


def _write(path: Path, told: Measurement | Failure) -> Path:
    path.write_text(json.dumps(dataclasses.asdict(told)))
    return path


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _package_versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    def git(*words: str) -> str:
        answer = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (", changed since" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
