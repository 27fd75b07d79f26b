"""What a run's workers pass on: compiled functions from one segment's trainer to the others; and how a late reader
opens."""

import json
from types import SimpleNamespace

import pytest

from madlib_mop.driver.running import workers as module
from madlib_mop.driver.running.workers import Workers
from madlib_mop.engines.sessions import worker as module_of_worker
from madlib_mop.engines.sessions.session import Failure, Returned, SessionState
from madlib_mop.engines.sessions.worker import Answer, Worker

#: Of the segments: two are on this server, one is elsewhere.
PLACES = (None, None, object())
DONE = {"outcome": "done", "versions": {"pid": 1}}


class FakeWorker:
    """A worker without sessions: notes its tasks, and gives the answers that a test sets."""

    def __init__(self, *_):
        self.tasks, self.answer = [], None

    def begin(self, task):
        self.tasks.append(task)

    def advance(self, _):
        return Answer(self.answer)


@pytest.fixture
def workers(monkeypatch):
    made = []
    monkeypatch.setattr(module, "Worker", lambda *_: made.append(FakeWorker()) or made[-1])
    access = SimpleNamespace(run_id=1, login=None, writer=lambda _: None, reader=lambda: None)
    shards = [SimpleNamespace(segment_id=number, server=None, place=place) for number, place in enumerate(PLACES)]
    plan = SimpleNamespace(training=SimpleNamespace(segments=shards), host_wait_s=1)
    opened = Workers(None, access, plan, print, None, None)
    opened.open_all()
    return opened, made


def test_a_function_goes_from_a_trainer_to_the_next_task_of_another(workers):
    opened, (first, second, elsewhere) = workers
    first.answer = {**DONE, "functions": {"jit_step": "QQ=="}}
    event = opened.advance(0, SimpleNamespace(state=SessionState.IDLE))
    assert event.fields == DONE
    for segment in (0, 1, 1, 2):
        opened.begin(segment, {"do": "train"})
    assert first.tasks == elsewhere.tasks == [{"do": "train"}]
    assert second.tasks == [{"do": "train", "functions": {"jit_step": "QQ=="}}, {"do": "train"}]


def test_a_worker_whose_statement_has_failed_has_a_new_trainer(workers):
    opened, (first, *_) = workers
    first.answer = {**DONE, "functions": {"jit_step": "QQ=="}}
    idle = SimpleNamespace(state=SessionState.IDLE)
    opened.advance(0, idle)
    first.advance = lambda _: Failure("XX000", "an error", lost=False)
    opened.advance(0, idle)
    opened.begin(0, {"do": "train"})
    assert first.tasks == [{"do": "train", "functions": {"jit_step": "QQ=="}}]


def test_a_worker_that_is_opened_again_has_a_new_trainer(workers):
    opened, made = workers
    made[0].answer = {**DONE, "functions": {"jit_step": "QQ=="}}
    opened.advance(0, SimpleNamespace(state=SessionState.IDLE))
    opened.open_all()
    opened.begin(0, {"do": "train"})
    assert made[3].tasks == [{"do": "train", "functions": {"jit_step": "QQ=="}}]


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

    monkeypatch.setattr(module_of_worker, "Session", FakeSession)
    worker = Worker("writer", "reader", False, print, lambda: steps.append("renewed"))
    worker.begin({"do": "train"})
    assert worker.advance(worker.sessions[0]) is None
    assert steps == ["writer", "renewed", "reader"]
