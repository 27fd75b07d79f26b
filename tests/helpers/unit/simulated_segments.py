"""Segments in simulated time: sessions, messages and hosts of their own, of which each can be lost at any moment.

Between two waits of the driver, and between two of its statements, writers go on and commit. What happens depends on a
seed and on the name of each event alone, so one event can be left out and the others stay (`histories.shrink`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from mop_backend.messages import (
    Answer,
    AverageStates,
    Evaluate,
    Order,
    StateAway,
    StateGone,
    StateWrite,
    Train,
    VisitsCommitted,
)

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.running.segments import (
    Notified,
    PolicyAnswered,
    PolicyFailed,
    SegmentEvent,
    SegmentLost,
    SegmentReady,
    TaskAnswered,
    TaskFailed,
)
from tests.helpers.unit.fake_segments import ANSWERS, STATEMENT_ERROR, Fault
from tests.helpers.unit.memory_record import MemoryRecord

_CONFLICT = {"sqlstate": "40001", "message": "another visit was committed first", "hint": None}
_N_HOSTS = 2
_SENT_S = 0.005  # a message
_TICK_S = 1.0
_HOST_EVERY_S = 3.0
_VISIT_S = (0.3, 4.0)  # the shortest and the longest one
_EVALUATION_S = (0.05, 1.0)
#: The faults of a task; the first one that happens counts.
_OF_TASK = (
    Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LOST_LATER, Fault.DOUBLED, Fault.LATE, Fault.KILLED, Fault.MEMORY,
    Fault.STATEMENT, Fault.STATEMENT_AFTER, Fault.MODEL, Fault.DAMAGED,
)  # fmt: skip


class World:
    """What the drivers of a run share: the time, what happens, and the log of it.

    Parameters
    ----------
    seed : int or str
    left_out : collection of str
        The names of events that do not happen.
    """

    def __init__(self, seed: int | str, left_out: Collection[str] = ()):
        self.now = 0.0
        self.log: list[str] = []
        self.happened: list[str] = []
        self.left_out = frozenset(left_out)
        self.lost_hosts: set[int] = set()
        self._seed = seed
        self._counts = Counter[str]()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._n_actions = 0

    def happens(self, what: str, probability: float) -> bool:
        """Decide whether something happens, and log it."""
        if not probability or self._number(what) >= probability:
            return False
        name = f"{what} #{self._counts[what]}"
        return self.named(name)

    def named(self, name: str) -> bool:
        """Note an event; return whether it happens."""
        self.happened.append(name)
        if name in self.left_out:
            return False
        self.say(f"! {name}")
        return True

    def seconds(self, what: str, least: float, most: float) -> float:
        """Return how long something takes."""
        return least + (most - least) * self._number(what)

    def _number(self, what: str) -> float:
        """Return a number from 0 to 1 that depends on the seed, on what it is for, and how often it was asked for."""
        self._counts[what] += 1
        name = f"{self._seed} {what} {self._counts[what]}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()) / (1 << 56)

    def say(self, text: str) -> None:
        """Add a line to the log."""
        self.log.append(f"{self.now:9.3f} s  {text}")

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._n_actions += 1
        heappush(self._queue, (self.now + seconds, self._n_actions, action))

    def next_s(self) -> float:
        """Return the seconds until something is to be done."""
        return self._queue[0][0] - self.now if self._queue else float("inf")

    def step(self) -> None:
        """Let time pass until the next thing is done."""
        at, _, action = heappop(self._queue)
        self.now = max(self.now, at)
        action()

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is to be done meanwhile is done."""
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            self.step()
        self.now = max(self.now, until)


@dataclass(eq=False)
class _Session:
    """The sessions of a segment, from one opening to the next.

    Attributes
    ----------
    is_lost : bool
        Whether the driver gets nothing from it any more.
    is_ended : bool
        Whether its process has ended; what it has not committed by then is gone.
    answer : Answer or None
        Of a task that is committed, and not answered.
    """

    segment: int
    is_ready: bool = False
    is_lost: bool = False
    is_ended: bool = False
    order: Order | None = None
    fault: Fault | None = None
    answer: Answer | None = None

    def end(self) -> None:
        """End its process."""
        self.is_ended = True


class SimulatedSegments:
    """The segments of a run; see `driver.running.segments.Segments`.

    Parameters
    ----------
    segments : sequence of int
    record : MemoryRecord
        To which the writers commit.
    world : World
    faults : mapping of Fault to float
        The probability of each: for each task; of losing an idle segment, each time that it is ready; of losing one
        that opens; of losing a host, every three seconds.
    between : callable
        Called at each wait, before the events.
    policy : callable
        Returns the result of the policy's query, at the moment.
    """

    most_waits = 20_000

    def __init__(
        self,
        segments: Sequence[int],
        record: MemoryRecord,
        world: World,
        faults: Mapping[Fault, float],
        between: Callable[[], None],
        policy: Callable[[], object],
    ):
        self._segments, self._record, self._world, self._faults = segments, record, world, faults
        self._between, self._policy = between, policy
        self._sessions: dict[int, _Session] = {}
        self._events: list[SegmentEvent] = []
        self._n_policies = 0
        self._has_driver = True
        record.holds_at_commit = False
        self._before: dict[int, dict[tuple[int, int], str]] = {}  # what each host held some seconds ago
        self.is_woken = self._has_news = self._was_sampled = False
        self.n_waits = 0
        self.has_notified = False
        if faults.get(Fault.HOST):
            world.after(_HOST_EVERY_S, self._may_lose_host)

    @property
    def has_task(self) -> bool:
        """Whether a task is in flight."""
        return bool(self.orders)

    @property
    def has_news(self) -> bool:
        """Whether the policy was not asked since the last metrics on the sample, and no evaluation is in progress."""
        return self._has_news and not self._n_policies

    @property
    def orders(self) -> list[Order]:
        """The orders in flight."""
        return [session.order for session in self._sessions.values() if session.order is not None]

    @property
    def unread(self) -> list[int]:
        """The models whose visit is committed, but not answered."""
        orders = [session.order for session in self._sessions.values() if session.answer is not None]
        return [write.mst_key for order in orders if isinstance(order, Train) for write in _writes_of(order)]

    # the driver's side

    def open(self) -> None:
        assert not self._sessions, "they are opened once, and after each pause"
        for segment in self._segments:
            self._open(segment)

    def begin(self, segment: int, order: Order) -> None:
        session = self._sessions[segment]
        assert session.is_ready and session.order is None, "a segment that is ready has one task at a time"
        if isinstance(order, Train | Evaluate):
            assert any(member is not None for member in order.members), "a task is about some model"
        session.order = order
        self._world.say(f"segment {segment}: {_text_of(order)} begins")
        self._world.after(_SENT_S, lambda: self._arrives(session))  # or it was lost, which `wait` will report

    def ask_policy(self, plan: PolicyPlan, query: str) -> None:
        self._n_policies += 1
        self._has_news = False
        self._world.after(self._world.seconds("policy", 0.05, 3.0), self._answer_policy)

    def wait(self, at_most_s: float) -> list[SegmentEvent]:
        self.n_waits += 1
        assert self.n_waits < self.most_waits, "the run does not end"
        self._between()
        tick_at = self._world.now + _TICK_S
        while not self._events and self._world.now + self._world.next_s() <= tick_at:
            self._world.step()
        is_tick = not self._events
        if is_tick:
            self._world.pass_time(tick_at - self._world.now)
        else:
            self._world.pass_time(self._world.seconds("driver wakes up", 0.0, 0.3))
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, SegmentLost):
                self._open(event.segment)
            self._n_policies -= isinstance(event, PolicyAnswered | PolicyFailed)
        self._has_news, self._was_sampled = self._has_news or self._was_sampled, False
        self.has_notified = is_tick or (self.is_woken and self._world.seconds("notification", 0.0, 1.0) < 0.7)
        if self.has_notified:
            self.is_woken = False
            events.append(Notified())
        return events

    def fetch(self, model: ModelRow) -> list[bytes] | StateAway | StateGone | None:
        self._world.pass_time(self._world.seconds("fetch", 0.0, 0.5))
        if self._world.seconds("fetch takes longer", 0.0, 1.0) < 0.2:
            return None
        assert model.state_server is not None, "a host holds it"
        missing = self._missing({model.mst_key: (model.state_version, model.digest, model.state_server)})
        return [b"state"] if missing is None else missing

    def forget_fetch(self, mst_key: int) -> None:
        """Nothing is on its way after a call of `fetch`."""

    def sweep(self, servers: Collection[str]) -> None:
        assert not self.has_task, "no writer is at work"
        for server in servers:
            if int(server[-1]) not in self._world.lost_hosts:
                named = [copy for copy in self._record.state_copies(1) if copy.server == server]
                kept = {(copy.mst_key, copy.version): copy.digest for copy in named}
                held = self._record.held[server]
                self._record.held[server] = {place: d for place, d in held.items() if kept.get(place) == d}

    def _missing(self, states: Mapping[int, tuple[int, str | None, str | None]]) -> StateAway | StateGone | None:
        """Return which of some states cannot be had: of each model, its version, digest and server."""
        for key, (version, digest, server) in states.items():
            if server is None:
                continue
            if int(server[-1]) in self._world.lost_hosts:
                return StateAway(server, "the host is away")
            if self._record.held[server].get((key, version)) != digest:
                self._world.say(f"{server} has no version {version} of {key}")
                return StateGone(server, (key,))
        return None

    def pause(self) -> None:
        assert not self.has_task, "a pause waits for the tasks"
        self._end_sessions()
        self._events = [event for event in self._events if isinstance(event, PolicyAnswered | PolicyFailed)]

    def close(self, releases_trainers: bool = False) -> None:
        self.orphan()

    # after the driver

    def orphan(self) -> None:
        """Go on without the driver, which has died: each writer ends when it notices that."""
        self._has_driver = False
        self._world.say("the driver has ended")
        for session in self._sessions.values():
            self._world.after(self._world.seconds("notices", 0.0, 2.0), session.end)
        self._world.pass_time(self._world.seconds("nobody drives", 0.0, 3.0))

    def end_writers(self) -> None:
        """End the writers before the next driver begins."""
        self._has_driver = False
        self._end_sessions()

    def _end_sessions(self) -> None:
        for session in self._sessions.values():
            session.is_lost = True
            session.end()
        self._sessions.clear()

    # sessions

    def _emit(self, event: SegmentEvent) -> None:
        if self._has_driver:
            self._events.append(event)

    def _open(self, segment: int) -> None:
        session = self._sessions[segment] = _Session(segment)
        self._world.after(self._world.seconds(f"opening {segment}", 0.1, 2.0), lambda: self._opened(session))

    def _opened(self, session: _Session) -> None:
        segment = session.segment
        if session.is_lost:
            return
        if _host_of(segment) in self._world.lost_hosts:
            self._world.after(0.5, lambda: self._opened(session))
        elif self._happens(Fault.LOST_OPENING, f"segment {segment}"):
            self._lose(session)
        else:
            session.is_ready = True
            self._emit(SegmentReady(segment))
            if self._happens(Fault.LOST_IDLE, f"segment {segment}"):
                self._world.after(self._world.seconds("idle", 0.0, 5.0), lambda: self._lose_idle(session))

    def _lose_idle(self, session: _Session) -> None:
        if session.order is None:
            self._lose(session)

    def _lose(self, session: _Session) -> None:
        """Lose a session: the driver is told of that when its process has ended."""
        if session.is_lost:
            return
        session.is_lost = True
        session.end()
        self._world.say(f"segment {session.segment}: is lost")
        self._emit(SegmentLost(session.segment))  # `wait` opens it again

    # tasks

    def _happens(self, fault: Fault, where: str) -> bool:
        return self._world.happens(f"{fault.value}, {where}", self._faults.get(fault, 0.0))

    def _arrives(self, session: _Session) -> None:
        if session.is_ended:
            return
        order = session.order
        assert order is not None, "it has arrived"
        text, segment = _text_of(order), session.segment
        fault = session.fault = next((fault for fault in _OF_TASK if self._happens(fault, text)), None)
        seconds = self._world.seconds(f"fault, {text}", 0.0, 6.0)
        if fault in ANSWERS:
            self._world.after(seconds, lambda: self._ends(session, TaskAnswered(segment, ANSWERS[fault])))
        elif fault is Fault.STATEMENT:
            self._world.after(seconds, lambda: self._ends(session, TaskFailed(segment, STATEMENT_ERROR)))
        else:
            if fault in (Fault.LOST_BEFORE, Fault.LOST_LATER):
                self._world.after(seconds, lambda: self._lose(session))
            if fault is not Fault.LOST_BEFORE:
                self._work(session)

    def _work(self, session: _Session) -> None:
        """Read what a task needs, and compute."""
        order = session.order
        assert order is not None, "it has one"
        server = None
        if isinstance(order, Train | Evaluate) and self._record.held:
            server = self._record.server_of(session.segment)
            missing = self._missing(self._needed(order))
            if missing is not None:
                self._world.after(_SENT_S, lambda: self._ends(session, TaskAnswered(session.segment, missing)))
                return
        if isinstance(order, Train | AverageStates):
            if server is not None:
                self._record.let_go(server)
            seen = [self._record.rows[write.mst_key] for write in _writes_of(order)]
            seconds = self._world.seconds(f"computes, {_text_of(order)}", *_VISIT_S)
            if isinstance(order, Train) and all(write.slot is None for write in _writes_of(order)):
                assert server is not None, "states stay at hosts only"
                self._world.after(seconds, lambda: self._holds(session, seen, server))
            else:
                self._world.after(seconds, lambda: self._commits(session, seen))
        else:
            answer = self._record.do(order)  # of the states of now: an evaluation writes nothing
            seconds = self._world.seconds(f"computes, {_text_of(order)}", *_EVALUATION_S)
            self._world.after(seconds, lambda: self._answers(session, answer))

    def _needed(self, order: Train | Evaluate) -> dict[int, tuple[int, str | None, str | None]]:
        """Return the states that a task begins with: of each model, version, digest and server."""
        again_from = order.again_from if isinstance(order, Train) else None
        members = [member for member in order.members if member is not None]
        keys = [member.mst_key if isinstance(member, StateWrite) else member for member in members]
        found = {}
        for key in keys:
            model = self._record.rows[key]
            if again_from is not None:
                found[key] = again_from, *self._record.state_at(model, again_from)
            else:
                found[key] = model.state_version, model.digest, model.state_server
        return found

    def _holds(self, session: _Session, seen: Sequence[ModelRow], server: str) -> None:
        """Commit new states at the segment's host, some time before the visit."""
        order = session.order
        if session.is_ended:
            return
        if int(server[-1]) in self._world.lost_hosts:
            self._lose(session)
            return
        assert isinstance(order, Train), "others make no states there"
        if self._is_refused(order, seen):
            self._commits(session, seen)
            return
        for write in _writes_of(order):
            self._record.held[server][write.mst_key, write.version] = self._record.digest_after(order, write.mst_key)
        self._world.say(f"{server}: {_text_of(order)} is held")
        if self._happens(Fault.ORPHANED, _text_of(order)):
            self._world.after(self._world.seconds("orphaned", 0.0, 3.0), lambda: self._lose(session))
        else:
            seconds = self._world.seconds("between the commits", 0.0, 0.5)
            self._world.after(seconds, lambda: self._commits(session, seen))

    def _commits(self, session: _Session, seen: Sequence[ModelRow]) -> None:
        """Commit a visit or an average, if nobody else has done so since its models were read."""
        order = session.order
        if session.is_ended:
            return
        assert isinstance(order, Train | AverageStates), "others commit nothing"
        if self._is_refused(order, seen):
            self._world.say(f"segment {session.segment}: {_text_of(order)} is refused")
            self._world.after(_SENT_S, lambda: self._ends(session, TaskFailed(session.segment, _CONFLICT)))
            return
        session.answer = self._record.do(order)
        self._world.say(f"segment {session.segment}: {_text_of(order)} is committed")
        if session.fault is Fault.DOUBLED:
            session.fault = None
            self._work(session)
        else:
            self._answers(session, session.answer)

    def _is_refused(self, order: Train | AverageStates, seen: Sequence[ModelRow]) -> bool:
        """Return whether a commit fails, as `keep_visit` of sql/24-writer.sql does."""
        if isinstance(order, AverageStates):
            return self._record.rows[order.write.mst_key].state_version != order.write.version - 1
        if order.again_from is not None:
            (write,) = _writes_of(order)
            model = self._record.rows[write.mst_key]
            home = -1 if model.home_state is None else model.home_state.version
            if model.state_server is None or home >= write.version:  # it has been fetched meanwhile
                return True
            visit = self._record.visit(1, write.mst_key, order.epoch, order.shard.segment_id)
            return visit is None or visit.digest_out != self._record.digest_after(order, write.mst_key)
        place = order.epoch, order.shard.segment_id, order.position
        return any(
            (now.state_version, now.digest) != (model.state_version, model.digest)
            or self._record.has_visit(model.mst_key, *place)
            for model, now in ((model, self._record.rows[model.mst_key]) for model in seen)
        )

    def _answers(self, session: _Session, answer: Answer) -> None:
        """Send the answer of a task that is done, unless something goes wrong."""
        segment, order, fault = session.segment, session.order, session.fault
        event: SegmentEvent = TaskAnswered(segment, answer)
        seconds = _SENT_S
        if fault is Fault.LOST_AFTER:
            self._world.after(self._world.seconds("lost after", 0.0, 6.0), lambda: self._lose(session))
            return
        if fault is Fault.STATEMENT_AFTER:
            event = TaskFailed(segment, STATEMENT_ERROR)
        elif fault is Fault.LATE and order is not None:
            seconds = self._world.seconds(f"late, {_text_of(order)}", 1.0, 20.0)
        self._world.after(seconds, lambda: self._ends(session, event))

    def _ends(self, session: _Session, event: TaskAnswered | TaskFailed) -> None:
        """Tell the driver how a task has ended."""
        if session.is_lost or session.is_ended:
            return
        if isinstance(session.order, Train) and session.order.sample is not None and isinstance(event, TaskAnswered):
            self._was_sampled |= isinstance(event.answer, VisitsCommitted) and bool(event.answer.committed)
        session.order = session.answer = None
        self._emit(event)

    # hosts and the policy

    def _may_lose_host(self) -> None:
        """Lose a host sometimes, with the tasks of its segments that are not committed; it comes back."""
        if not self._has_driver:
            return
        self._world.after(_HOST_EVERY_S, self._may_lose_host)
        now = {int(server[-1]): dict(held) for server, held in self._record.held.items()}
        for host in sorted(set(range(_N_HOSTS)) - self._world.lost_hosts):
            if self._happens(Fault.HOST, f"host {host}"):
                self._world.lost_hosts.add(host)
                if self._record.held and self._happens(Fault.FORGOTTEN, f"host {host}"):
                    old = self._before.get(host, {}) if self._world.seconds("forgets", 0.0, 1.0) < 0.5 else {}
                    self._record.held[f"host{host}"] = dict(old)
                seconds = self._world.seconds(f"host {host} is away", 0.5, 20.0)
                self._world.after(seconds, lambda host=host: self._host_back(host))
                for session in list(self._sessions.values()):
                    if _host_of(session.segment) == host and session.answer is None:
                        self._lose(session)
        self._before = now

    def _host_back(self, host: int) -> None:
        self._world.lost_hosts.discard(host)
        self._world.say(f"host {host} is back")

    def _answer_policy(self) -> None:
        fails = self._happens(Fault.POLICY, "policy")
        self._emit(PolicyFailed("22012", "division by zero", False) if fails else PolicyAnswered(self._policy()))


def _host_of(segment: int) -> int:
    return segment % _N_HOSTS


def _writes_of(order: Train | AverageStates) -> list[StateWrite]:
    """Return the states that a task writes."""
    members = order.members if isinstance(order, Train) else (order.write,)
    return [write for write in members if write is not None]


def _text_of(order: Order) -> str:
    """Return an order in words, the same for each attempt."""
    match order:
        case Train():
            keys = ", ".join(str(write.mst_key) for write in _writes_of(order))
            return f"visit of {keys} to shard {order.shard.segment_id} (epoch {order.epoch}, position {order.position})"
        case Evaluate(members=members):
            return f"evaluation of {', '.join(str(key) for key in members if key is not None)}"
    return type(order).__name__
