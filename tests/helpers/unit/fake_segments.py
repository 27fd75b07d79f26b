"""Segments without a server: a seeded generator chooses which of them answers next, and what goes wrong."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from random import Random

from mop_backend.messages import Answer, Died, Evaluate, Failed, Order, Train
from mop_backend.refusals import STATE_DAMAGED

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


class Fault(Enum):
    """What can happen to a segment instead of an answer."""

    LOST_BEFORE = "lost before"  # the session or the host is lost before the commit
    LOST_AFTER = "lost after"  # the session is lost after the commit: the driver gets no answer
    LOST_IDLE = "lost idle"  # the session is lost between two tasks
    HOST = "host"  # a host with half of the segments is lost; some of their tasks are committed
    KILLED = "killed"  # the trainer dies of SIGKILL
    MEMORY = "memory"  # the trainer has too little memory
    STATEMENT = "statement"  # a statement fails
    STATEMENT_AFTER = "statement after"  # an error follows the commit
    POLICY = "policy"  # the query of the policy fails
    MODEL = "model"  # the model cannot be trained
    DAMAGED = "damaged"  # the model's stored state is damaged


_LOSSES = (Fault.LOST_BEFORE, Fault.LOST_AFTER)
#: What becomes of faults if the task was committed before.
_AFTER_COMMIT = {
    Fault.LOST_BEFORE: Fault.LOST_AFTER, Fault.LOST_AFTER: Fault.LOST_AFTER,
    Fault.STATEMENT: Fault.STATEMENT_AFTER, Fault.STATEMENT_AFTER: Fault.STATEMENT_AFTER,
}  # fmt: skip
_OF_NO_TASK = (Fault.LOST_IDLE, Fault.HOST, Fault.POLICY)
_MEMORY = {"sqlstate": "53200", "message": "not enough memory", "hint": None}
_MODEL = {"sqlstate": "22023", "message": "the loss is not finite", "hint": None}
_DAMAGED = {"sqlstate": "XX001", "message": STATE_DAMAGED, "hint": None}
_STATEMENT = {"sqlstate": "53100", "message": "no space left on device", "hint": None}
_ANSWERS: dict[Fault, Answer] = {
    Fault.KILLED: Died(-9, ""),
    Fault.MEMORY: Failed(_MEMORY, "memory"),
    Fault.MODEL: Failed(_MODEL, "model"),
    Fault.DAMAGED: Failed(_DAMAGED, "model"),
}


class FakeSegments:
    """The segments of a run, see `driver.running.segments.Segments`.

    Parameters
    ----------
    segments : sequence of int
    do : callable
        Completes an order as a writer does, with what it commits, and returns the answer.
    chance : Random
    faults : mapping of Fault to float
        The probability of each fault, for each task that ends, or for each wait of a segment without a task.
    between : callable
        Called at each wait, before the events: what other sessions do, such as commands of people.
    policy : callable
        Returns the result of the policy's query, at the moment.

    Attributes
    ----------
    early : float
        The probability that a visit is committed at a wait, and the driver gets the answer at a later one.
    is_woken : bool
        Whether something was committed of which the driver is notified.
    has_news : bool
        Whether the policy was not asked since the last metrics on the sample, and no evaluation of it is in progress.
    """

    early = 0.0

    most_waits = 5_000

    def __init__(
        self,
        segments: Sequence[int],
        do: Callable[[Order], Answer],
        chance: Random,
        faults: Mapping[Fault, float] | None = None,
        between: Callable[[], None] = lambda: None,
        policy: Callable[[], object] = lambda: "[]",
    ):
        self._segments, self._do, self._chance, self._between = segments, do, chance, between
        self._policy = policy
        self.faults = dict(faults or {})
        self._opening: set[int] = set()
        self._ready: set[int] = set()
        self._orders: dict[int, Order] = {}
        self._committed: dict[int, Answer] = {}  # the driver has no answer yet
        self.is_woken = self._has_news = False
        self._policies: list[PolicyPlan] = []
        self.n_waits = 0
        self.has_notified = False  # at the end of the last wait
        self.is_closed = False

    @property
    def has_task(self) -> bool:
        """Whether a task is in flight."""
        return bool(self._orders)

    @property
    def has_news(self) -> bool:
        return self._has_news and not self._policies

    @property
    def orders(self) -> list[Order]:
        """The orders in flight."""
        return list(self._orders.values())

    @property
    def unread(self) -> list[int]:
        """The models whose visit is committed, but not answered."""
        orders = [self._orders[segment] for segment in self._committed]
        return [write.mst_key for order in orders for write in order.members if write is not None]

    def open(self) -> None:
        assert not self._opening and not self._ready, "they are opened once, and after each pause"
        self._opening = set(self._segments)

    def begin(self, segment: int, order: Order) -> None:
        assert segment in self._ready and segment not in self._orders, "a segment that is ready has one task at a time"
        if isinstance(order, Train | Evaluate):
            assert any(member is not None for member in order.members), "a task is about some model"
        self._orders[segment] = order

    def ask_policy(self, plan: PolicyPlan, query: str) -> None:
        self._policies.append(plan)
        self._has_news = False

    def wait(self, at_most_s: float) -> list[SegmentEvent]:
        self.n_waits += 1
        assert self.n_waits < self.most_waits, "the run does not end"
        self._between()
        idle = self._ready - self._orders.keys()
        events: list[SegmentEvent] = [self._lose(s) for s in sorted(idle) if self._happens(Fault.LOST_IDLE)]
        if self._happens(Fault.HOST):
            at_host = {s for s in self._segments if s % 2} & self._ready
            self._commit_some(at_host)
            events += [self._lose(segment) for segment in sorted(at_host)]
        acting = sorted({*self._opening, *self._orders} - {event.segment for event in events})
        for segment in self._chance.sample(acting, self._chance.randint(0, len(acting))):
            events.append(self._open(segment) if segment in self._opening else self._end(segment))
        if self._policies and self._chance.random() < 0.3:
            self._policies.pop()
            fails = self._happens(Fault.POLICY)
            events.append(PolicyFailed("22012", "division by zero", False) if fails else PolicyAnswered(self._policy()))
        self._commit_early()
        self.has_notified = not events or self._chance.random() < (0.7 if self.is_woken else 0.1)
        if self.has_notified:
            self.is_woken = False
            events.insert(self._chance.randint(0, len(events)), Notified())
        return events

    def pause(self) -> None:
        assert not self._orders, "a pause waits for the tasks"
        self._opening, self._ready = set(), set()

    def close(self) -> None:
        self.is_closed = True

    def orphan(self) -> None:
        """End without the driver, which has died: some of the tasks are committed."""
        self._commit_some(self._orders)

    def _commit_some(self, segments: Iterable[int]) -> None:
        """End the tasks of some segments without an answer: some of them are committed."""
        for segment in sorted(self._orders.keys() & segments):
            order = self._orders.pop(segment)
            if self._committed.pop(segment, None) is None and self._chance.random() < 0.5:
                self._do(order)

    def _commit_early(self) -> None:
        for segment in sorted(self._orders.keys() - self._committed.keys()) if self.early else ():
            order = self._orders[segment]
            if isinstance(order, Train) and self._chance.random() < self.early:
                self._committed[segment] = self._do(order)

    def _open(self, segment: int) -> SegmentReady:
        self._opening.remove(segment)
        self._ready.add(segment)
        return SegmentReady(segment)

    def _lose(self, segment: int) -> SegmentLost:
        self._ready.remove(segment)
        self._opening.add(segment)
        return SegmentLost(segment)

    def _end(self, segment: int) -> SegmentEvent:
        order, answer = self._orders.pop(segment), self._committed.pop(segment, None)
        fault = next((f for f in Fault if f not in _OF_NO_TASK and self._happens(f)), None)
        if answer is not None and fault is not None:
            fault = _AFTER_COMMIT.get(fault)
        elif fault in _AFTER_COMMIT.values():
            answer = self._do(order)
        if fault in _LOSSES:
            return self._lose(segment)
        if fault in (Fault.STATEMENT, Fault.STATEMENT_AFTER):
            return TaskFailed(segment, _STATEMENT)
        if fault is not None:
            return TaskAnswered(segment, _ANSWERS[fault])
        answer = self._do(order) if answer is None else answer
        if isinstance(order, Train) and order.sample is not None and answer.committed:
            self._has_news = True
        return TaskAnswered(segment, answer)

    def _happens(self, fault: Fault) -> bool:
        return self._chance.random() < self.faults.get(fault, 0.0)
