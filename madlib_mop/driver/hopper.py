"""The hopper: runs the visits of one run, without barriers, until every model has made its own or has failed.

It waits on the sockets of the worker sessions, the catalog session and the caller's backend, and moves whatever has
come on. What to do next the scheduler says; what was done the workers commit themselves, so this process may die at
any moment.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.driver.attempts import Attempts, Verdict
from madlib_mop.driver.evaluations import Evaluations
from madlib_mop.driver.progress import Progress
from madlib_mop.driver.roster import Roster
from madlib_mop.driver.sameness import Sameness
from madlib_mop.driver.state_slots import StateSlots
from madlib_mop.driver.steering import Steering
from madlib_mop.driver.watch import Watch
from madlib_mop.driver.workers import Workers
from madlib_mop.engines.session import Answer, Failure
from madlib_mop.errors import from_dict
from madlib_mop.schedule import Evaluation, ModelWork, Scheduler, Visit, make_scheduler
from madlib_mop.schedule.bounds import Account, Span

_COMPACT_EVERY_S = 2.0


@dataclass
class _InFlight:
    task: Visit | Evaluation
    started: float
    slot: int | None = None


class Hopper:
    """One run under way.

    Parameters
    ----------
    record : Record
    workers : Workers
        Sessions by segment; they open themselves.
    run : dict
        Row of `madlib_mop.run`.
    progress : Progress
        Told of everything that a person might want to know.
    stdin_fd : int or None
        Readable, at end of file, when the caller's backend wants the run to stop.
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
        self._record = record
        self._workers = workers
        self._run = run
        self._run_id = run["run_id"]
        self._progress = progress
        self._watch = Watch(record, workers, self._run_id, stdin_fd)
        self._models = {m["mst_key"]: m for m in record.models(self._run_id)}
        self._slots = StateSlots(record, self._run_id, list(self._models.values()))
        self._versions = {key: m["state_version"] for key, m in self._models.items()}
        self._attempts = Attempts()
        self._in_flight: dict[int, _InFlight] = {}
        self._rows = {s["segment_id"]: s["n_rows"] for s in run["plan"]["training"]["segments"]}
        self._scheduler = self._make_scheduler(recorded)
        self._evaluations = Evaluations(record, run, self._scheduler, self._models)
        self._steering = steering or Steering()
        self._roster = Roster(
            record, run, self._models, self._versions, self._slots, self._scheduler, self._evaluations
        )
        self._sameness = Sameness(record, run, progress)
        self._compacted = 0.0
        self.account = Account()
        for segment in self._rows:
            self._scheduler.segment_down(segment)

    def run(self) -> None:
        """Make all visits and evaluations that are left.

        Raises
        ------
        Cancelled
            If somebody cancelled the run.
        MopError
            If the run cannot go on; it can be resumed.
        """
        self._record.listen()
        self._evaluations.add_missing()
        self._workers.open_all()
        self._steering.begin(self._roster)
        while not self._scheduler.done:
            self._start_tasks()
            self._slots.empty_dead()
            self._wait()
            self._steering.tick()
        self._steering.ended()
        self._slots.finish()

    def _start_tasks(self) -> None:
        for task in self._scheduler.next_tasks():
            flight = _InFlight(task, time.monotonic())
            self._in_flight[task.segment] = flight
            if isinstance(task, Visit):
                flight.slot = self._slots.begin_write(task.model)
                order = {
                    "do": "train",
                    "data_set": "training",
                    "segment_id": task.segment,
                    "mst_key": task.model,
                    "epoch": task.epoch,
                    "position": task.position,
                    "attempt": self._attempts.begin(task),
                    "slot": flight.slot,
                    "version": self._versions[task.model] + 1,
                }
            else:
                self._attempts.begin(task)
                order = {
                    "do": "evaluate",
                    "data_set": task.payload.data_set,
                    "segment_id": task.payload.segment_id,
                    "mst_key": task.model,
                }
            self._workers.begin(task.segment, order)

    def _wait(self) -> None:
        for segment in self._watch.wait():
            self._advance(segment)
        self._watch.look_for_cancel()
        self._workers.reopen_lost()
        self._compact()

    def _advance(self, segment: int) -> None:
        event = self._workers.advance(segment)
        if event is None:
            return
        flight = self._in_flight.pop(segment, None)
        if isinstance(event, Failure):
            self._session_failed(segment, flight, event)
        elif isinstance(event, Answer):
            self._answered(segment, flight, event.fields)
        else:
            self._scheduler.segment_up(segment)

    def _answered(self, segment: int, flight: _InFlight, fields: dict) -> None:
        task, ended = flight.task, time.monotonic()
        seconds = ended - flight.started
        if fields["outcome"] == "host":
            self._end_write(flight)
            self._host_lost(task, fields)
            return
        if fields["outcome"] != "done":
            self._end_write(flight)
            self._refused(task, self._attempts.judge(task, fields))
            return
        is_visit = isinstance(task, Visit)
        place = ("training", task.segment) if is_visit else (task.payload.data_set, task.payload.segment_id)
        self._sameness.check_shard(*place, fields.get("shard"))
        self._sameness.check_versions(fields["versions"])
        epoch = task.epoch if isinstance(task, Visit) else task.payload.epoch
        self.account.add(Span(task.model, segment, epoch, flight.started, ended, isinstance(task, Evaluation)))
        if isinstance(task, Visit):
            self._visit_kept(flight, fields["digest_out"], fields["state_bytes"], _steady_seconds(fields, seconds))
        else:
            self._scheduler.finished(task, seconds)
            rows = self._evaluations.finished(task, fields, seconds, self._progress.elapsed_s)
            if rows:
                self._progress.metrics_known(task.model, task.payload.epoch, rows)
                self._epoch_over(task.model, task.payload.epoch, rows)

    def _visit_kept(self, flight: _InFlight, digest: str, n_bytes: int, seconds: float) -> None:
        task = flight.task
        self._versions[task.model] += 1
        self._end_write(flight, n_bytes)
        model = self._models[task.model]
        model.update(digest=digest, epoch=task.epoch, position=task.position)
        if model["state"] in ("stopped", "failed"):  # in this visit; the worker, who cannot know, says training
            self._record.set_model(self._run_id, task.model, state=model["state"])
        elif model["state"] == "waiting":
            model["state"] = "training"
        done = self._scheduler.finished(task, seconds)
        if done is not None and not self._evaluations.begin(task.model, done.epoch):
            self._epoch_over(task.model, done.epoch)

    def _epoch_over(self, mst_key: int, epoch: int, metrics: Sequence[dict] = ()) -> None:
        model = self._models[mst_key]
        if epoch == model["last_epoch"]:
            model["state"] = "trained"
            self._record.set_model(self._run_id, mst_key, state="trained")
        self._progress.epoch_over(mst_key, epoch, self._scheduler)
        if model["state"] == "trained":
            self._steering.reached(mst_key, epoch, metrics)

    def _refused(self, task, verdict: Verdict) -> None:
        """Go on after a task that left nothing behind: again, or without its model, or not at all."""
        if verdict.again:
            self._scheduler.requeue(task)
        elif verdict.ends_run:
            raise from_dict(verdict.error)
        else:
            self._scheduler.failed(task)
            self._evaluations.forget(task.model)
            reason = verdict.reason(task)
            self._models[task.model].update(state="failed", state_detail=reason)
            self._record.set_model(self._run_id, task.model, state="failed", state_detail=reason)
            self._progress.model_failed(task.model, reason, self._scheduler)
            self._steering.failed(task.model)

    def _session_failed(self, segment: int, flight: _InFlight | None, failure: Failure) -> None:
        """Go on after a session was lost or its statement failed; what it had committed counts."""
        if failure.lost:
            self._scheduler.segment_down(segment)
            self._workers.lost(segment, failure)  # the backend is gone when this returns, so what is kept is known
        if flight is None:
            return
        task = flight.task
        if isinstance(task, Visit):
            kept = self._record.visit(self._run_id, task.model, task.epoch, segment)
            if kept is not None:
                self._visit_kept(flight, kept["digest_out"], kept["state_bytes"], _length(kept))
                return
        self._end_write(flight)
        if failure.lost:
            self._scheduler.requeue(task)
        elif failure.host_lost:
            self._host_lost(task, failure.host_lost)
        else:
            self._refused(task, self._attempts.judge(task, {"outcome": "sql", "error": failure.error}))

    def _host_lost(self, task, fields: dict) -> None:
        """Let a segment wait for its host; the task left nothing behind and is done again."""
        self._scheduler.segment_down(task.segment)
        self._workers.host_lost(task.segment, fields)
        self._scheduler.requeue(task)

    def _end_write(self, flight: _InFlight, n_bytes: int | None = None) -> None:
        if flight.slot is not None:
            self._slots.end_write(flight.slot, flight.task.model, n_bytes)

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
