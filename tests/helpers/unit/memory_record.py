"""A record of one run in memory, with the writers that commit to it: it checks each commit against the promises."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from mop_backend.messages import (
    Answer,
    AverageCommitted,
    AverageStates,
    CommittedVisit,
    Evaluate,
    Evaluated,
    EvaluatedMember,
    EvaluatedShard,
    EvaluationFigures,
    Order,
    StateWrite,
    Train,
    VisitsCommitted,
)

from madlib_mop.catalog.commands import Outcome
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import STATE_COLUMNS, ModelRow
from madlib_mop.catalog.rows.of_run import EvaluationRow, Metric, VisitRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import CommandState, ModelState
from madlib_mop.catalog.state_slots import SLOTS_PER_RUN
from tests.helpers.unit.sums import figures_of

STATE_BYTES = 2 << 20  # each state then has a slot of its own
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryRecord:
    """The record of one run, as its driver reads and writes it.

    Parameters
    ----------
    run : RunRow
    models : sequence of ModelRow
    """

    def __init__(self, run: RunRow, models: Sequence[ModelRow]):
        self.the_run = run
        self.rows = {model.mst_key: replace(model, run_id=run.run_id) for model in models}
        self.all_visits: dict[tuple[int, int, int], VisitRow] = {}
        self.all_metrics: list[Metric] = []
        self.evaluations: list[EvaluationRow] = []
        self.changes: list[ChangeRow] = []
        self.states = {(m.mst_key, m.state_version): m.digest for m in self.rows.values() if m.digest is not None}
        self.staged: dict[tuple[int, int, int], tuple[int, str]] = {}  # key, version, segment -> slot, digest
        self.slots: set[int] = set()
        self.cancelled: str | None = None
        self.on_write: Callable[[], None] = lambda: None  # called before each write of the driver, and each commit
        self._is_open = False

    # the driver's reads and writes

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_open:
            yield
            return
        kept = dict(self.rows), dict(self.states), list(self.all_metrics), list(self.evaluations), self.the_run
        changes = list(self.changes)
        kept_of_writers = dict(self.all_visits), dict(self.staged)
        self._is_open = True
        try:
            yield
            self.on_write()
        except BaseException:
            self.rows, self.states, self.all_metrics, self.evaluations, self.the_run = kept
            self.all_visits, self.staged = kept_of_writers
            self.changes = changes
            raise
        finally:
            self._is_open = False

    def execute(self, query: str, params: Sequence[object] = (), **slots: Relation) -> list[tuple]:
        if slots:
            self.change_slots(query, {SLOTS_PER_RUN + int(slot.name.rpartition("_")[2]) for slot in slots.values()})
            return []
        if "starts_with(c.relname" in query:
            return [(f"{params[0]}{number % SLOTS_PER_RUN}",) for number in self.slots]
        if "pg_stat_file" in query:  # no other session has a snapshot
            return [(0, False, False)]
        if "txid_snapshot_xmax" in query:
            return [(0, [])]
        return [(10, [])] if "caller_pid" in query else []

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
        best = {m.best_state.slot for m in models if m.best_state is not None and not m.is_restored and m.is_alive}
        return {m.state_slot for m in models if m.digest} | best | {slot for slot, _ in self.staged.values()}

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

    def commands(self, run_id: int, state: CommandState) -> list[ChangeRow]:
        return [row for row in self.changes if row.command is not None and row.state is state]

    def lock_command(self, command: ChangeRow) -> bool:
        return self.changes[command.change_id].state is CommandState.PENDING

    def record_outcome(self, command: ChangeRow, outcome: Outcome) -> bool:
        self.on_write()
        assert self.lock_command(command), "nobody withdraws a command"
        ordinal = len(self.commands(1, CommandState.OBEYED)) if outcome.state is CommandState.OBEYED else None
        self.changes[command.change_id] = replace(
            command, state=outcome.state, detail=outcome.detail, mst_keys=outcome.mst_keys, visits=outcome.visits,
            ordinal=ordinal,
        )  # fmt: skip
        return True

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

    def set_model(self, run_id: int, mst_key: int, **columns: object) -> None:
        self.on_write()
        self.rows[mst_key] = replace(self.rows[mst_key], **columns)

    def add_models(self, run_id: int, models: Sequence[ModelRow]) -> None:
        self.on_write()
        self.rows |= {model.mst_key: replace(model, run_id=run_id) for model in models}

    def set_run(self, run_id: int, **columns: object) -> None:
        self.on_write()
        self.the_run = replace(self.the_run, **columns)

    def visits(self, run_id: int) -> list[VisitRow]:
        return list(self.all_visits.values())

    def visit(self, run_id: int, mst_key: int, epoch: int, segment_id: int) -> VisitRow | None:
        return self.all_visits.get((mst_key, epoch, segment_id))

    def metrics(self, run_id: int) -> list[Metric]:
        return list(self.all_metrics)

    def add_metrics(self, metrics: Sequence[Metric], evaluations: Sequence[EvaluationRow]) -> None:
        self.on_write()
        self.all_metrics += metrics
        self.evaluations += evaluations

    def copy_state(self, run_id: int, mst_key: int, slot: int, source: ModelRow, version: int = 0) -> None:
        self.copy_parts(source, run_id, mst_key, slot, version)
        values = {name: getattr(source, name) for name in STATE_COLUMNS}
        self.set_model(run_id, mst_key, state_slot=slot, state_version=version, **values)

    def copy_parts(self, source: ModelRow, run_id: int, mst_key: int, slot: int, version: int) -> None:
        self.states[mst_key, version] = self.states[source.mst_key, source.state_version]

    def delete_state(self, model: ModelRow) -> None:
        del self.states[model.mst_key, model.state_version]

    def staged_slots(self, run_id: int, mst_key: int, version: int, slots: Sequence[int]) -> dict[int, int]:
        mine = {place: slot for place, (slot, _) in self.staged.items() if place[:2] == (mst_key, version)}
        assert set(mine.values()) <= set(slots), "a staged state is in one of the run's slots"
        return {segment: slot for (_, _, segment), slot in mine.items()}

    # the writers

    def do(self, order: Order) -> Answer:
        """Complete an order as `mop_backend.writer.Writer.do` does, in one transaction; return the answer."""
        on_write, self.on_write = self.on_write, lambda: None  # this is another process
        try:
            with self.transaction():
                return self._done(order)
        finally:
            self.on_write = on_write

    def _done(self, order: Order) -> Answer:
        if isinstance(order, Evaluate):
            return self._evaluate(order)
        if isinstance(order, AverageStates):
            return self._average(order)
        assert isinstance(order, Train), order
        make = self._stage if order.is_staged else self._train
        return VisitsCommitted({}, tuple(make(order, write) for write in order.members if write is not None), (), 1.0)

    def _train(self, order: Train, write: StateWrite) -> CommittedVisit:
        """Commit a visit; the digest of a state is that of the state before it and of the visit."""
        key, epoch, position = write.mst_key, order.epoch, order.position
        model, place = self.rows[key], (key, epoch, order.shard.segment_id)
        assert model.digest == self.states.get((key, model.state_version)), "a model's row names its stored state"
        assert write.slot in self.slots, "its slot exists"
        assert write.version == model.state_version + 1, "each visit adds one version"
        newest = model.epoch, model.position
        n_segments = self.the_run.n_segments
        after = (newest[0], newest[1] + 1) if 0 < newest[1] < n_segments else (max(newest[0] + 1, model.first_epoch), 1)
        assert (epoch, position) == after, f"the visit after {newest} is {after}. Received: {(epoch, position)}"
        digest = hashlib.sha256(f"{model.digest} {place} {position}".encode()).hexdigest()
        self._add_visit(order, model, digest)
        self.states.pop((key, model.state_version), None)
        self.states[key, write.version] = digest
        self.set_model(
            1, key, state=ModelState.TRAINING if model.state.is_alive else model.state, epoch=epoch, position=position,
            state_version=write.version, state_slot=write.slot, state_bytes=STATE_BYTES, model_bytes=STATE_BYTES,
            forward_parts=1, digest=digest, weights_digest=digest,
        )  # fmt: skip
        return CommittedVisit(key, digest, STATE_BYTES)

    def _add_visit(self, order: Train, model: ModelRow, digest: str) -> None:
        place = model.mst_key, order.epoch, order.shard.segment_id
        assert place not in self.all_visits, f"a visit was made twice: {place}"
        self.all_visits[place] = VisitRow(
            visit_id=len(self.all_visits), run_id=1, mst_key=model.mst_key, epoch=order.epoch,
            position=order.position, segment_id=order.shard.segment_id, started_at=_NOW, ended_at=_NOW, n_rows=10,
            state_bytes=STATE_BYTES, digest_in=model.digest or "", digest_out=digest, attempt=order.attempt,
            loss=0.5, timing={},
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
        return CommittedVisit(key, digest, STATE_BYTES)

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
        self.set_model(
            1, key, epoch=order.epoch, position=self.the_run.n_segments, state_version=version,
            state_slot=order.write.slot, state_bytes=STATE_BYTES, model_bytes=STATE_BYTES, forward_parts=1,
            digest=digest, weights_digest=digest,
        )  # fmt: skip
        return AverageCommitted({}, digest, STATE_BYTES)

    def _evaluate(self, order: Evaluate) -> Evaluated:
        members = tuple(EvaluatedMember(key, self._figures(key)) for key in order.members if key is not None)
        return Evaluated({}, tuple(EvaluatedShard(shard, 0.0, 1.0, members) for shard in order.shards))

    def _figures(self, key: int) -> EvaluationFigures:
        """Return sums whose mean is the model's loss: a number from 0 to 1 that its state determines."""
        digest = self.states[key, self.rows[key].state_version]
        assert digest is not None, "a model is evaluated after a visit"
        loss = int(digest[:4], 16) / 0x10000
        return figures_of(10, loss)
