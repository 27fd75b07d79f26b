"""Before a run opens any session: rows that fit neither into a trainer's memory nor on disk are refused."""

from dataclasses import replace

import pytest

from madlib_mop.driver.running import admission
from madlib_mop.errors import OutOfResources
from tests.helpers.unit.rows import a_plan

GIB = 1 << 30


class Record:
    def __init__(self, data_directory):
        self._path = data_directory

    def data_directory(self):
        return self._path


def plan_of(n_bytes: int, **start):
    """Return the plan of two shards of so many bytes, whose trainers may have 1 GiB of memory."""
    plan = a_plan()
    shards = tuple(replace(shard, n_bytes=n_bytes) for shard in plan.training.segments)
    start = {"memory_limit_bytes": GIB, "shard_cache_bytes": 0, "shard_disk_bytes": 1 << 60, **start}
    return replace(plan, training=replace(plan.training, segments=shards), trainer=start)


@pytest.fixture
def record(tmp_path):
    (tmp_path / "base").mkdir()
    return Record(str(tmp_path))


@pytest.mark.parametrize("n_bytes, start", [(GIB // 2, {}), (GIB // 2, {"shard_disk_bytes": 0}), (1 << 20, {})])
def test_rows_that_fit_are_admitted(record, n_bytes, start):
    admission._check_files(record, plan_of(n_bytes, **start))


def test_rows_that_the_disk_takes_are_admitted(record, monkeypatch):
    monkeypatch.setattr(admission, "free_bytes", lambda path: 5 * GIB)
    admission._check_files(record, plan_of(2 * GIB))


def test_a_limit_that_is_too_low_is_named(record):
    with pytest.raises(OutOfResources) as caught:
        admission._check_files(record, plan_of(2 * GIB, shard_disk_bytes=GIB))
    assert caught.value.message == (
        "the rows of 2 segment(s) do not fit into a trainer's memory, 1024 MB, and take 4096 MB on disk, but the limit"
        " of a trainer's file is 1024 MB"
    )
    assert "madlib_mop.shard_disk_mb" in caught.value.hint


def test_a_disk_that_is_too_full_is_named(record, monkeypatch):
    monkeypatch.setattr(admission, "free_bytes", lambda path: 3 * GIB)
    with pytest.raises(OutOfResources, match="/base has room for 3072 MB"):
        admission._check_files(record, plan_of(2 * GIB))
    with pytest.raises(OutOfResources, match="/elsewhere has room for 3072 MB"):
        admission._check_files(record, plan_of(2 * GIB, shard_directory="/elsewhere"))
