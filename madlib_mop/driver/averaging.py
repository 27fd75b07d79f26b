"""Model averaging: trains one model on all segments at once, iteration after iteration, until all are done.

The hopper's sister: the same workers, record, attempts, evaluations and slots of states; but what a segment has trained
is staged, and when all have, one worker averages it into the model's next state. What was done the workers commit
themselves, so this process may die at any moment. Called by `runs.drive`.
"""

import time
from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.driver.attempts import Attempts, Verdict
from madlib_mop.driver.evaluations import Evaluations
from madlib_mop.driver.progress import Progress
from madlib_mop.driver.sameness import Sameness
from madlib_mop.driver.state_slots import StateSlots, existing_slots
from madlib_mop.driver.watch import Watch
from madlib_mop.driver.workers import Workers
from madlib_mop.engines.session import Answer, Failure
from madlib_mop.errors import from_dict
from madlib_mop.schedule import Average, BulkSynchronous, EpochDone, Evaluation, Visit
from madlib_mop.schedule.bounds import Account, Span

#: `madlib_mop.run.schedule` of such a run.
AVERAGING = "averaging"
#: The one model's key: that of the first row of a model selection table, so that a hopper's run of it draws the same.
MST_KEY = 1


@dataclass
class _InFlight:
    task: Visit | Average | Evaluation
    started: float
    slot: int | None = None


class Averaging:
    """One run of model averaging under way; parameters as those of `Hopper`, without recorded visits."""

    def __init__(self, record: Record, workers: Workers, run: dict, progress: Progress, stdin_fd: int | None):
        self._record = record
        self._workers = workers
        self._run_id = run["run_id"]
        self._progress = progress
        self._watch = Watch(record, workers, self._run_id, stdin_fd)
        self._sameness = Sameness(record, run, progress)
        self._attempts = Attempts()
        self._in_flight: dict[int, _InFlight] = {}
        (self._model,) = record.models(self._run_id)
        segments = run["plan"]["training"]["segments"]
        self._with_rows = [s["segment_id"] for s in segments if s["n_rows"]]
        staged = self._staged()
        self._slots = StateSlots(record, self._run_id, [self._model, *staged])
        self._part_slots = {row["mst_key"][1]: row["state_slot"] for row in staged}
        self._plan = BulkSynchronous(
            MST_KEY,
            self._with_rows,
            [s["segment_id"] for s in segments],
            self._next_epoch,
            self._model["last_epoch"],
            set(self._part_slots),
        )
        self._evaluations = Evaluations(record, run, self._plan, {MST_KEY: self._model})
        self.account = Account()
        for segment in segments:
            self._plan.segment_down(segment["segment_id"])

    def run(self) -> None:
        """Make all iterations and evaluations that are left.

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
        while not self._plan.done:
            self._start_tasks()
            self._slots.empty_dead()
            for segment in self._watch.wait():
                self._advance(segment)
            self._watch.look_for_cancel()
            self._workers.reopen_lost()
        self._slots.finish()

    @property
    def _next_epoch(self) -> int:
        """The iteration that is under way: a state's version counts the averages of the run."""
        return self._model["first_epoch"] + self._model["state_version"]

    def _staged(self) -> list[dict]:
        """Tell what segments have trained and nobody has averaged yet, in the words of `StateSlots`."""
        slots = existing_slots(self._record, self._run_id)
        found = self._record.staged_slots(self._run_id, MST_KEY, self._model["state_version"] + 1, slots)
        visits = [self._record.visit(self._run_id, MST_KEY, self._next_epoch, segment) for segment in found]
        return [
            {
                "mst_key": (MST_KEY, visit["segment_id"]),
                "state_slot": found[visit["segment_id"]],
                "state_bytes": visit["state_bytes"],
            }
            for visit in visits
        ]

    def _start_tasks(self) -> None:
        for task in self._plan.next_tasks():
            flight = _InFlight(task, time.monotonic())
            self._in_flight[task.segment] = flight
            attempt = self._attempts.begin(task)
            order = {"segment_id": task.segment, "mst_key": MST_KEY, "version": self._model["state_version"] + 1}
            if isinstance(task, Evaluation):
                place = {"data_set": task.payload.data_set, "segment_id": task.payload.segment_id}
                order |= {"do": "evaluate", **place}
            elif isinstance(task, Visit):
                flight.slot = self._slots.begin_write((MST_KEY, task.segment))
                order |= {"do": "train", "data_set": "training", "staged": True, "epoch": task.epoch,
                          "position": task.position, "attempt": attempt, "slot": flight.slot}  # fmt: skip
            else:
                flight.slot = self._slots.begin_write(MST_KEY)
                slots = sorted(set(self._part_slots.values()))
                order |= {"do": "average", "epoch": task.epoch, "slot": flight.slot, "slots": slots,
                          "n_visits": len(self._with_rows)}  # fmt: skip
            self._workers.begin(task.segment, order)

    def _advance(self, segment: int) -> None:
        event = self._workers.advance(segment)
        if event is None:
            return
        flight = self._in_flight.pop(segment, None)
        if isinstance(event, Failure):
            self._session_failed(segment, flight, event)
        elif isinstance(event, Answer):
            self._answered(flight, event.fields)
        else:
            self._plan.segment_up(segment)

    def _answered(self, flight: _InFlight, fields: dict) -> None:
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
        self._sameness.check_versions(fields["versions"])
        is_evaluation = isinstance(task, Evaluation)
        epoch = task.payload.epoch if is_evaluation else task.epoch
        # segments work side by side, so each is a chain of its own: no lower bound goes beyond the busiest of them
        self.account.add(Span(task.segment, task.segment, epoch, flight.started, ended))
        if is_evaluation:
            self._sameness.check_shard(task.payload.data_set, task.payload.segment_id, fields.get("shard"))
            self._plan.finished(task, seconds)
            rows = self._evaluations.finished(task, fields, seconds, self._progress.elapsed_s)
            if rows:
                self._progress.metrics_known(MST_KEY, epoch, rows)
                self._epoch_over(epoch)
        elif isinstance(task, Visit):
            self._sameness.check_shard("training", task.segment, fields.get("shard"))
            self._visit_kept(flight, fields["state_bytes"], seconds)
        else:
            self._average_kept(flight, fields["state_bytes"], seconds)

    def _visit_kept(self, flight: _InFlight, n_bytes: int, seconds: float) -> None:
        self._end_write(flight, n_bytes)
        self._part_slots[flight.task.segment] = flight.slot
        self._model["state"] = "training"
        self._plan.finished(flight.task, seconds)

    def _average_kept(self, flight: _InFlight, n_bytes: int, seconds: float) -> None:
        self._end_write(flight, n_bytes)
        for segment in self._part_slots:
            self._slots.release((MST_KEY, segment))
        self._part_slots.clear()
        self._model["state_version"] += 1
        done: EpochDone = self._plan.finished(flight.task, seconds)
        if not self._evaluations.begin(MST_KEY, done.epoch):
            self._epoch_over(done.epoch)

    def _epoch_over(self, epoch: int) -> None:
        if epoch == self._model["last_epoch"]:
            self._model["state"] = "trained"
            self._record.set_model(self._run_id, MST_KEY, state="trained")
        self._progress.epoch_over(MST_KEY, epoch, self._plan)

    def _refused(self, task, verdict: Verdict) -> None:
        """Go on after a task that left nothing behind: again, or not at all, for there is no other model."""
        if verdict.again:
            self._plan.requeue(task)
            return
        error = from_dict(verdict.error)
        if not verdict.ends_run:
            error.message = f"{error.message} ({verdict.place(task)})"
            self._record.set_model(self._run_id, MST_KEY, state="failed", state_detail=verdict.reason(task))
        raise error

    def _session_failed(self, segment: int, flight: _InFlight | None, failure: Failure) -> None:
        """Go on after a session was lost or its statement failed; what it had committed counts."""
        if failure.lost:
            self._plan.segment_down(segment)
            self._workers.lost(segment, failure)  # the backend is gone when this returns, so what is kept is known
        if flight is None:
            return
        task, seconds = flight.task, time.monotonic() - flight.started
        if isinstance(task, Visit):
            kept = self._record.visit(self._run_id, MST_KEY, task.epoch, segment)
            if kept is not None:
                self._visit_kept(flight, kept["state_bytes"], seconds)
                return
        elif isinstance(task, Average):
            (model,) = self._record.models(self._run_id)
            if model["state_version"] > self._model["state_version"]:
                self._average_kept(flight, model["state_bytes"], seconds)
                return
        self._end_write(flight)
        if failure.lost:
            self._plan.requeue(task)
        elif failure.host_lost:
            self._host_lost(task, failure.host_lost)
        else:
            self._refused(task, self._attempts.judge(task, {"outcome": "sql", "error": failure.error}))

    def _host_lost(self, task, fields: dict) -> None:
        """Let a segment wait for its host; the task left nothing behind and is done again."""
        self._plan.segment_down(task.segment)
        self._workers.host_lost(task.segment, fields)
        self._plan.requeue(task)

    def _end_write(self, flight: _InFlight, n_bytes: int | None = None) -> None:
        if flight.slot is not None:
            key = MST_KEY if isinstance(flight.task, Average) else (MST_KEY, flight.task.segment)
            self._slots.end_write(flight.slot, key, n_bytes)
