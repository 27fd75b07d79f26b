"""The job worker's wait: a notification that came with the answer of a query wakes it too."""

import os
import time
from types import SimpleNamespace

import pytest

from madlib_mop.jobs.stopping import StopSignals
from madlib_mop.jobs.working import JobWorker


@pytest.fixture
def worker():
    """A worker whose catalog session has nothing to read, and no job that waits for its time."""
    read, write = os.pipe()
    raw = SimpleNamespace(fileno=lambda: read, notifies=[], poll=lambda: None)
    record = SimpleNamespace(raw=raw, execute=lambda *_: [(None,)])
    worker = JobWorker(record, None, 2, print, StopSignals())
    worker._look_at = time.monotonic() + 60
    yield worker
    os.close(read)
    os.close(write)


def test_a_notification_that_has_been_read_is_not_waited_for(worker):
    worker._record.raw.notifies.append("a job")
    begun = time.monotonic()
    worker._wait()
    assert time.monotonic() - begun < 30


def test_a_signal_ends_the_wait(worker):
    worker._stop.set()
    begun = time.monotonic()
    worker._wait()
    assert time.monotonic() - begun < 30 and worker._stop.is_set
