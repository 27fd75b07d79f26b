"""Promise 4 without a server: a call waits for a run that another run's driver has locked for a moment."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.commands import runs
from madlib_mop.driver.running import driving
from madlib_mop.errors import NotReady


class Locked:
    """A record whose run another session has locked for some attempts."""

    def __init__(self, state: RunState, n_attempts: float, caller_pid: int | None = None):
        self._run = SimpleNamespace(run_id=7, state=state, caller_pid=caller_pid)
        self._n_left = n_attempts
        self.is_locked = False
        self.dropped: list[int] = []

    def known_run(self, run_id: int) -> SimpleNamespace:
        return self._run

    def lock_run(self, run_id: int) -> bool:
        self._n_left -= 1
        self.is_locked = self._n_left < 0
        return self.is_locked

    def is_at_work(self, pid: int | None, asks: int) -> bool:
        return pid is not None

    def delete_run(self, run_id: int) -> None:
        assert self.is_locked
        self.dropped.append(run_id)

    def unlock_run(self, run_id: int) -> None:
        self.is_locked = False


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.TRAINED, RunState.INTERRUPTED, RunState.RUNNING])
def test_a_run_that_is_locked_for_a_moment_is_waited_for(state):
    record = Locked(state, 2)
    driving.become_driver(record, 7)
    assert record.is_locked


def test_a_run_that_stays_locked_is_an_error(monkeypatch):
    monkeypatch.setattr(driving, "_SWEPT_WITHIN_S", 0.0)
    with pytest.raises(NotReady, match="run 7 is in progress in another session"):
        driving.become_driver(Locked(RunState.FINISHED, float("inf")), 7)


@pytest.fixture
def drop(monkeypatch):
    """Return `drop_run` with a record in memory."""

    def drop(record: Locked) -> None:
        monkeypatch.setattr(runs, "open_record", lambda info: record)
        monkeypatch.setattr(runs, "find_run", lambda record, call: record.known_run(7))
        for name in ("end_old_writers", "sweep_slots"):
            monkeypatch.setattr(runs, name, lambda *_: None)
        runs.drop_run(SimpleNamespace(info=SimpleNamespace(pid=1)))

    return drop


@pytest.mark.parametrize("state", [RunState.INTERRUPTED, RunState.RUNNING])
def test_a_dead_run_is_dropped_after_another_session_has_ended_it(drop, state):
    record = Locked(state, 2)
    drop(record)
    assert record.dropped == [7] and not record.is_locked


def test_a_run_whose_caller_is_at_work_is_not_dropped(drop):
    record = Locked(RunState.RUNNING, float("inf"), caller_pid=2)
    with pytest.raises(NotReady, match="run 7 is running"):
        drop(record)
    assert record.dropped == []
