"""A record of one run in memory, with the writers that commit to it: it checks each commit against the promises."""

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from mop_backend.messages import (
    Answer,
    AverageCommitted,
    AverageStates,
    CommittedVisit,
    ComputeMetrics,
    Evaluate,
    Evaluated,
    EvaluatedMember,
    EvaluatedShard,
    EvaluationFigures,
    FailedMember,
    MetricsComputed,
    MetricTotals,
    MetricValues,
    Order,
    ShardName,
    StateWrite,
    Train,
    VisitsCommitted,
)

from madlib_mop.catalog.changes import Outcome
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import STATE_COLUMNS, HomeState, ModelRow, StateCopyRow
from madlib_mop.catalog.rows.run import EvaluationRow, Metric, RunRow, SearchEvent, VisitRow
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState, RunState
from madlib_mop.catalog.state_slots import SLOTS_PER_RUN
from madlib_mop.models.changes import Change, read_change
from tests.helpers.unit.sums import figures_of, sums_of, values_of

STATE_BYTES = 2 << 20  # each state then has a slot of its own
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
#: What a transaction that fails leaves as it was.
_TABLES = (
    "rows", "all_visits", "visit_metrics", "all_metrics", "evaluations", "changes", "settled", "events", "states",
    "stored", "staged", "copies",
)  # fmt: skip
_DATA_SETS = ("training", "validation")
#: A metric that is no mean: a trainer computes it from the sums of all shards.
NO_MEAN = "auc"


@dataclass(frozen=True)
class StoredVersion:
    """A state that a visit, or a copy of another state, has stored."""

    digest: str
    epoch: int
    position: int


class MemoryRecord:
    """The record of one run, as its driver reads and writes it.

    Parameters
    ----------
    run : RunRow
    models : sequence of ModelRow
        Those that have a state continue with it.
    earlier : mapping of int to ModelRow, optional
        For a warm start: the models of the earlier run by mst_key.

    Attributes
    ----------
    has_no_mean : bool
        Whether the models have the metric `NO_MEAN`.
    nan_share : float
        The share of losses that are NaN.
    state_bytes : int
        The size of each state.
    holds_at_commit : bool
        Whether hosts get new states with the commit of a visit; false if they have them before.
    """

    has_no_mean = False
    nan_share = 0.0
    state_bytes = STATE_BYTES
    holds_at_commit = True

    def __init__(self, run: RunRow, models: Sequence[ModelRow], earlier: Mapping[int, ModelRow] | None = None):
        self.the_run, self.earlier = run, earlier or {}
        self.rows = {model.mst_key: replace(model, run_id=run.run_id) for model in models}
        self.all_visits: dict[tuple[int, int, int], VisitRow] = {}
        self.visit_metrics: dict[tuple[int, int, int], float] = {}  # of model, epoch, position: the loss on the sample
        self.all_metrics: list[Metric] = []
        self.evaluations: list[EvaluationRow] = []
        self.changes: list[ChangeRow] = []
        self.settled: list[tuple[int, int]] = []  # changes in the order in which they were made, with numbers of visits
        self.events: list[SearchEvent] = []  # without their decisions
        self.stored: dict[tuple[int, int], StoredVersion] = {}  # every state that ever was
        self.states: dict[tuple[int, int], str] = {}
        self.staged: dict[tuple[int, int, int], tuple[int, str]] = {}  # key, version, segment -> slot, digest
        self.copies: dict[tuple[int, int], StateCopyRow] = {}  # what hosts are to hold, by model and version
        # what they hold: by server, the digests of states by model and version
        self.held: dict[str, dict[tuple[int, int], str]] = {
            shard.server: {} for shard in run.plan.training.segments if shard.server is not None
        }
        self.lost: set[tuple[int, int]] = set()  # of these, those that a host has lost
        self.n_again = 0  # visits that were made again
        self.slots: set[int] = set()
        for m in self.rows.values():
            if m.digest is not None:
                place = m.mst_key, m.state_version
                self.states[place], self.stored[place] = m.digest, StoredVersion(m.digest, m.epoch, m.position)
                self.slots.add(m.state_slot)
        self.cancelled: str | None = None
        self.on_write: Callable[[], None] = lambda: None  # called before each write of the driver, and each commit
        self.member_fails: Callable[[], bool] = lambda: False  # one of several models that are trained together
        self.present: Callable[[Sequence[ShardName]], Sequence[ShardName]] = lambda shards: shards  # in the trainer
        self.withdraws: Callable[[], bool] = lambda: False  # a person, when the driver has read the pending commands
        self._withdrawn: set[int] = set()
        self._is_open = False
        self._undecided = ""  # what was written that only a decision may change

    # the driver's reads and writes

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction of the driver is open."""
        return self._is_open

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_open:
            yield
            return
        kept = {name: getattr(self, name).copy() for name in _TABLES} | {"the_run": self.the_run}
        self._is_open, self._undecided = True, ""
        try:
            yield
            self.on_write()
            self._check_decided(len(kept["settled"]))
        except BaseException:
            vars(self).update(kept)
            for change_id in self._withdrawn:  # another session has committed that
                self.withdraw(change_id)
            raise
        finally:
            self._is_open = False

    def _check_decided(self, n_settled: int) -> None:
        """Models and pauses change in the transaction that records who decided on it."""
        assert not self._undecided or len(self.settled) > n_settled, f"who decided on {self._undecided}?"

    def _changed(self, what: str) -> None:
        self._undecided = what
        if not self._is_open:
            self._check_decided(len(self.settled))

    def execute(self, query: str, params: Sequence[object] | Mapping[str, Any] = (), **slots: Relation) -> list[tuple]:
        if slots:
            self.change_slots(query, {SLOTS_PER_RUN + int(slot.name.rpartition("_")[2]) for slot in slots.values()})
            return []
        if "UPDATE madlib_mop.model_state" in query:
            assert isinstance(params, dict), "a state is moved"
            self.move_state(params["key"], params["target"], "best_state" in query)
            return []
        if "starts_with(c.relname" in query:
            return [(f"{params[0]}{number % SLOTS_PER_RUN}",) for number in self.slots]
        if "pg_stat_file" in query:  # no other session has a snapshot
            return [(0, False, False)]
        if "txid_snapshot_xmax" in query:
            return [(0, [])]
        return [(10, [])] if "caller_pid" in query else []

    def move_state(self, mst_key: int, slot: int, is_best: bool) -> None:
        """Move the newest state of a model, or its best one, to another slot."""
        assert slot in self.slots, "a state is moved to a slot that is there"
        self.on_write()
        model = self.rows[mst_key]
        if is_best:
            assert model.best_state is not None, "it has one"
            self.rows[mst_key] = replace(model, best_state=replace(model.best_state, slot=slot))
        elif model.home_state is not None:
            self.rows[mst_key] = replace(model, home_state=replace(model.home_state, slot=slot))
        else:
            self.rows[mst_key] = replace(model, state_slot=slot)

    def change_slots(self, query: str, slots: set[int]) -> None:
        """Create, empty or drop the tables of states."""
        self.on_write()
        if "CREATE TABLE" in query:
            self.slots |= slots
        elif "TRUNCATE" in query or "DROP TABLE" in query:
            assert not slots & self.used_slots, "a slot with a state is not emptied"
            self.slots -= slots if "DROP TABLE" in query else set()

    @property
    def used_slots(self) -> set[int]:
        """The slots that have a state that is needed."""
        models = self.rows.values()
        kept = [m for m in models if m.best_state is not None and not m.is_restored]
        best = {m.best_state.slot for m in kept if m.state is not ModelState.FAILED}
        newest = {m.state_slot for m in models if m.digest and m.state_server is None}
        home = {m.home_state.slot for m in models if m.home_state is not None}
        return newest | home | best | {slot for slot, _ in self.staged.values()}

    def listen(self) -> None:
        """Notifications come from the segments."""

    def clear_tasks(self, run_id: int) -> None:
        """Nobody watches."""

    def write_tasks(self, run_id: int, tasks: Sequence[object]) -> None:
        """Nobody watches."""

    def notify_changes(self, run_id: int) -> None:
        """Nobody watches."""

    def cancelled_by(self, run_id: int) -> str | None:
        return self.cancelled

    def custom_functions(self, run_id: int) -> dict[str, bytes]:
        return {}

    def issue(self, command: ChangeRow) -> None:
        """Record a command, as another process does."""
        self.changes.append(replace(command, change_id=len(self.changes)))
        if command.state is ChangeState.OBEYED:
            self.settled.append((len(self.changes) - 1, len(self.all_visits)))

    def commands(self, run_id: int, state: ChangeState) -> list[ChangeRow]:
        found = [row for row in self.changes if row.command is not None and row.state is state]
        for row in found:
            if state is ChangeState.PENDING and row.source is ChangeSource.PERSON and self.withdraws():
                self.withdraw(row.change_id)
        return sorted(found, key=lambda row: (row.ordinal is None, row.ordinal))

    def time_limits_over(self, run_id: int) -> set[float]:
        return {row.work["limit_s"] for row in self.changes if row.source is ChangeSource.TIME_LIMIT}

    def withdraw(self, change_id: int) -> None:
        """Withdraw a pending command, as its call does when it is cancelled."""
        self._withdrawn.add(change_id)
        self.changes[change_id] = replace(self.changes[change_id], state=ChangeState.WITHDRAWN)

    def lock_command(self, command: ChangeRow) -> bool:
        return self.changes[command.change_id].state is ChangeState.PENDING

    def record_outcome(self, command: ChangeRow, outcome: Outcome) -> bool:
        self.on_write()
        if not self.lock_command(command):
            return False
        ordinal = len(self.commands(1, ChangeState.OBEYED)) if outcome.state is ChangeState.OBEYED else None
        self.changes[command.change_id] = replace(
            command, state=outcome.state, detail=outcome.detail, mst_keys=outcome.mst_keys, visits=outcome.visits,
            ordinal=ordinal,
        )  # fmt: skip
        self.settled.append((command.change_id, len(self.all_visits)))
        return True

    def search_events(self, run_id: int) -> list[SearchEvent]:
        """Return the events with their decisions, which have gone through JSON."""
        decided: dict[int, list[Change]] = {event.ordinal: [] for event in self.events}
        for row in sorted((row for row in self.changes if row.event is not None), key=lambda row: row.number):
            decided[row.event].append(read_change(row.change, json.loads(json.dumps(row.work))))
        return [replace(event, changes=decided[event.ordinal]) for event in self.events]

    def add_search_event(self, event: SearchEvent) -> None:
        self.on_write()
        assert self._is_open, "an event is recorded with its decisions"
        assert event.ordinal == len(self.events), "each event is recorded once, in order"
        self.events.append(replace(event, changes=[]))

    def has_same_start_weights(self, run_id: int, origin: str, other: str) -> bool:
        return origin == other

    def add_changes(self, rows: Sequence[ChangeRow]) -> None:
        self.on_write()
        for row in rows:
            self.issue(row)

    def models(self, run_id: int) -> list[ModelRow]:
        return sorted(self.rows.values(), key=lambda model: model.ordinal)

    def lock_model(self, run_id: int, mst_key: int) -> ModelRow:
        return self.rows[mst_key]

    def set_model(self, run_id: int, mst_key: int, waits: bool = True, **columns: object) -> None:
        self.on_write()
        old = self.rows[mst_key]
        new = self.rows[mst_key] = replace(old, **columns)
        stops = {old.state, new.state} - {ModelState.FAILED}
        if decided_columns(old) != decided_columns(new) or (len(stops) == 2 and ModelState.STOPPED in stops):
            self._changed(f"mst_key {mst_key}: {sorted(columns)}")

    def add_models(self, run_id: int, models: Sequence[ModelRow]) -> None:
        self.on_write()
        self._changed(f"new: {[model.mst_key for model in models]}")
        self.rows |= {model.mst_key: replace(model, run_id=run_id) for model in models}

    def set_run(self, run_id: int, **columns: object) -> None:
        self.on_write()
        before, self.the_run = self.the_run, replace(self.the_run, **columns)
        if before.paused_by != self.the_run.paused_by:
            self._changed("the pause")

    def end_training(self, run_id: int) -> bool:
        if self.cancelled is not None:
            return False
        with self.transaction():
            for command in self.commands(1, ChangeState.PENDING):
                self.record_outcome(command, Outcome(ChangeState.REFUSED, "it came too late"))
            self.set_run(1, state=RunState.TRAINED)
        return True

    def finish(self, run_id: int) -> None:
        if self.the_run.state is not RunState.INTERRUPTED:
            self.set_run(1, state=RunState.FINISHED)

    def visits(self, run_id: int) -> list[VisitRow]:
        return list(self.all_visits.values())

    def visit(self, run_id: int, mst_key: int, epoch: int, segment_id: int) -> VisitRow | None:
        return self.all_visits.get((mst_key, epoch, segment_id))

    def has_visit(self, mst_key: int, epoch: int, segment_id: int, position: int) -> bool:
        """Return whether the table of visits, with its unique constraints, takes no such visit any more."""
        places = ((v.mst_key, v.epoch, v.position) for v in self.all_visits.values())
        return (mst_key, epoch, segment_id) in self.all_visits or (mst_key, epoch, position) in places

    def metrics(self, run_id: int) -> list[Metric]:
        return list(self.all_metrics)

    def add_metrics(self, metrics: Sequence[Metric], evaluations: Sequence[EvaluationRow]) -> None:
        self.on_write()
        self.all_metrics += metrics
        self.evaluations += evaluations

    def copy_state(self, run_id: int, mst_key: int, slot: int, source: ModelRow, version: int = 0) -> None:
        self.copy_parts(source, run_id, mst_key, slot, version)
        values = {name: getattr(source, name) for name in STATE_COLUMNS}
        self.stored[mst_key, version] = self.stored[source.mst_key, source.state_version]
        self.set_model(
            run_id, mst_key, state_slot=slot, state_version=version, state_server=None, home_state=None, **values
        )
        self.release_copies(1, mst_key)

    # states at hosts

    def state_copies(self, run_id: int) -> list[StateCopyRow]:
        return [copy for copy in self.copies.values() if not copy.released]

    def copy_lost(self, run_id: int, mst_key: int, version: int, server: str) -> None:
        self.on_write()
        copy = self.copies.get((mst_key, version))
        if copy is not None and copy.server == server and not copy.released:
            del self.copies[mst_key, version]
            self.lost.add((mst_key, version))

    def forget_copies(self, run_id: int) -> None:
        self.on_write()
        self.copies.clear()

    def bring_home(self, model: ModelRow, slot: int, parts: object) -> bool:
        self.on_write()
        key, now = model.mst_key, self.rows[model.mst_key]
        if (now.state_version, now.state_server) != (model.state_version, model.state_server):
            return False
        assert slot in self.slots, "its slot exists"
        self._drop_home(now)
        self.states[key, now.state_version] = now.digest
        self.rows[key] = replace(now, state_slot=slot, state_server=None, home_state=None)
        self.release_copies(1, key)
        return True

    def server_of(self, segment: int) -> str | None:
        """Return the host of a segment."""
        return next(s.server for s in self.the_run.plan.training.segments if s.segment_id == segment)

    def digest_after(self, order: Train, key: int) -> str:
        """Return the digest of the state that a visit makes: that of the state before it and of the visit."""
        model = self.rows[key]
        before = model.digest
        if order.again_from is not None:
            before = self.state_at(model, order.again_from)[0]
        place = key, order.epoch, order.shard.segment_id
        return hashlib.sha256(f"{before} {place} {order.position}".encode()).hexdigest()

    def state_at(self, model: ModelRow, version: int) -> tuple[str | None, str | None]:
        """Return the digest of a state of a model, and the server that is to hold it."""
        copy, home = self.copies.get((model.mst_key, version)), model.home_state
        if copy is not None:
            return copy.digest, copy.server
        if home is not None and home.version == version:
            return home.digest, None
        return ("released meanwhile" if version else None), None

    def let_go(self, server: str) -> None:
        """Let a host let go of what was released."""
        for (key, version), copy in list(self.copies.items()):
            if copy.server == server and copy.released:
                newer = [v for k, v in {*self.copies, *self.lost} if k == key and v > version]
                n_copies = self.the_run.plan.direct_hops.copies
                home = self.rows[key].home_state
                is_home = self.rows[key].state_server is None or (home is not None and home.version >= version)
                assert is_home or len(newer) >= n_copies, "the last versions stay"
                self.held[server].pop((key, version), None)
                del self.copies[key, version]

    def release_copies(self, run_id: int, key: int) -> None:
        for place, copy in self.copies.items():
            if place[0] == key:
                self.copies[place] = replace(copy, released=True)

    def _drop_home(self, model: ModelRow) -> None:
        if model.home_state is not None:
            del self.states[model.mst_key, model.home_state.version]

    def _keep_copy(self, copy: StateCopyRow) -> None:
        """As `keep_copies` of sql/24-writer.sql."""
        self.copies[copy.mst_key, copy.version] = copy
        mine = {v: c for (k, v), c in self.copies.items() if k == copy.mst_key and not c.released}
        n_copies = self.the_run.plan.direct_hops.copies
        for version, old in mine.items():
            newer = [c.server for v, c in mine.items() if v > version]
            if len(newer) >= n_copies and (len(set(newer)) >= n_copies or old.server in newer):
                self.copies[copy.mst_key, version] = replace(old, released=True)

    def _hold(self, order: Train, write: StateWrite, digest: str) -> str:
        """Hold a new state at the segment's host; return the host."""
        server = self.server_of(order.shard.segment_id)
        assert server is not None, "the segment is at a host"
        if self.holds_at_commit:
            self.held[server][write.mst_key, write.version] = digest
        return server

    def _train_again(self, order: Train, write: StateWrite) -> CommittedVisit:
        """Commit where a state is that was lost and is made again, as `keep_again` of sql/24-writer.sql."""
        key = write.mst_key
        model, visit = self.rows[key], self.all_visits[key, order.epoch, order.shard.segment_id]
        digest = self.digest_after(order, key)
        assert visit.position == order.position and visit.digest_out == digest, "it has the recorded result"
        assert write.version == order.again_from + 1 <= model.state_version
        self.n_again += 1
        server = self._hold(order, write, digest)
        self._keep_copy(_copy_of(order, write, server, digest, self.state_bytes))
        if write.version == model.state_version:
            self.rows[key] = replace(model, state_server=server)
        return CommittedVisit(key, digest, self.state_bytes, server)

    def copy_parts(self, source: ModelRow, run_id: int, mst_key: int, slot: int, version: int) -> None:
        assert slot in self.slots, "its slot exists"
        self.states[mst_key, version] = self.states[source.mst_key, source.state_version]
        self.stored[mst_key, version] = self.stored[source.mst_key, source.state_version]

    def delete_state(self, model: ModelRow) -> None:
        assert self.rows[model.mst_key].digest is not None, "a state that is there is deleted"
        del self.states[model.mst_key, model.state_version]

    def staged_slots(self, run_id: int, mst_key: int, version: int, slots: Sequence[int]) -> dict[int, int]:
        mine = {place: slot for place, (slot, _) in self.staged.items() if place[:2] == (mst_key, version)}
        assert set(mine.values()) <= set(slots), "a staged state is in one of the run's slots"
        return {segment: slot for (_, _, segment), slot in mine.items()}

    # the writers

    def do(self, order: Order) -> Answer:
        """Complete an order as `mop_backend.writer.Writer.do` does, in one transaction; return the answer."""
        if isinstance(order, Evaluate):
            return self._evaluate(order)
        if isinstance(order, ComputeMetrics):
            return self._compute(order)
        on_write, self.on_write = self.on_write, lambda: None  # this is another process
        try:
            with self.transaction():
                return self._done(order)
        finally:
            self.on_write = on_write

    def _done(self, order: Order) -> Answer:
        if isinstance(order, AverageStates):
            return self._average(order)
        assert isinstance(order, Train), order
        make = self._stage if order.is_staged else self._train
        writes = [write for write in order.members if write is not None]
        failed = [write.mst_key for write in writes if len(order.members) > 1 and self.member_fails()]
        for key in failed:
            self.set_model(1, key, state=ModelState.FAILED, state_detail="the loss is not finite")
        trained = tuple(make(order, write) for write in writes if write.mst_key not in failed)
        return VisitsCommitted({}, trained, tuple(FailedMember(key, "the loss is not finite") for key in failed), 1.0)

    def _train(self, order: Train, write: StateWrite) -> CommittedVisit:
        """Commit a visit; the digest of a state is that of the state before it and of the visit."""
        key, epoch, position = write.mst_key, order.epoch, order.position
        if order.again_from is not None:
            return self._train_again(order, write)
        model = self.rows[key]
        is_here = model.state_server is None
        assert not is_here or model.digest == self.states.get((key, model.state_version)), "its row names its state"
        assert write.slot is None or write.slot in self.slots, "its slot exists"
        assert write.version == model.state_version + 1, "each visit adds one version"
        newest = model.epoch, model.position
        n_segments = self.the_run.n_segments
        after = (newest[0], newest[1] + 1) if 0 < newest[1] < n_segments else (max(newest[0] + 1, model.first_epoch), 1)
        assert (epoch, position) == after, f"the visit after {newest} is {after}. Received: {(epoch, position)}"
        digest = self.digest_after(order, key)
        self._add_visit(order, model, digest)
        server, home = None, None
        if write.slot is None:
            server = self._hold(order, write, digest)
            self._keep_copy(_copy_of(order, write, server, digest, self.state_bytes))
            home = _home_of(model) if is_here and model.digest is not None else model.home_state
        else:
            self._drop_home(model)
            self.states.pop((key, model.state_version), None)
            self.states[key, write.version] = digest
            self.release_copies(1, key)
        self.stored[key, write.version] = StoredVersion(digest, epoch, position)
        if order.sample is not None:
            sample = self.the_run.plan.sample
            assert order.sample == sample.segment_id
            self.visit_metrics[key, epoch, position] = self.loss_on(digest, sample.data_set, sample.segment_id)
        state = model.state if model.state is ModelState.STOPPED else ModelState.TRAINING
        self.set_model(
            1, key, state=state, epoch=epoch, position=position, state_version=write.version, state_slot=write.slot,
            state_bytes=self.state_bytes, model_bytes=self.state_bytes,
            forward_parts=1, digest=digest, weights_digest=digest, state_server=server, home_state=home,
        )  # fmt: skip
        return CommittedVisit(key, digest, self.state_bytes, server)

    def _add_visit(self, order: Train, model: ModelRow, digest: str) -> None:
        place = model.mst_key, order.epoch, order.shard.segment_id
        assert place not in self.all_visits, f"a visit was made twice: {place}"
        self.all_visits[place] = VisitRow(
            visit_id=len(self.all_visits), run_id=1, mst_key=model.mst_key, epoch=order.epoch,
            position=order.position, segment_id=order.shard.segment_id, started_at=_NOW, ended_at=_NOW, n_rows=10,
            state_bytes=self.state_bytes, digest_in=model.digest or "", digest_out=digest, attempt=order.attempt,
            loss=0.5, timing={"fused": len(order.members)} if len(order.members) > 1 else {},
        )  # fmt: skip

    def _stage(self, order: Train, write: StateWrite) -> CommittedVisit:
        """Commit a visit of model averaging, whose state is to be averaged with those of other segments."""
        key, epoch, segment = write.mst_key, order.epoch, order.shard.segment_id
        model = self.rows[key]
        assert write.slot in self.slots and write.version == model.state_version + 1
        digest = hashlib.sha256(f"{model.digest} {epoch} {segment}".encode()).hexdigest()
        self._add_visit(order, model, digest)
        self.staged[key, write.version, segment] = write.slot, digest
        position = min(model.position + 1 if model.epoch == epoch else 1, self.the_run.n_segments - 1)
        self.set_model(1, key, state=ModelState.TRAINING, epoch=epoch, position=position)
        return CommittedVisit(key, digest, self.state_bytes)

    def _average(self, order: AverageStates) -> AverageCommitted:
        """Commit an average as the model's newest state: what was averaged ends."""
        key, version = order.write.mst_key, order.write.version
        model = self.rows[key]
        mine = {place: state for place, state in sorted(self.staged.items()) if place[:2] == (key, version)}
        assert version == model.state_version + 1 and len(mine) == order.n_visits, "all segments have trained"
        assert {slot for slot, _ in mine.values()} <= set(order.slots)
        digest = hashlib.sha256(" ".join(digest for _, digest in mine.values()).encode()).hexdigest()
        for place in mine:
            del self.staged[place]
        self.states.pop((key, model.state_version), None)
        self.states[key, version] = digest
        self.stored[key, version] = StoredVersion(digest, order.epoch, self.the_run.n_segments)
        self.set_model(
            1, key, epoch=order.epoch, position=self.the_run.n_segments, state_version=version,
            state_slot=order.write.slot, state_bytes=self.state_bytes, model_bytes=self.state_bytes, forward_parts=1,
            digest=digest, weights_digest=digest,
        )  # fmt: skip
        return AverageCommitted({}, digest, self.state_bytes)

    def _evaluate(self, order: Evaluate) -> Evaluated:
        keys = [key for key in order.members if key is not None]
        return Evaluated({}, tuple(
            EvaluatedShard(shard, 0.0, 1.0, tuple(EvaluatedMember(key, self._figures(key, shard)) for key in keys))
            for shard in self.present(order.shards)
        ))  # fmt: skip

    def _figures(self, key: int, shard: ShardName) -> EvaluationFigures:
        model = self.rows[key]
        digest = model.digest if model.state_server is not None else self.states[key, model.state_version]
        assert digest is not None, "a model is evaluated after a visit"
        loss, n_rows = self.loss_on(digest, shard.data_set, shard.segment_id), n_rows_of(shard.segment_id)
        return figures_of(n_rows, loss, self._sums(n_rows, loss))

    def _sums(self, n_rows: int, loss: float) -> MetricTotals:
        return sums_of(n_rows, {"loss": loss}, **({NO_MEAN: [loss, 1.0]} if self.has_no_mean else {}))

    def _compute(self, order: ComputeMetrics) -> MetricsComputed:
        assert self.has_no_mean, "means need no trainer"
        results = {data_set: values_of(sums) for data_set, sums in order.sums.items()}
        return MetricsComputed({}, {
            data_set: MetricValues(total / n_rows, {NO_MEAN: most / n_shards})
            for data_set, (total, n_rows, most, n_shards) in results.items()
        })  # fmt: skip

    def loss_on(self, digest: str, data_set: str, shard: int) -> float:
        """Return the loss of a state on a shard: a number from 0 to 1 that both determine, or NaN."""
        at = 32 * _DATA_SETS.index(data_set) + 4 * (shard % 8)
        found = int(digest[at : at + 4], 16)
        return math.nan if found < self.nan_share * 0x10000 else found / 0x10000

    def metrics_of(self, digest: str) -> dict[tuple[str, str], float]:
        """Return the metrics of a state, by data set and name."""
        found = {}
        for data_set, packed in self.the_run.plan.data_sets.items():
            shards = [shard.segment_id for shard in packed.segments if shard.n_rows]
            losses = [self.loss_on(digest, data_set, shard) for shard in shards]
            weights = [n_rows_of(shard) for shard in shards]
            found[data_set, "loss"] = sum(map(operator.mul, weights, losses)) / sum(weights)
            if self.has_no_mean:
                found[data_set, NO_MEAN] = sum(losses) / len(losses)
        return found


def _copy_of(order: Train, write: StateWrite, server: str, digest: str, n_bytes: int) -> StateCopyRow:
    return StateCopyRow(
        run_id=1, mst_key=write.mst_key, version=write.version, server=server, epoch=order.epoch,
        position=order.position, segment_id=order.shard.segment_id, state_bytes=n_bytes, forward_parts=1,
        digest=digest, weights_digest=digest,
    )  # fmt: skip


def _home_of(model: ModelRow) -> HomeState:
    return HomeState(
        model.epoch, model.position, model.state_slot, model.state_version, model.state_bytes, model.model_bytes,
        model.forward_parts, model.digest, model.weights_digest,
    )  # fmt: skip


def n_rows_of(shard: int) -> int:
    """Return the number of rows of a shard: they are not the same, so a mean of means is wrong."""
    return 10 + shard


def decided_columns(model: ModelRow) -> tuple[object, ...]:
    """Return what only a decision of somebody changes in a model."""
    return model.last_epoch, model.pinned, model.compile_params, model.fit_params
