"""Segments without a server or a clock: a seeded generator chooses which of them answers next, and what goes wrong.

For tests of one promise. Those of all promises at once, with commits at any moment: `simulated_segments`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from random import Random

from mop_backend.messages import Answer, Died, Evaluate, Failed, Order, Train
from mop_backend.refusals import STATE_DAMAGED

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.running.segments import (
    Notified,
    PolicyAnswered,
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
    KILLED = "killed"  # the trainer dies of SIGKILL
    MEMORY = "memory"  # the trainer has too little memory
    STATEMENT = "statement"  # a statement fails
    # those that only `simulated_segments` has
    LOST_LATER = "lost later"  # the session is lost some seconds later, whatever it does then
    LOST_OPENING = "lost opening"  # the session is lost while it is opened
    HOST = "host"  # a host with half of the segments is lost
    LATE = "late"  # the answer comes late
    DOUBLED = "doubled"  # the order is carried out twice, and the second answer comes
    STATEMENT_AFTER = "statement after"  # an error follows the commit
    MODEL = "model"  # the model cannot be trained
    DAMAGED = "damaged"  # the model's stored state is damaged
    POLICY = "policy"  # the query of the policy fails
    ORPHANED = "orphaned"  # the host has committed a state, and the writer is lost before it commits the visit
    FORGOTTEN = "forgotten"  # a lost host comes back with the states that it had some seconds before, or with none


_OF_TASK = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.KILLED, Fault.MEMORY, Fault.STATEMENT)
_MEMORY = {"sqlstate": "53200", "message": "not enough memory", "hint": None}
_MODEL = {"sqlstate": "22023", "message": "the loss is not finite", "hint": None}
_DAMAGED = {"sqlstate": "XX001", "message": STATE_DAMAGED, "hint": None}
STATEMENT_ERROR = {"sqlstate": "53100", "message": "no space left on device", "hint": None}
#: The answers of a writer that has committed nothing.
ANSWERS: dict[Fault, Answer] = {
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
    is_woken : bool
        Whether something was committed of which the driver is notified.
    """

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
        self.is_woken = False
        self._policies: list[PolicyPlan] = []
        self.n_waits = 0

    @property
    def orders(self) -> list[Order]:
        """The orders in flight."""
        return list(self._orders.values())

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

    def wait(self, at_most_s: float) -> list[SegmentEvent]:
        self.n_waits += 1
        assert self.n_waits < self.most_waits, "the run does not end"
        self._between()
        idle = self._ready - self._orders.keys()
        events: list[SegmentEvent] = [self._lose(s) for s in sorted(idle) if self._happens(Fault.LOST_IDLE)]
        acting = sorted({*self._opening, *self._orders} - {event.segment for event in events})
        for segment in self._chance.sample(acting, self._chance.randint(0, len(acting))):
            events.append(self._open(segment) if segment in self._opening else self._end(segment))
        if self._policies and self._chance.random() < 0.3:
            self._policies.pop()
            events.append(PolicyAnswered(self._policy()))
        if not events or self._chance.random() < (0.7 if self.is_woken else 0.1):
            self.is_woken = False
            events.insert(self._chance.randint(0, len(events)), Notified())
        return events

    def pause(self) -> None:
        assert not self._orders, "a pause waits for the tasks"
        self._opening, self._ready = set(), set()

    def close(self, releases_trainers: bool = False) -> None:
        """Do nothing: nothing happens between two waits."""

    def orphan(self) -> None:
        """End without the driver, which has died: some of the tasks are committed."""
        for segment in sorted(self._orders):
            order = self._orders.pop(segment)
            if self._chance.random() < 0.5:
                self._do(order)

    def _open(self, segment: int) -> SegmentReady:
        self._opening.remove(segment)
        self._ready.add(segment)
        return SegmentReady(segment)

    def _lose(self, segment: int) -> SegmentLost:
        self._ready.remove(segment)
        self._opening.add(segment)
        return SegmentLost(segment)

    def _end(self, segment: int) -> SegmentEvent:
        order = self._orders.pop(segment)
        fault = next((fault for fault in _OF_TASK if self._happens(fault)), None)
        if fault is Fault.LOST_BEFORE:
            return self._lose(segment)
        if fault is Fault.STATEMENT:
            return TaskFailed(segment, STATEMENT_ERROR)
        if fault in ANSWERS:
            return TaskAnswered(segment, ANSWERS[fault])
        answer = self._do(order)
        return self._lose(segment) if fault is Fault.LOST_AFTER else TaskAnswered(segment, answer)

    def _happens(self, fault: Fault) -> bool:
        return self._chance.random() < self.faults.get(fault, 0.0)
