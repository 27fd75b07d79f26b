"""The states of a run that hosts hold, as its driver sees them: models that wait for a host, and states that are lost.

Used by `hopper`. The record alone says which state is a model's; where a state is says the record too, but a host can
be away, or have lost it. A model whose state is away starts no task until the host is back. A state that is lost is
made again: from the newest one that is left, each recorded visit since is repeated where it was made, outside the
schedule, and must have the recorded result. So no visit, no metric and no decision changes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mop_backend.messages import StateAway, StateGone

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow, StateCopyRow
from madlib_mop.catalog.rows.run import RunRow, VisitRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.running.segments import Segments
from madlib_mop.errors import NotReady
from madlib_mop.schedule import Scheduler, Unit

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_MOST_LOST = 20
_FETCHED = "fetched"
_FORGOTTEN_S = 30.0  # after a longer pause between two tries, a wait begins anew


@dataclass(frozen=True)
class Again:
    """A recorded visit that is to be made again.

    Attributes
    ----------
    mst_key : int
    visit : VisitRow
    version : int
        Of the state that it makes.
    from_version : int
        Of the state that it begins with.
    """

    mst_key: int
    visit: VisitRow
    version: int
    from_version: int


@dataclass
class _Wait:
    """A wait for a host: since when, when it was tried last, and when it is tried again."""

    since: float
    tried_at: float
    server: str = ""
    pause_s: float = _FIRST_PAUSE_S / 2
    retry_at: float = 0.0


class StatesAtHosts:
    """The states of a run that hosts hold.

    Parameters
    ----------
    record : Record
    run : RunRow
    scheduler : Scheduler
    slots : StateSlots
    unit_of : callable
        Returns the unit of a model.
    segments : Segments
    tell : callable
        Called with a sentence for the caller.
    """

    def __init__(
        self,
        record: Record,
        run: RunRow,
        scheduler: Scheduler,
        slots: StateSlots,
        unit_of: Callable[[int], Unit],
        segments: Segments,
        tell: Callable[[str], None],
    ):
        self._record, self._run, self._scheduler, self._slots = record, run, scheduler, slots
        self._unit_of, self._segments, self._tell = unit_of, segments, tell
        self._servers = {shard.segment_id: shard.server for shard in run.plan.training.segments}
        self._waits: dict[int, _Wait] = {}  # by mst_key
        self._again: dict[int, list[Again]] = defaultdict(list)  # by segment
        self._lost: set[int] = set()  # models whose state is being made again
        self._n_lost = Counter[tuple[int, int]]()  # how often hosts have lost a version of a model
        self._queued: set[int] = set()  # of these, those with a visit in `_again` or in flight

    def sweep(self) -> None:
        """Let hosts let go of states that the record does not name; no writer may be at work."""
        of_copies = {copy.server for copy in self._record.state_copies(self._run.run_id)}
        self._segments.sweep({server for server in self._servers.values() if server is not None} | of_copies)

    def end(self) -> None:
        """Let hosts let go of all states of the run: they have come home."""
        self._record.forget_copies(self._run.run_id)
        self.sweep()

    # Hosts that are away

    def away(self, mst_keys: Collection[int], answer: StateAway) -> None:
        """Let models wait for a host that cannot be reached. Raises NotReady if one has waited too long."""
        now, limit_s = time.monotonic(), self._run.plan.host_wait_s
        for key in mst_keys:
            wait = self._waits.get(key)
            if wait is None or now - wait.tried_at > _FORGOTTEN_S:
                self._tell(f"mst_key {key} waits for host {answer.server}, which holds its state: {answer.message}")
                wait = self._waits[key] = _Wait(now, now)
            if now - wait.since > limit_s:
                raise NotReady(
                    f"host {answer.server}, which holds the state of mst_key {key}, was not available within"
                    f" {limit_s} s",
                    detail=answer.message,
                    hint=f"SELECT madlib_mop.resume({self._run.run_id}); continues the run when it is.",
                )
            wait.server, wait.tried_at = answer.server, now
            wait.pause_s = min(2 * wait.pause_s, _LONGEST_PAUSE_S)
            wait.retry_at = now + wait.pause_s
            self._hold(key)

    def ready(self, segment: int) -> None:
        """Try again what waits for the host of a segment that is ready."""
        for wait in self._waits.values():
            if wait.server == self._servers[segment]:
                wait.retry_at = 0.0

    def tick(self) -> None:
        """Let models try again that have waited for some time."""
        now = time.monotonic()
        for key, wait in self._waits.items():
            if now >= wait.retry_at and key not in self._lost:
                self._let_go_on(key)

    def reached(self, mst_keys: Collection[int]) -> None:
        """Let models go on whose states could be had: their host may be away since, or a command asked for them."""
        for key in mst_keys:
            if self._waits.pop(key, None) is not None:
                self._let_go_on(key)

    def forget(self, mst_key: int) -> None:
        """Make no state of a model again that has failed."""
        self._segments.forget_fetch(mst_key)
        self._waits.pop(mst_key, None)
        self._lost.discard(mst_key)
        self._queued.discard(mst_key)
        for queue in self._again.values():
            queue[:] = [again for again in queue if again.mst_key != mst_key]

    # States that are lost

    def gone(self, answer: StateGone, version: int | None = None) -> None:
        """Have states made again that a host does not hold: those of a version, or the newest ones.

        Raises NotReady if that does not help.
        """
        for key in answer.mst_keys:
            lost = self._model(key).state_version if version is None else version
            if self._record.copy_lost(self._run.run_id, key, lost, answer.server):
                self._count_loss(key, lost, answer.server)  # no other task has missed it before
            self._tell(f"host {answer.server} has lost a state of mst_key {key}: its last visits are made again")
            self._waits.pop(key, None)
            self._lost.add(key)
            self._segments.forget_fetch(key)
            self._hold(key)
            self._continue(key)

    def _count_loss(self, mst_key: int, version: int, server: str) -> None:
        self._n_lost[mst_key, version] += 1
        if self._n_lost[mst_key, version] > _MOST_LOST:
            raise NotReady(
                f"host {server} does not keep the states that it is given: version {version} of mst_key {mst_key} was"
                f" lost {_MOST_LOST + 1} times",
                hint=f"Check its disk and its log, or replace it. SELECT madlib_mop.resume({self._run.run_id}); then"
                " continues the run.",
            )

    def next_again(self, idle: Collection[int]) -> list[tuple[int, Again]]:
        """Return the visits to make again that idle segments can begin, with these."""
        now = time.monotonic()
        found = []
        for segment in idle:
            queue = self._again[segment]
            due = (again for again in queue if self._is_due(again.mst_key, now))
            if (again := next(due, None)) is not None:
                queue.remove(again)
                found.append((segment, again))
        return found

    def made(self, again: Again) -> None:
        """Continue after a visit that was made again."""
        self._waits.pop(again.mst_key, None)
        self.not_made(again)

    def not_made(self, again: Again) -> None:
        """Continue after a visit that was not made again, or of which there was no answer."""
        self._queued.discard(again.mst_key)
        if again.mst_key in self._lost:  # it has not failed meanwhile
            self._continue(again.mst_key)

    def base_gone(self, again: Again, answer: StateGone) -> None:
        """Continue after a visit that was not made again because its host has lost the state that it begins with."""
        self._queued.discard(again.mst_key)
        self.gone(answer, again.from_version)

    def _is_due(self, mst_key: int, now: float) -> bool:
        return mst_key not in self._waits or now >= self._waits[mst_key].retry_at

    def _continue(self, mst_key: int) -> None:
        """Queue the next visit of a model that is to be made again, or let the model go on with its schedule."""
        model = self._model(mst_key)
        copies = {copy.version: copy for copy in self._copies_of(mst_key)}
        if model.state_server is None or model.state_version in copies:
            self._lost.discard(mst_key)
            self._let_go_on(mst_key)
            return
        if mst_key not in self._queued:  # several evaluations may have missed the state
            self._queued.add(mst_key)
            self._queue_next(model, copies)

    def _queue_next(self, model: ModelRow, copies: dict[int, StateCopyRow]) -> None:
        version, place = 0, (model.first_epoch - 1, self._run.n_segments)  # what it began with
        if model.home_state is not None:
            version, place = model.home_state.version, (model.home_state.epoch, model.home_state.position)
        if copies and max(copies) > version:
            newest = copies[max(copies)]
            version, place = newest.version, (newest.epoch, newest.position)
        visits = [v for v in self._record.visits(self._run.run_id) if v.mst_key == model.mst_key]
        since = sorted((v for v in visits if (v.epoch, v.position) > place), key=lambda v: (v.epoch, v.position))
        assert len(since) == model.state_version - version, "each version is that of a visit"
        self._again[since[0].segment_id].append(Again(model.mst_key, since[0], version + 1, version))

    # States that come home

    def bring_home(self, mst_key: int) -> bool:
        """Fetch the newest state of a model; return False if that is not possible now: it is on its way, or its host is
        away, or has lost it."""
        model = self._model(mst_key)
        if model.state_server is None:
            return True
        if mst_key in self._lost:
            return False  # it is being made again
        fetched = self._segments.fetch(model)
        if fetched is None:
            return False
        if isinstance(fetched, StateAway):
            self.away([mst_key], fetched)
            return False
        if isinstance(fetched, StateGone):
            self.gone(fetched, model.state_version)
            return False
        self.reached([mst_key])
        key = _FETCHED, mst_key  # a visit in flight may write the model's next state meanwhile
        slot, is_home = self._slots.begin_write(key), False
        try:
            is_home = self._record.bring_home(model, slot, fetched)
        finally:
            self._slots.end_write(slot, key, model.state_bytes if is_home else None)
        if is_home:
            self._slots.rename(key, mst_key)
        return is_home

    def all_home(self) -> bool:
        """Fetch the states of all models that hosts hold; return whether none is left."""
        left = False
        for model in self._record.models(self._run.run_id):
            if model.state_server is None or model.state is ModelState.FAILED:
                continue
            if model.mst_key in self._lost:
                left = True
            elif self._is_due(model.mst_key, time.monotonic()):
                left |= not self.bring_home(model.mst_key)
            else:
                left = True
        return not left

    # Helpers

    def _hold(self, mst_key: int) -> None:
        unit = self._unit_of(mst_key)
        if self._scheduler.has_model(unit):
            self._scheduler.state_away(unit)

    def _let_go_on(self, mst_key: int) -> None:
        unit = self._unit_of(mst_key)
        if self._scheduler.has_model(unit) and not any(key in self._lost for key in unit):
            self._scheduler.state_back(unit)

    def _model(self, mst_key: int) -> ModelRow:
        """Return a model as it is recorded now: a visit may be committed of which the driver has no answer yet."""
        return next(m for m in self._record.models(self._run.run_id) if m.mst_key == mst_key)

    def _copies_of(self, mst_key: int) -> Sequence[StateCopyRow]:
        return [copy for copy in self._record.state_copies(self._run.run_id) if copy.mst_key == mst_key]
