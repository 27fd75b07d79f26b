"""The segments of a run, as the loop over its tasks sees them: it gives them orders, and waits for events.

`segment_sessions.SegmentSessions` implements it with sessions of the server; unit tests, with a fake.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from mop_backend.frames import Header
from mop_backend.messages import Answer, Order, StateAway, StateGone

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import PolicyPlan


@dataclass(frozen=True)
class SegmentReady:
    """A segment can begin a task: its sessions are open, or its host is available again."""

    segment: int


@dataclass(frozen=True)
class TaskAnswered:
    """A task has ended, with the writer's answer."""

    segment: int
    answer: Answer


@dataclass(frozen=True)
class TaskFailed:
    """A statement of a task failed; ``error`` has its ``sqlstate``, ``message`` and ``hint``."""

    segment: int
    error: Header


@dataclass(frozen=True)
class SegmentLost:
    """A segment has lost its sessions or its host, with its task, if it had one; `SegmentReady` follows.

    Its backend, or its trainer at the host, has ended, so a read of the record shows whether the task was committed.
    """

    segment: int


@dataclass(frozen=True)
class Notified:
    """The run may have been cancelled, or may have commands: a notification came, or a second has passed."""


@dataclass(frozen=True)
class PolicyAnswered:
    """The policy was evaluated; ``rows`` is a JSON array."""

    rows: object


@dataclass(frozen=True)
class PolicyFailed:
    """The evaluation of the policy failed; ``lost`` is set if its session has ended too."""

    sqlstate: str | None
    message: str
    lost: bool


SegmentEvent = SegmentReady | TaskAnswered | TaskFailed | SegmentLost | Notified | PolicyAnswered | PolicyFailed


class Segments(Protocol):
    """The segments of a run."""

    def open(self) -> None:
        """Start to open all segments, at the start of a run and after a pause; each reports `SegmentReady`.

        Raises
        ------
        Cancelled, MopError
            As `wait` does.
        """

    def begin(self, segment: int, order: Order) -> None:
        """Give a task to a segment that is ready and has none.

        Exactly one of `TaskAnswered`, `TaskFailed` and `SegmentLost` follows, unless `pause` or `close` comes first.
        """

    def ask_policy(self, plan: PolicyPlan, query: str) -> None:
        """Evaluate a query beside the tasks; `PolicyAnswered` or `PolicyFailed` follows, also during a pause."""

    def wait(self, at_most_s: float) -> list[SegmentEvent]:
        """Wait for the next events, for at most a second; return those that have come, in their order.

        Raises
        ------
        Cancelled
            If the caller's session wants the run to stop.
        MopError
            If the run cannot go on: a segment stays lost, or its rows or the libraries' versions are not the run's.
        """

    def fetch(self, model: ModelRow) -> list[bytes] | StateAway | StateGone | None:
        """Return the parts of a model's newest state, which a host holds, or why that is not possible now; None: ask
        again later."""

    def forget_fetch(self, mst_key: int) -> None:
        """Take no answer about a model's state that was asked for before: the state is lost, and made again."""

    def sweep(self, servers: Collection[str]) -> None:
        """Let hosts let go of all states of the run that the record does not name, and of those of runs that are over;
        no segment may have a task. A host that cannot be reached is left out."""

    def pause(self) -> None:
        """End all sessions, until `open`; no segment may have a task."""

    def close(self, releases_trainers: bool = False) -> None:
        """End all sessions for good; trainers can be released to a later run if none has a task."""
