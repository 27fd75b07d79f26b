"""Model averaging: trains one model on all segments at once, iteration after iteration, until all are done.

It uses the same segments, record, attempts, evaluations and slots as the hopper; but the segments' states are staged,
and when all are complete, one segment averages them into the model's next state. Called by `driving.drive`.
"""

import time
from collections.abc import Sequence

from mop_backend.messages import (
    AverageCommitted,
    AverageStates,
    Done,
    Evaluated,
    MetricsComputed,
    Order,
    ShardName,
    StateWrite,
    Train,
    VisitsCommitted,
)

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.state_slots import StateKey, StateSlots, StoredState, best_states, existing_slots, newest_states
from madlib_mop.driver.changes.deciders import Decider, Decisions
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations, evaluation_task
from madlib_mop.driver.running.loop import InFlight, RetryDecision, RunLoop, Task, place_of
from madlib_mop.driver.running.segments import Segments
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.errors import from_dict
from madlib_mop.models.changes import Finish
from madlib_mop.schedule import Average, BulkSynchronous, Evaluation, Visit
from madlib_mop.schedule.bounds import Span
from madlib_mop.schedule.bulk import MST_KEY


class Averaging(RunLoop[Task]):
    """A running run of model averaging; further parameters are those of `RunLoop`.

    Parameters
    ----------
    deciders : sequence of Decider
        Ends the model when the time is over.
    """

    _plan: BulkSynchronous

    def __init__(
        self,
        record: Record,
        segments: Segments,
        run: RunRow,
        progress: ProgressReporter,
        deciders: Sequence[Decider] = (),
    ):
        super().__init__(record, segments, run, progress)
        self._deciders = deciders
        shards = run.plan.training.segments
        self._n_segments = run.n_segments
        self._with_rows = [shard.segment_id for shard in shards if shard.n_rows]
        self._part_slots = self._staged_slots()
        staged, models = self._staged(), self._models.values()
        self._slots = StateSlots(record, self._run_id, [*newest_states(models), *staged, *best_states(models)])
        self._stops = EarlyStops(record, run, self._models, self._slots, progress)
        self._plan = BulkSynchronous(
            (MST_KEY,),
            self._with_rows,
            [shard.segment_id for shard in shards],
            self._next_epoch,
            self._model.last_epoch,
            set(self._part_slots),
        )
        self._evaluations = Evaluations(record, run, self._plan, self._models)
        for shard in shards:
            self._plan.segment_down(shard.segment_id)

    @property
    def _model(self) -> ModelRow:
        """The model, as the record has it now."""
        return self._models[MST_KEY]

    @property
    def _next_epoch(self) -> int:
        """The current iteration: a state's version counts the averages of the run."""
        if self._model.is_restored:
            return self._model.last_epoch + 1
        return self._model.first_epoch + self._model.state_version

    def _staged_slots(self) -> dict[int, int]:
        """Return the slots of staged states that are not yet averaged, by segment."""
        slots = existing_slots(self._record, self._run_id)
        return self._record.staged_slots(self._run_id, MST_KEY, self._model.state_version + 1, slots)

    def _staged(self) -> list[StoredState]:
        """Return the states in these slots."""
        states = []
        for segment, slot in self._part_slots.items():
            visit = self._record.visit(self._run_id, MST_KEY, self._next_epoch, segment)
            assert visit is not None, "it was committed with what it has trained"
            states.append(StoredState((MST_KEY, segment), slot, visit.state_bytes))
        return states

    def _order(self, flight: InFlight[Task], attempt: int) -> Order:
        task = flight.task
        if isinstance(task, Evaluation):
            return self._evaluations.order(task, [MST_KEY])
        slot = self._begin_write(flight, self._slot_key(task))
        write = StateWrite(MST_KEY, slot, self._model.state_version + 1)
        if isinstance(task, Average):
            slots = tuple(sorted(set(self._part_slots.values())))
            return AverageStates(write, task.epoch, slots, n_visits=len(self._with_rows))
        return Train(
            members=(write,),
            shard=ShardName("training", task.segment),
            epoch=task.epoch,
            position=task.position,
            attempt=attempt,
            place=place_of(task),
            is_staged=True,
        )

    def _slot_key(self, task: Task) -> StateKey:
        return MST_KEY if isinstance(task, Average) else (MST_KEY, task.segment)

    def _done(self, flight: InFlight[Task], answer: Done, ended: float) -> None:
        task, seconds = flight.task, ended - flight.started
        epoch = evaluation_task(task).epoch if isinstance(task, Evaluation) else task.epoch
        # Segments train in parallel, so each is a chain of its own: the lower bound is the time of the busiest segment.
        self._account.add(Span(task.segment, task.segment, epoch, flight.started, ended))
        if isinstance(task, Evaluation):
            assert isinstance(answer, Evaluated | MetricsComputed), "it was an evaluation"
            self._plan.finished(task, seconds)
            complete = self._evaluations.finished(task, answer, seconds, self._progress.elapsed_s)
            if complete:
                self._progress.metrics_known(MST_KEY, epoch, complete[MST_KEY])
                if self._stops.measured(MST_KEY, complete[MST_KEY]):
                    self._stopped_early(MST_KEY)
                self._epoch_over(epoch)
        elif isinstance(answer, VisitsCommitted):
            self._visit_kept(flight, answer.committed[0].state_bytes, seconds)
        else:
            assert isinstance(answer, AverageCommitted), "it was an average"
            self._average_kept(flight, answer.state_bytes, seconds)

    def _stopped_early(self, mst_key: int) -> None:
        self._plan.finish_early(self._plan.begun)

    def _begun(self) -> None:
        for decider in self._deciders:
            self._make_all(decider.begin(self._models))

    def _tick(self) -> None:
        for decider in self._deciders:
            self._make_all(decider.tick())

    def _make_all(self, decisions: Decisions) -> None:
        """End the model with its current iteration when the time is over; its first one is always completed."""
        for decision in decisions:
            (finish,) = decision.changes
            assert isinstance(finish, Finish), "only the time limit decides on model averaging"
            model = self._model
            last_epoch = min(model.last_epoch, max(self._plan.begun, model.first_epoch))
            with self._record.transaction():
                self._models.shortened(MST_KEY, last_epoch, finish.reason)
                visit = {str(MST_KEY): [model.epoch, model.position]}
                row = ChangeRow.made(self._run_id, decision.source, finish, [MST_KEY], visit)
                self._record.add_changes([row])
            self._plan.finish_early(last_epoch)
            self._stops.restore_measured(MST_KEY)
            self._evaluations.end_epoch(MST_KEY)
            for sentence in decision.notices:
                self._progress.tell(sentence)

    def _was_kept(self, flight: InFlight[Task]) -> bool:
        task, seconds = flight.task, time.monotonic() - flight.started
        if isinstance(task, Visit):
            kept = self._record.visit(self._run_id, MST_KEY, task.epoch, task.segment)
            if kept is not None:
                self._visit_kept(flight, kept.state_bytes, seconds)
            return kept is not None
        if isinstance(task, Average):
            (model,) = self._record.models(self._run_id)
            if model.state_version > self._model.state_version:
                assert model.state_bytes is not None, "an average is a state"
                self._average_kept(flight, model.state_bytes, seconds)
                return True
        return False

    def _visit_kept(self, flight: InFlight[Task], n_bytes: int, seconds: float) -> None:
        key = self._slot_key(flight.task)
        self._end_write(flight, {key: n_bytes})
        self._part_slots[flight.task.segment] = flight.slots[key]
        self._models.part_kept(MST_KEY)
        self._plan.finished(flight.task, seconds)

    def _average_kept(self, flight: InFlight[Task], n_bytes: int, seconds: float) -> None:
        self._end_write(flight, {self._slot_key(flight.task): n_bytes})
        for segment in self._part_slots:
            self._slots.release((MST_KEY, segment))
        self._part_slots.clear()
        self._models.average_kept(MST_KEY, self._next_epoch, self._n_segments)
        done = self._plan.finished(flight.task, seconds)
        assert done is not None, "an average ends an epoch"
        if not self._evaluations.begin([MST_KEY], done.epoch):
            self._epoch_over(done.epoch)

    def _epoch_over(self, epoch: int) -> None:
        if epoch == self._model.last_epoch:
            self._stops.restore(MST_KEY)
            self._models.trained(MST_KEY)
        self._progress.epoch_over(MST_KEY, epoch, self._plan)

    def _refused(self, task: Task, decision: RetryDecision) -> None:
        """Continue after a task without a result: repeat it, or end the run, because there is no other model."""
        if decision.again:
            self._plan.requeue(task)
            return
        error = from_dict(decision.error)
        if not decision.ends_run:
            error.message = f"{error.message} ({place_of(task)})"
            self._models.failed(MST_KEY, decision.reason(task))
        raise error
