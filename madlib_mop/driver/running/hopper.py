"""The hopper: runs the visits of one run, without barriers, until every model has completed its visits or has failed.

The scheduler chooses the next tasks; people, a policy or a search can change the models during the run (`changes/`),
which are applied to `RunningModels`. Called by `driving.drive`.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeGuard

from mop_backend.frames import Header
from mop_backend.machine import processors
from mop_backend.messages import (
    CommittedVisit,
    Died,
    Done,
    Evaluated,
    Failed,
    FailedMember,
    MetricsComputed,
    Order,
    ShardName,
    SqlFailed,
    StateAway,
    StateGone,
    StateWrite,
    Train,
    VisitsCommitted,
)
from mop_backend.refusals import how_to_train_again

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.plan import HopPlan
from madlib_mop.catalog.rows.run import Metric, RunRow, SearchEvent
from madlib_mop.catalog.rows.states import ChangeState, ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots, best_key
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.deciders import Decider
from madlib_mop.driver.changes.side import NotYet, RunSide
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations, evaluation_task
from madlib_mop.driver.running.loop import InFlight, RetryDecision, RunLoop, place_of
from madlib_mop.driver.running.policy import Policy
from madlib_mop.driver.running.segments import (
    PolicyAnswered,
    PolicyFailed,
    SegmentEvent,
    SegmentLost,
    SegmentReady,
    Segments,
    TaskAnswered,
    TaskFailed,
)
from madlib_mop.driver.running.states_at_hosts import Again, StatesAtHosts
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.errors import DataDamaged, from_dict
from madlib_mop.models.sharing import signature_of
from madlib_mop.schedule import SCHEDULES, Evaluation, ModelWork, Scheduler, Task, Unit, Visit, make_scheduler
from madlib_mop.schedule.bounds import Span


class RunPause:
    """Whether a run pauses.

    Parameters
    ----------
    wanted : bool
        Whether the run is paused at its start.
    segments : Segments
    scheduler : Scheduler
    progress : ProgressReporter
        It does not count the time of a pause.
    """

    def __init__(self, wanted: bool, segments: Segments, scheduler: Scheduler, progress: ProgressReporter):
        self._wanted = wanted
        self._segments = segments
        self._scheduler = scheduler
        self._progress = progress
        self._closed = False

    def begin(self) -> None:
        """Start no further task."""
        self._wanted = True

    def end(self) -> None:
        """Continue; the trainers start again."""
        self._wanted = False
        if self._closed:
            self._closed = False
            self._progress.resume()
            self._segments.open()

    def keeps(self, in_flight: bool) -> bool:
        """Return whether no task may start; give the trainers back once none is in flight.

        Parameters
        ----------
        in_flight : bool
            Whether a task is in flight.
        """
        if self._wanted and not in_flight and not self._closed:
            self._closed = True
            for segment in self._scheduler.segments:
                self._scheduler.segment_down(segment)
            self._segments.pause()
            self._progress.pause()
        return self._wanted


class RunningModels(RunSide):
    """The `RunSide` of a run that trains.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels
    segments : Segments
    progress : ProgressReporter
    deciders : sequence of Decider
    recorded : list of Visit or None
        For a replay: the visits to repeat.
    slots : StateSlots, optional
        Those of the record if omitted.
    """

    trains = True

    def __init__(
        self,
        record: Record,
        run: RunRow,
        models: RunModels,
        segments: Segments,
        progress: ProgressReporter,
        deciders: Sequence[Decider],
        recorded: Sequence[Visit] | None = None,
        slots: StateSlots | None = None,
    ):
        super().__init__(record, run, models, slots, deciders)
        self.progress = progress
        self.stops = EarlyStops(record, run, self.models, self.slots, progress)
        self._groups_graphs = run.plan.any_trainer or (recorded is None and SCHEDULES[run.schedule].groups_graphs)
        self.scheduler = self._make_scheduler(recorded)
        self.evaluations = Evaluations(record, run, self.scheduler, self.models, self.groups.unit_of)
        self.pause = RunPause(run.paused_by is not None, segments, self.scheduler, progress)
        self._held: set[Unit] = set()  # fused groups for which a command waits
        self.at_hosts: StatesAtHosts | None = None
        if run.plan.direct_hops is not None:
            unit_of, tell = self.groups.unit_of, progress.tell
            self.at_hosts = StatesAtHosts(record, run, self.scheduler, self.slots, unit_of, segments, tell)

    def bring_home(self, mst_key: int) -> bool:
        return self.at_hosts is None or self.at_hosts.bring_home(mst_key)

    @property
    def in_search(self) -> bool:
        return any(each.decides for each in self.deciders)

    # Fused groups

    def release_held(self) -> None:
        for unit in self._held:
            self.scheduler.release(unit)
        self._held.clear()

    def separate(self, mst_key: int) -> None:
        unit = self.groups.unit_of(mst_key)
        if len(unit) == 1:
            return
        if self.scheduler.is_busy(unit):
            self.scheduler.hold(unit)
            self._held.add(unit)
            raise NotYet
        self.dissolve(unit, f"a command changes mst_key {mst_key}")

    def dissolve(self, unit: Unit, why: str) -> None:
        """Let the models of a fused group, which is in no visit, train separately from their current states."""
        alive = [mst_key for mst_key in unit if self.models[mst_key].is_alive]
        self.scheduler.drop(unit)
        self.set_run(plan=self.run.plan.without_groups(self.groups.dissolve(unit)))
        self.progress.tell(f"mst_keys {', '.join(map(str, alive))} train separately from now on: {why}")
        for work in self._works((mst_key,) for mst_key in alive):
            self.scheduler.add_model(work)

    def dissolve_repeated(self) -> None:
        """In a replay, let members of groups train separately where they did in the run."""
        for unit in self.groups.repeated(self.models):
            if not self.scheduler.is_busy(unit):
                self.dissolve(unit, f"as in run {self.run.parent_run_id}")

    # After a change was committed

    def epoch_in_visit(self, mst_key: int) -> int | None:
        for segment in self.scheduler.segments:
            task = self.scheduler.in_flight(segment)
            if isinstance(task, Visit) and mst_key in task.unit:
                return task.epoch
        return None

    def recorded(self) -> None:
        """Do nothing: the run trains."""

    def added(self, models: Sequence[ModelRow]) -> None:
        self.slots.add_models(len(models))
        for model in models:
            self.stops.add_model(model.mst_key)
            self.progress.model_added(model)
            self._schedule(model.mst_key)

    def extended(self, mst_key: int) -> None:
        self.stops.extended(mst_key)
        self.scheduler.extend((mst_key,), self.models[mst_key].last_epoch)
        self.progress.model_added(self.models[mst_key])

    def shortened(self, mst_key: int, evaluates: bool) -> None:
        self.scheduler.finish_early(self.groups.unit_of(mst_key))
        if evaluates:
            self.stops.restore_measured(mst_key)
            self.evaluations.end_epoch(mst_key)

    def stopped(self, mst_key: int) -> None:
        """Start no further visit of a stopped model; a fused group continues while one of its members does."""
        unit = self.groups.unit_of(mst_key)
        if not any(self.models[member].is_alive for member in unit):
            self.scheduler.drop(unit)
        self.evaluations.forget(mst_key)
        self.progress.model_stopped(mst_key, self.scheduler)

    def resumed(self, mst_key: int) -> None:
        """Continue a model that was resumed; metrics of an epoch that it completed meanwhile are computed."""
        if self.scheduler.has_model((mst_key,)):
            self.scheduler.revive((mst_key,))
        else:
            self._schedule(mst_key)
        self.progress.model_added(self.models[mst_key])
        self.evaluations.end_epoch(mst_key)

    def paused(self) -> None:
        self.pause.begin()

    def unpaused(self) -> None:
        self.pause.end()

    def tell(self, sentence: str) -> None:
        self.progress.tell(sentence)

    def decided(self, event: SearchEvent) -> None:
        self.progress.decided(event)

    # The scheduler's units

    def _schedule(self, mst_key: int) -> None:
        (work,) = self._works([(mst_key,)])
        self.scheduler.add_model(work)

    def _make_scheduler(self, recorded: Sequence[Visit] | None) -> Scheduler:
        rows = {shard.segment_id: shard.n_rows for shard in self.run.plan.training.segments}
        units = dict.fromkeys(self.groups.unit_of(mst_key) for mst_key in self.models)
        schedule = "recorded" if recorded is not None else self.run.schedule
        visits = None if recorded is None else self.groups.visits(recorded)
        any_trainer = self.run.plan.any_trainer
        scheduler = make_scheduler(schedule, self._works(units), rows, visits, self._n_at_once, any_trainer)
        for unit in units:
            if not any(self.models[mst_key].is_alive for mst_key in unit):
                scheduler.drop(unit)  # one that was stopped may be resumed
        return scheduler

    @property
    def _n_at_once(self) -> int | None:
        """How many visits can compute at the same time; None if not all trainers are on this server."""
        if any(shard.place is not None for shard in self.run.plan.training.segments):
            return None
        return max(1, processors() // self.run.n_threads)

    def _works(self, units: Iterable[Unit]) -> list[ModelWork]:
        """Return units with their progress."""
        n_segments = len(self.run.plan.training.segments)
        indices = self.groups.indices(list(self.models.values()))
        members = {unit: [self.models[mst_key] for mst_key in unit] for unit in units}
        # members that are alive have made the same visits; in a replay, some end before the others
        going_on = {unit: [m for m in of if m.is_alive] or of for unit, of in members.items()}
        chosen = {unit: max(of, key=lambda m: (m.epoch, m.position)) for unit, of in going_on.items()}
        last_epochs = {unit: max(m.last_epoch for m in of) for unit, of in going_on.items()}
        within = {m.mst_key: m.epoch for m in chosen.values() if 0 < m.position < n_segments}
        visited: dict[int, list[tuple[int, int]]] = {mst_key: [] for mst_key in within}
        if any(self.models[key].has_own_visits for key in within):
            for visit in self.record.visits(self.run.run_id):
                if visit.epoch == within.get(visit.mst_key):
                    visited[visit.mst_key].append((visit.position, visit.segment_id))
        works = []
        for unit, m in chosen.items():
            own = (segment for _, segment in sorted(visited.get(m.mst_key, [])))
            places = (*m.visited(m.position), *own) if m.mst_key in within else ()
            epoch = m.epoch if m.mst_key in within else m.epoch + 1
            if m.state is ModelState.FAILED:
                epoch, places = last_epochs[unit] + 1, ()
            turn, last = m.cloned_from.turn if m.cloned_from is not None else None, last_epochs[unit]
            works.append(ModelWork(unit, indices[unit], last, epoch, places, turn=turn, graph=self._graph_of(m)))
        return works

    def _graph_of(self, model: ModelRow) -> str | None:
        """Return what models of one compiled graph share; None if it does not matter for the schedule."""
        return signature_of(model.configuration) if self._groups_graphs else None


class Hopper(RunLoop[Task]):
    """A running run; further parameters are those of `RunLoop`.

    Parameters
    ----------
    recorded : list of Visit or None
        For a replay: the visits to repeat.
    deciders : sequence of Decider
        Notified of the models' progress; can change the run's models.
    policy : Policy or None
        Notified of metrics; issues commands.
    """

    _plan: Scheduler

    def __init__(
        self,
        record: Record,
        segments: Segments,
        run: RunRow,
        progress: ProgressReporter,
        recorded: Sequence[Visit] | None = None,
        deciders: Sequence[Decider] = (),
        policy: Policy | None = None,
    ):
        super().__init__(record, segments, run, progress)
        self._deciders = deciders
        self._running = RunningModels(record, run, self._models, segments, progress, deciders, recorded)
        self._plan = self._running.scheduler
        self._slots = self._running.slots
        self._stops = self._running.stops
        self._groups = self._running.groups
        self._evaluations = self._running.evaluations
        self._policy = policy
        self._at_hosts = self._running.at_hosts
        self._up: set[int] = set()  # segments whose sessions are open
        self._again: dict[int, Again] = {}  # by segment: the recorded visit that it makes again
        self._compacted = 0.0
        self._servers = {shard.segment_id: shard.server for shard in run.plan.training.segments}
        for shard in run.plan.training.segments:
            self._plan.segment_down(shard.segment_id)

    @cached_property
    def _changes(self) -> Changes:
        return Changes(self._running)

    @property
    def _is_time_over(self) -> bool:
        return any(each.time_over is not None for each in self._deciders)

    def _apply_commands(self) -> None:
        """Apply the commands that are pending."""
        self._running.release_held()
        if commands := self._record.commands(self._run_id, ChangeState.PENDING):
            self._changes.apply(commands)

    def _begun(self) -> None:
        if self._at_hosts is not None:
            self._at_hosts.sweep()
        self._running.dissolve_repeated()
        for decider in self._deciders:
            self._changes.make_all(decider.begin(self._models))
        self._apply_commands()
        if any(model.has_own_visits for model in self._models.values()):
            self._metrics_came()  # a dead driver may not have had an answer to the last ones

    def _notified(self) -> None:
        self._apply_commands()

    def _is_over(self) -> bool:
        if not self._plan.done or (self._policy is not None and self._policy.is_at_work()):
            return False
        if self._again or (self._at_hosts is not None and not self._at_hosts.all_home()):
            return False
        self._apply_commands()
        return self._plan.done

    def _policy_over(self, event: PolicyAnswered | PolicyFailed) -> None:
        assert self._policy is not None, "only a policy is evaluated"
        if self._policy.evaluated(event, is_late=self._is_time_over):
            self._apply_commands()

    def _metrics_came(self) -> None:
        if self._policy is not None and not self._is_time_over:
            self._policy.metrics_came()

    def _start_tasks(self) -> None:
        if not self._running.pause.keeps(bool(self._in_flight)):
            self._start_again()
            super()._start_tasks()
        elif not self._in_flight:
            self._up.clear()

    def _tick(self) -> None:
        if self._at_hosts is not None:
            self._at_hosts.tick()
        self._running.dissolve_repeated()
        self._compact()
        for decider in self._deciders:
            self._changes.make_all(decider.tick())

    def _ended(self) -> None:
        for decider in self._deciders:
            self._changes.make_all(decider.ended())
        if self._at_hosts is not None:
            self._at_hosts.end()
        self._progress.run_over()

    def _order(self, flight: InFlight[Task], attempt: int) -> Order:
        task = flight.task
        places = self._groups.places(task.unit)
        if isinstance(task, Evaluation):
            return self._evaluations.order(task, places)
        stays = self._stays_at_host(task)
        return Train(
            members=tuple(self._write(flight, key, stays) if self._makes(key, task) else None for key in places),
            shard=ShardName("training", task.segment),
            epoch=task.epoch,
            position=task.position,
            attempt=attempt,
            place=place_of(task),
            sample=self._sample_of(task),
        )

    # States at hosts

    def _without_state(self, task: Task, answer: StateAway | StateGone) -> None:
        assert self._at_hosts is not None, "hosts hold states"
        self._plan.requeue(task)
        if isinstance(answer, StateAway):
            self._at_hosts.away(task.unit, answer)
        else:
            self._at_hosts.gone(answer)

    def _start_again(self) -> None:
        """Begin the visits that are made again, outside the schedule: their segments are not in it meanwhile."""
        if self._at_hosts is None:
            return
        for segment, again in self._at_hosts.next_again(self._up - self._in_flight.keys()):
            self._plan.segment_down(segment)
            visit = again.visit
            task = Visit(self._groups.unit_of(again.mst_key), segment, visit.epoch, visit.position)
            flight = self._in_flight[segment] = InFlight(task, time.monotonic())
            slot = None if self._servers[segment] is not None else self._begin_write(flight, again.mst_key)
            flight.order = Train(
                members=(StateWrite(again.mst_key, slot, again.version),),
                shard=ShardName("training", segment),
                epoch=visit.epoch,
                position=visit.position,
                attempt=self._attempts.begin(task),
                place=place_of(task),
                again_from=again.from_version,
            )
            self._again[segment] = again
            self._segments.begin(segment, flight.order)

    def _happened(self, event: SegmentEvent) -> None:
        if isinstance(event, SegmentReady):
            self._up.add(event.segment)
            if self._at_hosts is not None:
                self._at_hosts.ready(event.segment)
        elif isinstance(event, SegmentLost):
            self._up.discard(event.segment)
        if isinstance(event, SegmentLost | TaskAnswered | TaskFailed) and event.segment in self._again:
            self._again_ended(self._again.pop(event.segment), self._in_flight.pop(event.segment), event)
            if not isinstance(event, SegmentLost):
                self._plan.segment_up(event.segment)
        else:
            super()._happened(event)

    def _again_ended(
        self, again: Again, flight: InFlight[Task], event: SegmentLost | TaskAnswered | TaskFailed
    ) -> None:
        """Continue after a visit that was to be made again."""
        assert self._at_hosts is not None, "it has asked for it"
        self._signal.changed()
        answer = event.answer if isinstance(event, TaskAnswered) else None
        if isinstance(answer, VisitsCommitted):
            self._end_write(flight, {visit.mst_key: visit.state_bytes for visit in answer.committed})
            self._at_hosts.made(again)
            return
        self._end_write(flight)
        if isinstance(answer, StateGone):
            self._at_hosts.base_gone(again, answer)
            return
        self._at_hosts.not_made(again)
        if isinstance(answer, StateAway):
            self._at_hosts.away([again.mst_key], answer)
        elif not isinstance(event, SegmentLost):
            if isinstance(answer, Died):
                self._plan.trainer_died(event.segment)
            failed = answer if isinstance(answer, Failed | Died) else SqlFailed(_error_of(event))
            decision = self._attempts.decide(flight.task, failed)
            if decision.ends_run:
                raise from_dict(decision.error)
            if not decision.again and self._models[again.mst_key].state is not ModelState.FAILED:
                self._plan.drop(flight.task.unit)
                self._write_failure(again.mst_key, flight.task, decision)

    def _sample_of(self, visit: Visit) -> int | None:
        """Return the segment of the sample on which the model is evaluated after the visit, if that is due."""
        sample = self._running.run.plan.sample
        if sample is None:
            return None
        first = min(self._models[key].first_epoch for key in visit.unit)
        n_visits = (visit.epoch - first) * self._running.run.n_segments + visit.position
        return sample.segment_id if sample.is_due(n_visits) else None

    def _makes(self, mst_key: int | None, visit: Visit) -> TypeGuard[int]:
        """Return whether the model of a place makes a visit; models of a unit can have ended before the others."""
        return mst_key is not None and self._models[mst_key].is_alive and self._groups.joins(mst_key, visit)

    def _write(self, flight: InFlight[Task], mst_key: int, stays: bool) -> StateWrite:
        """Return the slot for a model's next state, unless it stays at the segment's host."""
        slot = None if stays else self._begin_write(flight, mst_key)
        return StateWrite(mst_key, slot, self._models[mst_key].state_version + 1)

    def _stays_at_host(self, visit: Visit) -> bool:
        """Return whether the states that a visit makes stay at the segment's host."""
        hops = self._running.run.plan.direct_hops
        if hops is None or self._servers[visit.segment] is None:
            return False
        members = [self._models[key] for key in visit.unit if self._makes(key, visit)]
        return not any(self._comes_home(model, visit, hops) for model in members)

    def _comes_home(self, model: ModelRow, visit: Visit, hops: HopPlan) -> bool:
        """Return whether the state that a visit makes is needed on this server: output tables, checkpoints and best
        states are made of those after complete iterations."""
        if visit.position < self._n_segments:
            return False
        is_due = hops.checkpoint_every is not None and model.iteration(visit.epoch) % hops.checkpoint_every == 0
        return visit.epoch == model.last_epoch or is_due or bool((model.early_stopping or {}).get("restore_best"))

    def _done(self, flight: InFlight[Task], answer: Done, ended: float) -> None:
        task, seconds = flight.task, ended - flight.started
        if self._at_hosts is not None:
            self._at_hosts.reached(task.unit)
        epoch = task.epoch if isinstance(task, Visit) else evaluation_task(task).epoch
        self._account.add(Span(task.unit, task.at, epoch, flight.started, ended, isinstance(task, Evaluation)))
        if isinstance(task, Visit):
            assert isinstance(answer, VisitsCommitted), "it was a visit"
            steady_s = answer.steady_s or seconds
            once_s = max(0.0, seconds - steady_s)
            self._visit_kept(task, flight, answer.committed, answer.failed, steady_s, once_s)
        else:
            assert isinstance(answer, Evaluated | MetricsComputed), "it was an evaluation"
            self._plan.finished(task, seconds)
            complete = self._evaluations.finished(task, answer, seconds, self._progress.elapsed_s)
            if complete:
                self._metrics_came()
            for mst_key, metrics in complete.items():
                self._progress.metrics_known(mst_key, epoch, metrics)
                stops = self._stops.measured(mst_key, metrics)
                if stops:
                    self._stopped_early(mst_key)
                self._epoch_over(mst_key, epoch, metrics)
                if stops:
                    self._progress.stopped_early(mst_key, self._plan)

    def _stopped_early(self, mst_key: int) -> None:
        self._plan.finish_early((mst_key,))

    def _was_kept(self, flight: InFlight[Task]) -> bool:
        task, order = flight.task, flight.order
        if not isinstance(task, Visit):
            return False
        assert isinstance(order, Train), "it was a visit"
        keys = [write.mst_key for write in order.members if write is not None]
        visits = {key: self._record.visit(self._run_id, key, task.epoch, task.segment) for key in keys}
        recorded: dict[int, ModelRow] = {}
        if len(order.members) > 1 or any(write is not None and write.slot is None for write in order.members):
            recorded = {m.mst_key: m for m in self._record.models(self._run_id)}
        kept = [
            CommittedVisit(key, v.digest_out, v.state_bytes, recorded[key].state_server if key in recorded else None)
            for key, v in visits.items()
            if v is not None
        ]
        failed: list[FailedMember] = []
        if len(order.members) > 1:  # the failure of a member is committed with the visits of the others
            failed = [
                FailedMember(key, recorded[key].state_detail or "")
                for key in visits
                if recorded[key].state is ModelState.FAILED
            ]
        if kept or failed:
            seconds = max((visit.seconds for visit in visits.values() if visit is not None), default=0.0)
            self._visit_kept(task, flight, kept, failed, seconds, 0.0)
        return bool(kept or failed)

    def _visit_kept(
        self,
        task: Visit,
        flight: InFlight[Task],
        kept: Sequence[CommittedVisit],
        failed: Sequence[FailedMember],
        seconds: float,
        once_s: float,
    ) -> None:
        """Continue after a committed visit.

        ``kept`` has each trained model; ``failed`` those of a fused group that failed in it, which is recorded with the
        visit. ``seconds`` is what the visit cost without ``once_s``, which is paid once.
        """
        self._end_write(flight, {visit.mst_key: visit.state_bytes for visit in kept})
        for member in failed:
            was_alive = self._models[member.mst_key].is_alive
            self._models.failure_kept(member.mst_key, member.reason)
            self._failed(member.mst_key, member.reason, was_alive)
        for visit in kept:
            self._models.visit_kept(visit.mst_key, visit.digest, task.epoch, task.position, visit.server)
        if not kept:
            self._plan.failed(task)
            return
        done = self._plan.finished(task, seconds, once_s)
        if not any(self._models[key].is_alive for key in task.unit):
            self._plan.drop(task.unit)  # its last member failed in this visit, during which the others were stopped
        if self._sample_of(task) is not None:
            self._metrics_came()
        for visit in kept:
            for decider in self._deciders:
                self._changes.make_all(decider.visited(visit.mst_key))
        trained = [v.mst_key for v in kept if self._models[v.mst_key].is_alive]  # others were stopped meanwhile
        if done is not None and trained and not self._evaluations.begin(trained, done.epoch):
            for key in trained:
                self._epoch_over(key, done.epoch)

    def _epoch_over(self, mst_key: int, epoch: int, metrics: Sequence[Metric] = ()) -> None:
        if epoch == self._models[mst_key].last_epoch:
            self._stops.restore(mst_key)
            self._models.trained(mst_key)
        self._progress.epoch_over(mst_key, epoch, self._plan)
        if self._models[mst_key].state is ModelState.TRAINED:
            for decider in self._deciders:
                self._changes.make_all(decider.reached(mst_key, epoch, metrics))

    def _refused(self, task: Task, decision: RetryDecision) -> None:
        """Continue after a task without a result: repeat it, split its unit, fail its model, or end the run."""
        mst_keys = task.unit if isinstance(task, Visit) else evaluation_task(task).mst_keys
        if decision.again:
            self._plan.requeue(task)
        elif decision.ends_run:
            raise from_dict(decision.error)
        elif len(mst_keys) == 1:
            self._fail_model(mst_keys[0], task, decision)
        elif isinstance(task, Visit):
            self._plan.failed(task)
            self._running.dissolve(task.unit, f"together, {decision.reason(task)}")
        else:
            self._plan.finished(task, 0.0)
            self._evaluations.split(task)

    def _fail_model(self, mst_key: int, task: Task, decision: RetryDecision) -> None:
        """Fail a model by its task; if its newest state is damaged, its best one is kept."""
        if any(self._models[key].is_alive for key in task.unit if key != mst_key):
            self._plan.finished(task, 0.0)  # an evaluation of one of several models: the others continue
        else:
            self._plan.failed(task)
        self._write_failure(mst_key, task, decision)

    def _write_failure(self, mst_key: int, task: Task, decision: RetryDecision) -> None:
        """Record that a model has failed by a task, and continue without it."""
        model = self._models[mst_key]
        if model.state is ModelState.FAILED:  # another of its evaluations has already failed
            return
        reason, best = decision.reason(task), None if model.is_restored else model.best_state
        if best is None or decision.error.get("sqlstate") != DataDamaged.sqlstate:
            self._models.failed(mst_key, reason)
        else:
            hint = how_to_train_again(self._run_id, mst_key, model.iteration(best.epoch))
            reason = replace(decision, error={**decision.error, "hint": hint}).reason(task)
            self._stops.fail_damaged(mst_key, reason)
        self._failed(mst_key, reason, model.is_alive)

    def _failed(self, mst_key: int, reason: str, was_alive: bool) -> None:
        """Continue without a failed model; its failure is recorded. The deciders were told of one that was stopped."""
        if self._at_hosts is not None:
            self._at_hosts.forget(mst_key)
        self._evaluations.forget(mst_key)
        self._stops.forget(mst_key)
        self._progress.model_failed(mst_key, reason, self._plan)
        if was_alive:
            for decider in self._deciders:
                self._changes.make_all(decider.failed(mst_key))

    def _compact(self) -> None:
        if self._at_hosts is not None:
            return  # few states are here, and older ones than those that it would move
        if time.monotonic() - self._compacted > self._slots.pause_s:
            self._compacted = time.monotonic()
            busy = {key for flight in self._in_flight.values() for key in flight.task.unit}
            kept = map(best_key, self._models)  # a visit does not write its model's best state
            self._slots.compact({*self._models, *kept} - busy)


def _error_of(event: TaskAnswered | TaskFailed) -> Header:
    """Return the error of a task that has failed."""
    if isinstance(event, TaskFailed):
        return event.error
    assert isinstance(event.answer, SqlFailed), "segments answer the others themselves"
    return event.answer.error
