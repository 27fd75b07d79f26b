"""Measurements are saved: a directory of files contains everything for the report."""

import pytest
from report.measurement import Comparison, Failure, Machine, Measurement

from tests.helpers.unit import benchmarks as synthetic


def test_a_comparison_is_read_as_it_was_written(tmp_path):
    told = synthetic.comparison(seeds=(1, 2), repetitions=1, n_epochs=1)
    told.write(tmp_path / "new" / "directory")
    found = Comparison.read(tmp_path / "new" / "directory")
    by_name = lambda one: (one.workload, one.way, one.seed, one.repetition)  # noqa: E731
    assert found.measurements == sorted(told.measurements, key=by_name)
    assert (found.failures, found.machine, found.workloads) == (told.failures, told.machine, told.workloads)
    assert list(found.workloads) == list(told.workloads)


def test_each_measurement_has_a_file_of_its_own(tmp_path):
    """Repetitions and seeds have separate files, and a measurement counts as soon as its file exists."""
    runs = [synthetic.measurement(seed=s, repetition=r, n_epochs=1) for s in (1, 11) for r in (1, 11)]
    assert len({run.write(tmp_path) for run in runs}) == 4
    assert Measurement.read(runs[0].write(tmp_path)) == runs[0]
    Failure("images", "plain", "no").write(tmp_path)
    with pytest.raises(FileNotFoundError):
        Comparison.read(tmp_path)  # the machine is missing


def test_a_directory_without_measurements_is_told_of(tmp_path):
    Comparison([], [], synthetic.MACHINE, {}).write(tmp_path)
    with pytest.raises(FileNotFoundError, match="no measurements"):
        Comparison.read(tmp_path)


def test_this_machine_describes_itself():
    here = Machine.here()
    assert here.cpu and here.kernel.startswith("Linux ") and here.commit
    assert here.n_cores >= 1 and here.memory_bytes > 100_000_000
    assert here.versions["Python"].startswith("3.")
