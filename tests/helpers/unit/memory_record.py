"""A record of one run in memory, with the writers that commit to it: it checks each commit against the promises."""

import base64
import hashlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from mop_backend.frames import Header

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.model import STATE_COLUMNS, ModelRow
from madlib_mop.catalog.rows.of_run import EvaluationRow, Metric, VisitRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.state_slots import SLOTS_PER_RUN

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
        self.states = {(m.mst_key, m.state_version): m.digest for m in self.rows.values() if m.digest is not None}
        self.slots: set[int] = set()
        self.cancelled: str | None = None
        self._is_open = False

    # the driver's reads and writes

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._is_open:
            yield
            return
        kept = dict(self.rows), dict(self.states), list(self.all_metrics), list(self.evaluations), self.the_run
        self._is_open = True
        try:
            yield
        except BaseException:
            self.rows, self.states, self.all_metrics, self.evaluations, self.the_run = kept
            raise
        finally:
            self._is_open = False

    def execute(self, query: str, params: Sequence[object] = (), slot: Relation | None = None) -> list[tuple]:
        if slot is not None:
            return self._change_slot(query, SLOTS_PER_RUN + int(slot.name.rpartition("_")[2]))
        if "starts_with(c.relname" in query:
            return [(f"{params[0]}{number % SLOTS_PER_RUN}",) for number in self.slots]
        if "pg_stat_file" in query:  # no other session has a snapshot
            return [(0, False, False)]
        if "txid_snapshot_xmax" in query:
            return [(0, [])]
        return [(10, [])] if "caller_pid" in query else []

    def _change_slot(self, query: str, slot: int) -> list[tuple]:
        if "CREATE TABLE" in query:
            self.slots.add(slot)
        elif "TRUNCATE" in query or "DROP TABLE" in query:
            assert slot not in {model.state_slot for model in self.rows.values()}, "a slot with a state is not emptied"
            self.slots -= {slot} if "DROP TABLE" in query else set()
        return []

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

    def commands(self, run_id: int, state: object) -> list[object]:
        return []

    def models(self, run_id: int) -> list[ModelRow]:
        return sorted(self.rows.values(), key=lambda model: model.ordinal)

    def lock_model(self, run_id: int, mst_key: int) -> ModelRow:
        return self.rows[mst_key]

    def set_model(self, run_id: int, mst_key: int, **columns: object) -> None:
        self.rows[mst_key] = replace(self.rows[mst_key], **columns)

    def add_models(self, run_id: int, models: Sequence[ModelRow]) -> None:
        self.rows |= {model.mst_key: replace(model, run_id=run_id) for model in models}

    def set_run(self, run_id: int, **columns: object) -> None:
        self.the_run = replace(self.the_run, **columns)

    def visits(self, run_id: int) -> list[VisitRow]:
        return list(self.all_visits.values())

    def visit(self, run_id: int, mst_key: int, epoch: int, segment_id: int) -> VisitRow | None:
        return self.all_visits.get((mst_key, epoch, segment_id))

    def metrics(self, run_id: int) -> list[Metric]:
        return list(self.all_metrics)

    def add_metrics(self, metrics: Sequence[Metric], evaluations: Sequence[EvaluationRow]) -> None:
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

    # the writers

    def do(self, order: Header) -> Header:
        """Complete an order as `mop_backend.writer.Writer.do` does, in one transaction; return the answer."""
        with self.transaction():
            if order["do"] == "evaluate":
                return {"outcome": "done", **self._evaluate(order)}
            assert order["do"] == "train", order
            if "members" not in order:
                return {"outcome": "done", **self._train(order)}
            trained = [None if one is None else self._train({**order, **one}) for one in order["members"]]
            return {"outcome": "done", "members": trained, "timing": {"compute_s": 1.0}}

    def _train(self, order: Header) -> Header:
        """Commit a visit; the digest of a state is that of the state before it and of the visit."""
        key, epoch, position = order["mst_key"], order["epoch"], order["position"]
        model, place = self.rows[key], (key, epoch, order["segment_id"])
        assert model.digest == self.states.get((key, model.state_version)), "a model's row names its stored state"
        assert order["slot"] in self.slots, "its slot exists"
        assert order["version"] == model.state_version + 1, "each visit adds one version"
        assert place not in self.all_visits, f"a visit was made twice: {place}"
        newest = model.epoch, model.position
        n_segments = self.the_run.n_segments
        after = (newest[0], newest[1] + 1) if 0 < newest[1] < n_segments else (max(newest[0] + 1, model.first_epoch), 1)
        assert (epoch, position) == after, f"the visit after {newest} is {after}. Received: {(epoch, position)}"
        digest = hashlib.sha256(f"{model.digest} {place} {position}".encode()).hexdigest()
        self.all_visits[place] = VisitRow(
            visit_id=len(self.all_visits), run_id=1, mst_key=key, epoch=epoch, position=position,
            segment_id=order["segment_id"], started_at=_NOW, ended_at=_NOW, n_rows=10, state_bytes=STATE_BYTES,
            digest_in=model.digest or "", digest_out=digest, attempt=order["attempt"], loss=0.5, timing={},
        )  # fmt: skip
        self.states.pop((key, model.state_version), None)
        self.states[key, order["version"]] = digest
        self.set_model(
            1, key, state=ModelState.TRAINING if model.state.is_alive else model.state, epoch=epoch, position=position,
            state_version=order["version"], state_slot=order["slot"], state_bytes=STATE_BYTES, model_bytes=STATE_BYTES,
            forward_parts=1, digest=digest, weights_digest=digest,
        )  # fmt: skip
        return {"mst_key": key, "digest_out": digest, "state_bytes": STATE_BYTES, "timing": {"compute_s": 1.0}}

    def _evaluate(self, order: Header) -> Header:
        keys = [order["mst_key"]] if "mst_key" in order else order["members"]
        shards = []
        for shard in order["shards"]:
            figures = [None if key is None else {"mst_key": key, **self._figures(key)} for key in keys]
            times = {"started_at": 0.0, "ended_at": 1.0}
            shards.append(shard | times | (figures[0] if "mst_key" in order else {"members": figures}))
        return {"shards": shards}

    def _figures(self, key: int) -> Header:
        """Return sums whose mean is the model's loss: a number from 0 to 1 that its state determines."""
        digest = self.states[key, self.rows[key].state_version]
        assert digest is not None, "a model is evaluated after a visit"
        loss = int(digest[:4], 16) / 0x10000
        data = base64.b64encode(array("d", [10 * loss, 10.0]).tobytes()).decode()
        sums = {"layout": [["loss", 2, True]], "data": data}
        return {"n_rows": 10, "loss": loss, "sums": sums, "timing": {}}
