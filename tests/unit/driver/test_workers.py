"""How a reader opens that is needed late in a run."""

import json

from madlib_mop.engines.sessions import worker as module_of_worker
from madlib_mop.engines.sessions.session import Returned, SessionState
from madlib_mop.engines.sessions.worker import SegmentWorker


def test_a_reader_that_opens_later_may_log_in(monkeypatch):
    """The password of the run's role is valid for a minute: it is renewed before the login."""
    steps = []

    class FakeSession:
        """A session that is idle; its target is the statement's answer."""

        def __init__(self, target):
            steps.append(target)
            self.state, self.pid = SessionState.IDLE, 1

        def begin(self, *_):
            """Take a statement."""

        def advance(self):
            return Returned(json.dumps({"outcome": "load", "data_set": "training", "segment_id": 0, "reader": {}}))

    monkeypatch.setattr(module_of_worker, "WorkerSession", FakeSession)
    worker = SegmentWorker("writer", "reader", False, print, lambda: steps.append("renewed"))
    worker.begin({"do": "train"})
    assert worker.advance(worker.sessions[0]) is None
    assert steps == ["writer", "renewed", "reader"]
