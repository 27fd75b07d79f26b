"""The coroutines of a run's segments, with sessions whose answers the test gives: what they report to the loop."""

import asyncio
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from mop_backend.messages import (
    Died,
    Done,
    Evaluate,
    Failed,
    HostGone,
    LoadedRows,
    LoadShard,
    NeedsRows,
    ReleaseTrainer,
    ShardLoaded,
    ShardName,
    SqlFailed,
    StartTrainer,
    StateWrite,
    Train,
    Unread,
    as_text,
    read_order,
)

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.running import segment_sessions as module
from madlib_mop.driver.running.segment_sessions import SegmentSessions
from madlib_mop.driver.running.segments import (
    Notified,
    PolicyAnswered,
    PolicyFailed,
    SegmentLost,
    SegmentReady,
    TaskAnswered,
    TaskFailed,
)
from madlib_mop.driver.session import stopping
from madlib_mop.engines.sessions.session import SessionLost, StatementFailed
from madlib_mop.errors import Cancelled, InvalidParameter, MopError, NotReady, OutOfResources

SHARD = ShardName("training", 0)
TASK = Train((StateWrite(1, 0, 1),), SHARD, epoch=1, position=1, attempt=1, place="")
DONE = Done({})
LOAD = NeedsRows(SHARD, {"address": "a"})
ROWS = LoadedRows(3, 30, "f", True, ("training:0",))
LOADED = ShardLoaded({}, ROWS)
UNREAD = Unread({"sqlstate": "57014", "message": "no rows came"})
HOST = HostGone("alpha", "it is down")
LOST = SessionLost("57P01", "terminating connection")
FAILED = StatementFailed("42501", "permission denied", "Ask.")
POLICY = PolicyPlan("SELECT", None, 10)
NEVER = "never"


class FakeSession:
    """A session; `World.script` has what its statements return, by its kind."""

    def __init__(self, world, kind):
        self.world, self.kind, self.pid, self.is_busy, self.is_closed = world, kind, None, False, False
        self.statements, self.end = [], None
        world.sessions.append(self)

    async def connect(self):
        self.is_busy = True
        await self._next("connect", None)
        self.pid = len(self.world.sessions)
        self.is_busy = False

    async def execute(self, statement, params=()):
        assert not self.is_busy and not self.is_closed
        self.is_busy = True
        is_task = self.kind == "writer"
        self.statements.append(read_order(params[0]) if is_task else statement)
        answer = await self._next(self.kind, DONE)
        self.is_busy = False
        return answer if isinstance(answer, str) else as_text(answer)

    async def _next(self, what, default):
        await asyncio.sleep(0)
        answers = self.world.script.get(what, [])
        answer = answers.pop(0) if answers else default
        if answer == NEVER:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            self.is_busy = False
            if isinstance(answer, SessionLost):
                self.close()
            raise answer
        return answer

    async def idle_until(self, awaited):
        self.end = awaited
        await awaited
        if self.end == "lost":
            raise LOST

    def is_lost(self):
        return self.is_closed

    def lose(self):
        """End it while it is idle."""
        waiting, self.end = self.end, "lost"
        if not waiting.done():
            waiting.set_result(None)

    def close(self):
        self.is_closed, self.is_busy = True, False


class World:
    """Segments whose sessions are fakes, the record that they use, and what they said."""

    def __init__(
        self, servers=(None,), stop_fd=None, host_wait_s=60, trainer_idle_s=0, any_trainer=True, key=None
    ):
        self.shard_error, self.not_ended = None, []
        self.sessions, self.script, self.told, self.log = [], {}, [], []
        self.reads, self.notifies = os.pipe()
        self.raw = SimpleNamespace(fileno=lambda: self.reads, poll=lambda: None, notifies=[])
        place = None if key is None else SimpleNamespace(key=key)
        shards = [
            SimpleNamespace(segment_id=n, server=server, n_rows=3, place=place) for n, server in enumerate(servers)
        ]
        training = SimpleNamespace(segments=shards, table="t")
        plan = SimpleNamespace(
            training=training, data_sets={"training": training}, sample=None, host_wait_s=host_wait_s,
            trainer_idle_s=trainer_idle_s, any_trainer=any_trainer, gpus={},
        )  # fmt: skip
        run = SimpleNamespace(run_id=7, plan=plan, versions={})
        progress = SimpleNamespace(tell=self.told.append)
        self.access = SimpleNamespace(
            run_id=7, host="127.0.0.1", port="5432", login=SimpleNamespace(role="r"),
            writer=lambda segment: "writer", reader=lambda: "reader", policy=lambda *_: "policy",
        )  # fmt: skip
        self.segments = SegmentSessions(self, self.access, run, progress, 300.0, None, stop_fd)

    # the record

    def execute(self, query, params=()):
        if "end_sessions" in query:
            self.log.append(("ended", params[1]))
            return [(self.not_ended.pop(0) if self.not_ended else [],)]
        return []

    # the checks of rows and versions

    def check_versions(self, versions):
        assert versions == {}

    def place_of(self, shard):
        return f"t, segment {shard.segment_id}"

    def check_shard(self, *shard):
        self.log.append(("checked", *shard))
        if self.shard_error is not None:
            raise self.shard_error

    # the test

    def of_kind(self, kind):
        return [session for session in self.sessions if session.kind == kind]

    def events(self, n=1):
        """Return the next events of segments and policy."""
        found = []
        while len(found) < n:
            found += [event for event in self.segments.wait(20.0) if event != Notified()]
        return found

    def opened(self):
        self.segments.open()
        assert self.events() == [SegmentReady(0)]
        return self

    def did(self, order=None):
        """Give a task to the segment; return the event that follows."""
        self.segments.begin(0, order or TASK)
        (event,) = self.events()
        return event


@pytest.fixture
def make(monkeypatch):
    """Return a function that makes a world."""
    worlds = []

    def made(*args, **names):
        world = World(*args, **names)
        monkeypatch.setattr(module, "AsyncSession", lambda kind: FakeSession(world, kind))
        monkeypatch.setattr(module, "renew_login", lambda *_: world.log.append("renewed"))
        worlds.append(world)
        return world

    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_END_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "RunConsistency", lambda record, run, progress: record)
    yield made
    for world in worlds:
        world.segments.close()
        assert all(session.is_closed for session in world.sessions if session.pid is not None)
        os.close(world.reads)
        os.close(world.notifies)


def test_a_segment_is_ready_when_both_sessions_are_open_and_its_task_is_answered(make):
    world = make().opened()
    assert [session.kind for session in world.sessions] == ["writer", "reader"]
    assert world.log == ["renewed"], "the password of the run's role is valid for a minute"
    assert world.did() == TaskAnswered(0, DONE)
    assert world.sessions[0].statements == [TASK]


def test_each_segment_is_ready_by_itself(make):
    world = make([None, None, "alpha"])
    world.segments.open()
    assert sorted(event.segment for event in world.events(3)) == [0, 1, 2]
    assert len(world.of_kind("reader")) == 2, "the rows of the third one are read at its host"


def test_a_task_that_lacks_rows_is_given_again_after_they_were_checked(make):
    world = make().opened()
    world.script = {"writer": [LOAD, LOADED, DONE]}
    assert world.did() == TaskAnswered(0, DONE)
    writer, reader = world.sessions
    assert writer.statements == [TASK, LoadShard(SHARD, reader.pid), TASK]
    assert len(reader.statements) == 1 and ("checked", SHARD, ROWS) in world.log


def test_a_visit_may_begin_while_its_rows_arrive_unless_they_are_few(make):
    world = make(any_trainer=False).opened()
    world.script = {"writer": [LOAD, LOADED, DONE]}
    assert world.did() == TaskAnswered(0, DONE)
    writer, reader = world.sessions
    assert writer.statements == [TASK, LoadShard(SHARD, reader.pid, begin=TASK), TASK]
    assert ("checked", SHARD, ROWS) in world.log


@pytest.mark.parametrize("order", ["an evaluation", "a visit that lacks its sample", "a visit that was tried before"])
def test_nothing_else_begins_while_rows_arrive(make, order):
    """Together, rows on their way and a visit take more memory than one after the other; so a trainer that has died of
    it does not again."""
    world = make(any_trainer=False).opened()
    wanted = ShardName("sample", 0) if "sample" in order else SHARD
    world.script = {"writer": [NeedsRows(wanted, LOAD.reader), LOADED, DONE]}
    visit = replace(TASK, attempt=2) if "tried" in order else TASK
    world.did(Evaluate((1,), (SHARD,)) if order == "an evaluation" else visit)
    assert world.sessions[0].statements[1].begin is None


def test_rows_that_come_without_a_reader_are_checked_too(make):
    world = make(["alpha"]).opened()
    world.script = {"writer": [NeedsRows(SHARD, None), LOADED, DONE]}
    assert world.did() == TaskAnswered(0, DONE)
    assert world.sessions[0].statements[1].reader_pid is None and not world.of_kind("reader")
    assert ("checked", SHARD, ROWS) in world.log


def test_rows_that_are_not_the_runs_end_it_before_the_task_is_given_again(make):
    world = make().opened()
    world.script = {"writer": [LOAD, LOADED]}
    world.shard_error = InvalidParameter("the rows differ")
    with pytest.raises(InvalidParameter, match="the rows differ"):
        world.did()
    assert len(world.sessions[0].statements) == 2


def test_a_reader_that_opens_later_may_log_in(make):
    """The password of the run's role is valid for a minute: it is renewed before the login."""
    world = make(["alpha"]).opened()
    world.log.clear()
    world.script = {"writer": [LOAD, LOADED, DONE]}
    assert world.did() == TaskAnswered(0, DONE)
    assert world.log[0] == "renewed" and len(world.of_kind("reader")) == 1


def test_an_idle_reader_that_was_ended_is_opened_again_when_it_is_needed(make):
    world = make().opened()
    world.of_kind("reader")[0].close()
    world.script = {"writer": [LOAD, LOADED, DONE]}
    assert world.did() == TaskAnswered(0, DONE)
    assert len(world.of_kind("reader")) == 2 and len(world.of_kind("writer")) == 1


@pytest.mark.parametrize("key, cached, n_open", [(5, True, 0), (5, False, 1), (None, True, 1)])
def test_on_greenplum_a_reader_ends_when_the_trainer_keeps_the_rows(make, key, cached, n_open):
    """It has a process at every segment. It is opened again for other rows."""
    world = make(key=key).opened()
    loaded = ShardLoaded({}, replace(ROWS, cached=cached))
    for n_opened in (1, 2 - n_open):
        world.script = {"writer": [LOAD, loaded, DONE]}
        assert world.did() == TaskAnswered(0, DONE)
        readers = world.of_kind("reader")
        assert [sum(not reader.is_closed for reader in readers), len(readers)] == [n_open, n_opened]
    assert world.log.count("renewed") == len(readers), "its password is valid for a minute"


@pytest.mark.parametrize("answer", [Failed({}, "memory"), Died(-9, ""), SqlFailed({})])
def test_a_busy_reader_is_dropped_when_the_writer_cannot_load(make, answer):
    world = make().opened()
    world.script = {"writer": [LOAD, answer], "reader": [NEVER]}
    assert world.did() == TaskAnswered(0, answer)
    assert world.of_kind("reader")[0].is_closed and not world.sessions[0].is_closed
    world.script = {"writer": [LOAD, LOADED, DONE]}
    assert world.did() == TaskAnswered(0, DONE) and len(world.of_kind("reader")) == 2


def test_rows_that_a_trainer_cannot_use_are_named_by_their_table_and_segment(make):
    world = make().opened()
    world.script = {"writer": [LOAD, Failed({"message": "bad"}, "input")]}
    assert world.did() == TaskAnswered(0, Failed({"message": "bad (t, segment 0)"}, "input"))


def test_a_busy_reader_is_dropped_when_the_writers_statement_fails(make):
    world = make().opened()
    world.script = {"writer": [LOAD, FAILED], "reader": [NEVER]}
    assert world.did() == TaskFailed(0, FAILED.error)
    assert world.of_kind("reader")[0].is_closed


def test_a_writer_that_has_loaded_waits_for_the_end_of_its_reader(make):
    world = make().opened()
    world.script = {"writer": [LOAD, UNREAD], "reader": [NEVER]}
    world.segments.begin(0, TASK)
    assert world.segments.wait(0.05) in ([], [Notified()])
    assert world.of_kind("reader")[0].is_busy


def test_the_error_of_a_reader_is_the_tasks_and_the_reader_is_closed(make):
    """On Greenplum its processes at segments may hold the socket."""
    world = make().opened()
    world.script = {"writer": [LOAD, UNREAD], "reader": [FAILED]}
    assert world.did() == TaskFailed(0, FAILED.error)
    assert world.of_kind("reader")[0].is_closed and not world.sessions[0].is_closed


def test_rows_that_did_not_come_are_the_tasks_error_where_the_reader_knows_none(make):
    world = make().opened()
    world.script = {"writer": [LOAD, UNREAD]}
    assert world.did() == TaskFailed(0, {"sqlstate": "57014", "message": "no rows came", "hint": None})


@pytest.mark.parametrize("script", [{"writer": [LOST]}, {"writer": [LOAD, NEVER], "reader": [LOST]}])
def test_a_lost_session_ends_both_before_it_is_reported(make, script):
    """Then the record shows whether the task was committed."""
    world = make().opened()
    pids = [session.pid for session in world.sessions]
    world.script = dict(script)
    assert world.did() == SegmentLost(0)
    assert world.log[-1] == ("ended", pids) and all(session.is_closed for session in world.sessions)
    assert world.events() == [SegmentReady(0)]
    assert world.log[-1] == "renewed" and world.did() == TaskAnswered(0, DONE)


def test_a_lost_writer_is_reported_when_its_process_has_ended(make):
    """Until then it may commit its visit: the driver would take the slot of the new state for an empty one."""
    world = make().opened()
    writer, reader = (session.pid for session in world.sessions)
    world.script, world.not_ended = {"writer": [LOST]}, [[writer, reader], [writer], [reader]]
    assert world.did() == SegmentLost(0)
    assert world.log[-3:] == [("ended", [writer, reader])] * 3 and world.not_ended == []
    assert world.told == [f"segment 0 waits for the end of its lost session {writer}, which may still commit a visit"]


def test_a_lost_writer_whose_process_does_not_end_ends_the_run(make):
    world = make(host_wait_s=-1).opened()
    pid = world.sessions[0].pid
    world.script, world.not_ended = {"writer": [LOST]}, [[pid]]
    with pytest.raises(NotReady, match=f"the lost session {pid} of segment 0 has not ended within -1 s"):
        world.did()


def test_an_idle_writer_that_is_ended_is_noticed(make):
    world = make().opened()
    world.sessions[0].lose()
    assert world.events(2) == [SegmentLost(0), SegmentReady(0)]


def test_a_task_for_a_session_that_has_just_been_lost_is_reported_as_lost(make):
    world = make().opened()
    world.sessions[0].lose()
    assert world.did() == SegmentLost(0)
    assert world.events() == [SegmentReady(0)] and world.did() == TaskAnswered(0, DONE)


def test_a_failed_statement_keeps_the_session(make):
    world = make().opened()
    world.script = {"writer": [FAILED]}
    assert world.did() == TaskFailed(0, FAILED.error)
    assert world.did() == TaskAnswered(0, DONE) and len(world.sessions) == 2


@pytest.mark.parametrize("n_failed, sqlstate, message, error, text", [
    (1, "28P01", "password authentication failed", NotReady, "cannot be opened at 127.0.0.1:5432"),
    (9, "57P03", "the database system is starting up", NotReady, "cannot be opened at 127.0.0.1:5432"),
    (9, "53300", "too many clients already", OutOfResources, "found no free connection at 127.0.0.1:5432"),
])  # fmt: skip
def test_a_segment_that_cannot_be_opened_ends_the_run(make, n_failed, sqlstate, message, error, text):
    world = make(["alpha"])
    world.script = {"connect": [SessionLost(sqlstate, message)] * n_failed}
    with pytest.raises(error, match=f"the sessions of segment 0 {text}") as raised:
        world.segments.open()
        world.events(n_failed)
    assert raised.value.detail == message and world.script["connect"] == []


def test_openings_that_fail_now_and_then_do_not_end_the_run(make):
    world = make(["alpha"])
    world.script = {"connect": [SessionLost("57P03", "the database system is starting up")] * 8}
    world.segments.open()
    assert world.events(9) == [SegmentLost(0)] * 8 + [SegmentReady(0)]


def test_sessions_that_are_lost_again_and_again_end_the_run(make):
    world = make(["alpha"]).opened()
    world.script = {"writer": [LOST] * 101}
    with pytest.raises(NotReady, match="were lost 100 times in a row while it was working"):
        for _ in range(101):
            assert world.did() == SegmentLost(0)
            assert world.events() == [SegmentReady(0)]


@pytest.mark.parametrize("loss", [[HOST], [LOAD, UNREAD]])
def test_a_lost_host_is_asked_until_it_answers(make, loss):
    """An error of class 08 of a reader is the loss of the host of the rows."""
    world = make().opened()
    gone = StatementFailed("08006", "could not connect to server")
    world.script = {"writer": [*loss, HOST, Died(-9, ""), DONE], "reader": [gone]}
    assert world.did() == SegmentLost(0)
    assert world.events() == [SegmentReady(0)]
    assert world.sessions[0].statements[-3:] == [StartTrainer()] * 3
    assert "segment 0 waits for its host" in world.told[0] and "available again after" in world.told[1]
    assert world.did() == TaskAnswered(0, DONE)


@pytest.mark.parametrize("answer, text", [
    (Failed({"sqlstate": "22023", "message": "no such GPU"}, "input"), "no such GPU"),
    (SqlFailed({"sqlstate": "42501", "message": "no right"}), "no right"),
    (FAILED, "permission denied"),
])  # fmt: skip
def test_a_host_that_refuses_the_run_ends_it(make, answer, text):
    world = make().opened()
    world.script = {"writer": [HOST, answer]}
    assert world.did() == SegmentLost(0)
    with pytest.raises(MopError, match=text):
        world.events()


def test_a_host_that_stays_lost_ends_the_run(make):
    world = make(host_wait_s=-1).opened()
    world.script = {"writer": [HOST, HOST]}
    assert world.did() == SegmentLost(0)
    with pytest.raises(NotReady, match="the host of segment 0 was not available again within") as raised:
        world.events()
    assert raised.value.detail == "it is down"


def test_a_host_is_still_waited_for_when_the_session_is_lost_too(make):
    world = make().opened()
    world.script = {"writer": [HOST, LOST, HOST, DONE]}
    assert world.did() == SegmentLost(0)
    assert world.events(2) == [SegmentLost(0), SegmentReady(0)]
    assert world.told[-1].startswith("segment 0 continues") and len(world.of_kind("writer")) == 2


def test_a_pause_ends_the_sessions_and_they_open_again(make):
    world = make().opened()
    pids = [session.pid for session in world.sessions]
    world.segments.pause()
    assert world.log[-1] == ("ended", pids) and all(session.is_closed for session in world.sessions)
    assert world.segments.wait(0.01) in ([], [Notified()])
    world.opened()
    assert world.did() == TaskAnswered(0, DONE) and len(world.sessions) == 4


def test_a_pause_while_a_segment_opens(make):
    world = make()
    world.script = {"connect": [NEVER]}
    world.segments.open()
    while world.script["connect"]:
        assert world.segments.wait(0.01) in ([], [Notified()])
    world.segments.pause()
    assert all(session.is_closed for session in world.sessions)
    world.opened()


def test_a_notification_is_an_event(make):
    world = make().opened()
    world.segments.wait(0.0)
    world.raw.notifies.append("x")
    os.write(world.notifies, b"x")
    assert world.segments.wait(20.0) == [Notified()] and world.raw.notifies == []


@pytest.mark.parametrize("says", [True, False])
def test_the_callers_pipe_ends_the_wait(make, says, monkeypatch):
    reads, writes = os.pipe()
    world = make(stop_fd=reads).opened()
    monkeypatch.setattr(stopping, "_delayed", False)
    monkeypatch.setattr(module, "stop_reason", lambda fd: "canceling statement" if says else stopping.SESSION_ENDED)
    os.close(writes)
    with pytest.raises(Cancelled, match="canceling statement" if says else "terminated or has crashed"):
        world.events()
    assert stopping._delayed, "a SIGTERM that follows does not disturb the end of the run"
    os.close(reads)


def test_an_error_in_a_segment_reaches_the_runs_loop(make, capfd):
    world = make().opened()
    world.script = {"writer": [ZeroDivisionError("a bug")]}
    with pytest.raises(ZeroDivisionError):
        world.did()
    world.segments.close()
    assert capfd.readouterr().err == ""


def test_the_policy_is_evaluated_beside_the_tasks_in_one_session(make):
    world = make().opened()
    world.script = {"writer": [NEVER], "policy": ["[1]", "[2]"]}
    world.segments.begin(0, TASK)
    for rows in ("[1]", "[2]"):
        world.segments.ask_policy(POLICY, "SELECT")
        assert world.events() == [PolicyAnswered(rows)]
    (session,) = world.of_kind("policy")
    assert session.statements == ["EXECUTE policy (7)"] * 2


@pytest.mark.parametrize("script, lost", [
    ({"policy": [FAILED]}, False), ({"policy": [LOST]}, True), ({"connect": [LOST]}, True),
])  # fmt: skip
def test_a_policy_that_fails_is_reported_and_can_be_asked_again(make, script, lost):
    world = make().opened()
    world.script = {key: list(answers) for key, answers in script.items()}
    world.segments.ask_policy(POLICY, "SELECT")
    (event,) = world.events()
    assert isinstance(event, PolicyFailed) and event.lost is lost
    world.script = {"policy": ["[]"]}
    world.segments.ask_policy(POLICY, "SELECT")
    assert world.events() == [PolicyAnswered("[]")] and len(world.of_kind("policy")) == (2 if lost else 1)


def test_a_pause_in_the_middle_of_an_evaluation_does_not_lose_its_result(make):
    """These may be the last metrics of the run."""
    world = make().opened()
    world.script = {"policy": ["[1]"]}
    world.segments.ask_policy(POLICY, "SELECT")
    world.segments.pause()
    assert world.events() == [PolicyAnswered("[1]")]
    assert world.of_kind("policy")[0].is_closed, "a pause leaves no session open"


def test_the_trainers_of_idle_segments_are_left_at_the_end_of_a_run(make):
    world = make([None, None], trainer_idle_s=120)
    world.segments.open()
    world.events(2)
    world.segments.close(releases_trainers=True)
    assert [session.statements for session in world.of_kind("writer")] == [[ReleaseTrainer(120)]] * 2
    assert all(session.is_closed for session in world.sessions)


@pytest.mark.parametrize(("idle_s", "leaves"), [(0, True), (120, False)])
def test_no_trainer_is_left_if_that_is_not_wanted(make, idle_s, leaves):
    world = make(trainer_idle_s=idle_s).opened()
    world.segments.close(releases_trainers=leaves)
    assert world.of_kind("writer")[0].statements == []


@pytest.mark.parametrize("failure", [LOST, StatementFailed("XX000", "no")])
def test_the_end_of_a_run_does_not_depend_on_it(make, failure):
    world = make(trainer_idle_s=120).opened()
    world.script["writer"] = [failure]
    world.segments.close(releases_trainers=True)
    assert world.of_kind("writer")[0].is_closed


def test_the_end_of_a_run_does_not_wait_for_it_for_long(make, monkeypatch):
    monkeypatch.setattr(module, "_RELEASED_WITHIN_S", 0.1)
    world = make(trainer_idle_s=120).opened()
    world.script["writer"] = [NEVER]
    world.segments.close(releases_trainers=True)
    assert world.of_kind("writer")[0].is_closed


def test_the_end_of_its_caller_does_not_change_the_end_of_a_run(make):
    """It has trained everything: the caller's session has closed its pipe meanwhile."""
    read, write = os.pipe()
    world = make(stop_fd=read, trainer_idle_s=120).opened()
    os.close(write)
    world.segments.close(releases_trainers=True)
    assert world.of_kind("writer")[0].statements == [ReleaseTrainer(120)]
    os.close(read)


def test_a_segment_at_work_keeps_its_trainer(make):
    world = make(trainer_idle_s=120).opened()
    world.script["writer"] = [NEVER]
    world.segments.begin(0, TASK)
    world.segments.wait(0.0)
    world.segments.close(releases_trainers=True)
    assert world.of_kind("writer")[0].statements == [TASK]
