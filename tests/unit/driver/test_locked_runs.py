"""Promise 4 without a server: a call waits for a run that another run's driver has locked for a moment."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.running import driving
from madlib_mop.errors import NotReady


class Locked:
    """A record whose run another session has locked for some attempts."""

    def __init__(self, state: RunState, n_attempts: float):
        self._run = SimpleNamespace(state=state)
        self._n_left = n_attempts
        self.is_locked = False

    def known_run(self, run_id: int) -> SimpleNamespace:
        return self._run

    def lock_run(self, run_id: int) -> bool:
        self._n_left -= 1
        self.is_locked = self._n_left < 0
        return self.is_locked


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.TRAINED, RunState.INTERRUPTED, RunState.RUNNING])
def test_a_run_that_is_locked_for_a_moment_is_waited_for(state):
    record = Locked(state, 2)
    driving.become_driver(record, 7)
    assert record.is_locked


def test_a_run_that_stays_locked_is_an_error(monkeypatch):
    monkeypatch.setattr(driving, "_SWEPT_WITHIN_S", 0.0)
    with pytest.raises(NotReady, match="run 7 is in progress in another session"):
        driving.become_driver(Locked(RunState.FINISHED, float("inf")), 7)
