"""The hopper: runs the visits of one run, without barriers, until every model has made its own or has failed.

What to do next the scheduler says; a search may change the models while the run goes on (`steering/`). Called by
`driving.drive`.
"""

import time
from collections.abc import Iterable, Sequence

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.evaluation.early_stopping import EarlyStops, best_key, best_states
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.driver.planning.fused_groups import FusedGroups
from madlib_mop.driver.running.loop import InFlight, RunLoop
from madlib_mop.driver.running.retries import RetryDecision, Task, place_of
from madlib_mop.driver.running.workers import Workers
from madlib_mop.driver.session.progress import Progress
from madlib_mop.driver.steering.controller import RunController
from madlib_mop.driver.steering.model_changes import ModelChanges
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
    controller : RunController
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
        controller: RunController | None = None,
    ):
        super().__init__(record, workers, run, progress, stdin_fd)
        self._run = run
        self._models = {m["mst_key"]: m for m in record.models(self._run_id)}
        models = list(self._models.values())
        self._slots = StateSlots(record, self._run_id, [*models, *best_states(models)])
        self._stops = EarlyStops(record, run, self._models, self._slots, progress)
        self._versions = {key: m["state_version"] for key, m in self._models.items()}
        self._rows = {s["segment_id"]: s["n_rows"] for s in run["plan"]["training"]["segments"]}
        self._groups = FusedGroups(run["plan"])
        self._plan = self._make_scheduler(recorded)
        self._evaluations = Evaluations(record, run, self._plan, self._models, self._groups.key_of)
        self._controller = controller or RunController()
        self._model_changes = ModelChanges(
            record, run, self._models, self._versions, self._slots, self._plan, self._evaluations
        )
        self._compacted = 0.0
        for segment in self._rows:
            self._plan.segment_down(segment)

    def _begun(self) -> None:
        self._controller.begin(self._model_changes)

    def _tick(self) -> None:
        self._compact()
        self._controller.tick()

    def _ended(self) -> None:
        self._controller.ended()

    def _order(self, flight: InFlight, attempt: int) -> dict:
        task = flight.task
        if isinstance(task, Evaluation):
            payload = task.payload
            order = {"do": "evaluate", "data_set": payload.data_set, "segment_id": payload.segment_id}
            if payload.computes_results:
                order["sums"] = self._evaluations.sums(payload.mst_keys[0])
            if len(payload.mst_keys) == 1:
                return order | {"mst_key": payload.mst_keys[0]}
            places = self._groups.places(task.model)
            return order | {"members": [key if key in payload.mst_keys else None for key in places]}
        order = {
            "do": "train",
            "data_set": "training",
            "segment_id": task.segment,
            "epoch": task.epoch,
            "position": task.position,
            "attempt": attempt,
        }
        if not self._groups.is_group(task.model):
            return order | self._write(flight, task.model)
        alive = {key for key in self._groups.members(task.model) if _is_alive(self._models[key])}
        writes = [self._write(flight, key) if key in alive else None for key in self._groups.places(task.model)]
        return order | {"members": writes, "place": place_of(task)}

    def _write(self, flight: InFlight, mst_key: int) -> dict:
        """Return where a visit writes a model's next state."""
        version = self._versions[mst_key] + 1
        return {"mst_key": mst_key, "slot": self._begin_write(flight, mst_key), "version": version}

    def _done(self, flight: InFlight, fields: dict, ended: float) -> None:
        task, seconds = flight.task, ended - flight.started
        is_visit = isinstance(task, Visit)
        epoch = task.epoch if is_visit else task.payload.epoch
        self.account.add(Span(task.model, task.segment, epoch, flight.started, ended, not is_visit))
        if is_visit:
            members = [m for m in fields.get("members", [{"mst_key": task.model, **fields}]) if m is not None]
            kept = {m["mst_key"]: m for m in members if "failed" not in m}
            failed = {m["mst_key"]: m["failed"] for m in members if "failed" in m}
            self._visit_kept(flight, kept, failed, _steady_seconds(fields, seconds))
        else:
            self._plan.finished(task, seconds)
            complete = self._evaluations.finished(task, fields, seconds, self._progress.elapsed_s)
            for mst_key, rows in complete.items():
                self._progress.metrics_known(mst_key, epoch, rows)
                stops = self._stops.measured(mst_key, rows)
                if stops:
                    self._plan.finish_early(mst_key)
                self._epoch_over(mst_key, epoch, rows)
                if stops:
                    self._progress.stopped_early(mst_key, self._plan)

    def _was_kept(self, flight: InFlight) -> bool:
        task = flight.task
        if not isinstance(task, Visit):
            return False
        visits = {key: self._record.visit(self._run_id, key, task.epoch, task.segment) for key in flight.slots}
        kept = {key: visit for key, visit in visits.items() if visit is not None}
        failed = {}
        if self._groups.is_group(task.model):  # a member's failure is kept with the others' visits
            recorded = {m["mst_key"]: m for m in self._record.models(self._run_id)}
            failed = {key: recorded[key]["state_detail"] for key in visits if recorded[key]["state"] == "failed"}
        if kept or failed:
            self._visit_kept(flight, kept, failed, max(map(_length, kept.values()), default=0.0))
        return bool(kept or failed)

    def _visit_kept(self, flight: InFlight, kept: dict[int, dict], failed: dict[int, str], seconds: float) -> None:
        """Go on after a visit was kept.

        ``kept`` has the ``digest_out`` and ``state_bytes`` of each model that was trained; ``failed`` the reasons of
        members of a group that were given up in it, which are recorded with the visit.
        """
        task = flight.task
        self._end_write(flight, {key: visit["state_bytes"] for key, visit in kept.items()})
        for key, reason in failed.items():
            self._failed(key, reason)
        for key, visit in kept.items():
            self._versions[key] += 1
            model = self._models[key]
            model.update(digest=visit["digest_out"], epoch=task.epoch, position=task.position)
            if not _is_alive(model):  # ended in this visit; the worker, who cannot know, says training
                self._record.set_model(self._run_id, key, state=model["state"])
            elif model["state"] == "waiting":
                model["state"] = "training"
        if not kept:
            self._plan.failed(task)
            return
        done = self._plan.finished(task, seconds)
        if done is not None and not self._evaluations.begin(list(kept), done.epoch):
            for key in kept:
                self._epoch_over(key, done.epoch)

    def _epoch_over(self, mst_key: int, epoch: int, metrics: Sequence[dict] = ()) -> None:
        model = self._models[mst_key]
        if epoch == model["last_epoch"]:
            self._stops.restore(mst_key)
            model["state"] = "trained"
            self._record.set_model(self._run_id, mst_key, state="trained")
        self._progress.epoch_over(mst_key, epoch, self._plan)
        if model["state"] == "trained":
            self._controller.reached(mst_key, epoch, metrics)

    def _refused(self, task: Task, decision: RetryDecision) -> None:
        """Go on after a task that left nothing behind: again, or without its model, or not at all."""
        if decision.again:
            self._plan.requeue(task)
        elif decision.ends_run:
            raise from_dict(decision.error)
        elif not self._groups.is_group(task.model):
            self._plan.failed(task)
            self._give_up(task.model, decision.reason(task))
        elif isinstance(task, Evaluation) and len(task.payload.mst_keys) > 1:
            self._plan.finished(task, 0.0)
            self._evaluations.apart(task)
        elif isinstance(task, Evaluation):
            self._plan.finished(task, 0.0)
            (mst_key,) = task.payload.mst_keys
            if _is_alive(self._models[mst_key]):  # else it has failed in another of its evaluations
                self._give_up(mst_key, decision.reason(task))
            if not any(_is_alive(self._models[key]) for key in self._groups.members(task.model)):
                self._plan.drop(task.model)
        else:
            self._dissolve(task, decision.reason(task))

    def _give_up(self, mst_key: int, reason: str) -> None:
        self._record.set_model(self._run_id, mst_key, state="failed", state_detail=reason)
        self._failed(mst_key, reason)

    def _failed(self, mst_key: int, reason: str) -> None:
        """Take note that a model was given up; it is recorded."""
        self._evaluations.forget(mst_key)
        self._stops.forget(mst_key)
        self._models[mst_key].update(state="failed", state_detail=reason)
        self._progress.model_failed(mst_key, reason, self._plan)
        self._controller.failed(mst_key)

    def _dissolve(self, task: Visit, reason: str) -> None:
        """Let the members of a group that cannot be trained as one go on apart, from where they are."""
        members = [key for key in self._groups.members(task.model) if _is_alive(self._models[key])]
        self._plan.failed(task)
        dissolved = self._groups.dissolve(task.model)
        plan = self._run["plan"]
        plan["fused_training"]["dissolved"] = dissolved
        self._record.set_run(self._run_id, plan=plan)
        self._progress.tell(f"mst_keys {', '.join(map(str, members))} train apart from here: together, {reason}")
        for work in self._works(members):
            self._plan.add_model(work)

    def _compact(self) -> None:
        if time.monotonic() - self._compacted > _COMPACT_EVERY_S:
            self._compacted = time.monotonic()
            busy = {key for flight in self._in_flight.values() for key in self._groups.members(flight.task.model)}
            kept = map(best_key, self._models)  # a model in a visit leaves its best state alone
            self._slots.compact({*self._models, *kept} - busy)

    def _make_scheduler(self, recorded: Sequence[Visit] | None) -> Scheduler:
        keys = dict.fromkeys(self._groups.key_of(mst_key) for mst_key in self._models)
        schedule = "recorded" if recorded is not None else self._run["schedule"]
        visits = None if recorded is None else self._groups.visits(recorded)
        return make_scheduler(schedule, self._works(keys), self._rows, visits)

    def _works(self, keys: Iterable[int]) -> list[ModelWork]:
        """Tell the scheduler of what it has for models: how far they have come."""
        indices = self._groups.indices(list(self._models.values()))
        visited: dict[int, list[tuple[int, int]]] = {mst_key: [] for mst_key in self._models}
        for visit in self._record.visits(self._run_id):
            model = self._models[visit["mst_key"]]
            if visit["epoch"] == model["epoch"] and model["position"] < len(self._rows):
                visited[visit["mst_key"]].append((visit["position"], visit["segment_id"]))
        works = []
        for key in keys:
            members = [self._models[mst_key] for mst_key in self._groups.members(key)]
            m = next(filter(_is_alive, members), members[0])  # those that are left are all in the same place
            epoch = m["epoch"] if visited[m["mst_key"]] else m["epoch"] + 1
            places = tuple(segment for _, segment in sorted(visited[m["mst_key"]]))
            if not _is_alive(m):
                epoch, places = m["last_epoch"] + 1, ()
            works.append(ModelWork(key, indices[key], m["last_epoch"], epoch, places))
        return works


def _is_alive(model: dict) -> bool:
    return model["state"] not in ("failed", "stopped")


def _steady_seconds(fields: dict, seconds: float) -> float:
    """Return what a visit cost without what is paid once: trainer's start, shard's load, build and trace."""
    timing = fields.get("timing") or {}
    return sum(timing.get(lap, 0.0) for lap in ("state_in_s", "compute_s", "state_out_s")) or seconds


def _length(visit: dict) -> float:
    return (visit["ended_at"] - visit["started_at"]).total_seconds()
