"""The hopper: runs the visits of one run, without barriers, until every model has made its own or has failed.

What to do next the scheduler says; a search may change the models while the run goes on (`steering.py`). Called by
`runs.drive`.
"""

import time
from collections.abc import Hashable, Sequence

from madlib_mop.catalog.record import Record
from madlib_mop.driver.attempts import Task, Verdict
from madlib_mop.driver.evaluations import Evaluations
from madlib_mop.driver.loop import InFlight, RunLoop
from madlib_mop.driver.progress import Progress
from madlib_mop.driver.roster import Roster
from madlib_mop.driver.state_slots import StateSlots
from madlib_mop.driver.steering import Steering
from madlib_mop.driver.workers import Workers
from madlib_mop.errors import from_dict
from madlib_mop.schedule import Evaluation, ModelWork, Scheduler, Visit, make_scheduler
from madlib_mop.schedule.bounds import Span

_COMPACT_EVERY_S = 2.0


class Hopper(RunLoop):
    """One run under way; further parameters are those of `RunLoop`.

    Parameters
    ----------
    recorded : list of Visit or None
        For a replay: the visits to repeat.
    steering : Steering
        Told what models have reached; may change the run's models.
    """

    def __init__(
        self,
        record: Record,
        workers: Workers,
        run: dict,
        progress: Progress,
        stdin_fd: int | None,
        recorded=None,
        steering: Steering | None = None,
    ):
        super().__init__(record, workers, run, progress, stdin_fd)
        self._run = run
        self._models = {m["mst_key"]: m for m in record.models(self._run_id)}
        self._slots = StateSlots(record, self._run_id, list(self._models.values()))
        self._versions = {key: m["state_version"] for key, m in self._models.items()}
        self._rows = {s["segment_id"]: s["n_rows"] for s in run["plan"]["training"]["segments"]}
        self._plan = self._make_scheduler(recorded)
        self._evaluations = Evaluations(record, run, self._plan, self._models)
        self._steering = steering or Steering()
        self._roster = Roster(record, run, self._models, self._versions, self._slots, self._plan, self._evaluations)
        self._compacted = 0.0
        for segment in self._rows:
            self._plan.segment_down(segment)

    def _begun(self) -> None:
        self._steering.begin(self._roster)

    def _tick(self) -> None:
        self._compact()
        self._steering.tick()

    def _ended(self) -> None:
        self._steering.ended()

    def _order(self, flight: InFlight, attempt: int) -> dict:
        task = flight.task
        if isinstance(task, Evaluation):
            place = {"data_set": task.payload.data_set, "segment_id": task.payload.segment_id}
            return {"do": "evaluate", "mst_key": task.model, **place}
        flight.slot = self._slots.begin_write(self._slot_key(task))
        return {
            "do": "train",
            "data_set": "training",
            "segment_id": task.segment,
            "mst_key": task.model,
            "epoch": task.epoch,
            "position": task.position,
            "attempt": attempt,
            "slot": flight.slot,
            "version": self._versions[task.model] + 1,
        }

    def _slot_key(self, task: Task) -> Hashable:
        return task.model

    def _done(self, flight: InFlight, fields: dict, ended: float) -> None:
        task, seconds = flight.task, ended - flight.started
        is_visit = isinstance(task, Visit)
        place = ("training", task.segment) if is_visit else (task.payload.data_set, task.payload.segment_id)
        self._sameness.check_shard(*place, fields.get("shard"))
        epoch = task.epoch if is_visit else task.payload.epoch
        self.account.add(Span(task.model, task.segment, epoch, flight.started, ended, not is_visit))
        if is_visit:
            self._visit_kept(flight, fields["digest_out"], fields["state_bytes"], _steady_seconds(fields, seconds))
        else:
            self._plan.finished(task, seconds)
            rows = self._evaluations.finished(task, fields, seconds, self._progress.elapsed_s)
            if rows:
                self._progress.metrics_known(task.model, epoch, rows)
                self._epoch_over(task.model, epoch, rows)

    def _was_kept(self, flight: InFlight) -> bool:
        task = flight.task
        if not isinstance(task, Visit):
            return False
        kept = self._record.visit(self._run_id, task.model, task.epoch, task.segment)
        if kept is not None:
            self._visit_kept(flight, kept["digest_out"], kept["state_bytes"], _length(kept))
        return kept is not None

    def _visit_kept(self, flight: InFlight, digest: str, n_bytes: int, seconds: float) -> None:
        task = flight.task
        self._versions[task.model] += 1
        self._end_write(flight, n_bytes)
        model = self._models[task.model]
        model.update(digest=digest, epoch=task.epoch, position=task.position)
        if model["state"] in ("stopped", "failed"):  # in this visit; the worker, who cannot know, says training
            self._record.set_model(self._run_id, task.model, state=model["state"])
        elif model["state"] == "waiting":
            model["state"] = "training"
        done = self._plan.finished(task, seconds)
        if done is not None and not self._evaluations.begin(task.model, done.epoch):
            self._epoch_over(task.model, done.epoch)

    def _epoch_over(self, mst_key: int, epoch: int, metrics: Sequence[dict] = ()) -> None:
        model = self._models[mst_key]
        if epoch == model["last_epoch"]:
            model["state"] = "trained"
            self._record.set_model(self._run_id, mst_key, state="trained")
        self._progress.epoch_over(mst_key, epoch, self._plan)
        if model["state"] == "trained":
            self._steering.reached(mst_key, epoch, metrics)

    def _refused(self, task: Task, verdict: Verdict) -> None:
        """Go on after a task that left nothing behind: again, or without its model, or not at all."""
        if verdict.again:
            self._plan.requeue(task)
        elif verdict.ends_run:
            raise from_dict(verdict.error)
        else:
            self._plan.failed(task)
            self._evaluations.forget(task.model)
            reason = verdict.reason(task)
            self._models[task.model].update(state="failed", state_detail=reason)
            self._record.set_model(self._run_id, task.model, state="failed", state_detail=reason)
            self._progress.model_failed(task.model, reason, self._plan)
            self._steering.failed(task.model)

    def _compact(self) -> None:
        if time.monotonic() - self._compacted > _COMPACT_EVERY_S:
            self._compacted = time.monotonic()
            busy = {flight.task.model for flight in self._in_flight.values()}
            self._slots.compact(set(self._models) - busy)

    def _make_scheduler(self, recorded) -> Scheduler:
        visited: dict[int, list[int]] = {key: [] for key in self._models}
        for visit in self._record.visits(self._run_id):
            model = self._models[visit["mst_key"]]
            if visit["epoch"] == model["epoch"] and model["position"] < len(self._rows):
                visited[visit["mst_key"]].append((visit["position"], visit["segment_id"]))
        works = []
        for key, m in self._models.items():
            epoch = m["epoch"] if visited[key] else m["epoch"] + 1
            places = tuple(segment for _, segment in sorted(visited[key]))
            if m["state"] in ("failed", "stopped"):
                epoch, places = m["last_epoch"] + 1, ()
            works.append(ModelWork(key, m["ordinal"], m["last_epoch"], epoch, places))
        schedule = "recorded" if recorded is not None else self._run["schedule"]
        return make_scheduler(schedule, works, self._rows, recorded)


def _steady_seconds(fields: dict, seconds: float) -> float:
    """Give what a visit cost without what is paid once: trainer's start, shard's load, build and trace."""
    timing = fields.get("timing") or {}
    return sum(timing.get(lap, 0.0) for lap in ("state_in_s", "compute_s", "state_out_s")) or seconds


def _length(visit: dict) -> float:
    return (visit["ended_at"] - visit["started_at"]).total_seconds()
