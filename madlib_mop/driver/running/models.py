"""The models of a run that trains, with all that must agree on them: scheduler, fused groups, slots, evaluations, early
stopping and progress. The hopper works with them, and changes are applied to them."""

from collections.abc import Iterable, Sequence

from mop_backend.machine import processors

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import SearchEvent
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.catalog.state_slots import StateSlots
from madlib_mop.driver.changes.deciders import Decider
from madlib_mop.driver.changes.side import NotYet, RunSide
from madlib_mop.driver.evaluation.early_stopping import EarlyStops
from madlib_mop.driver.evaluation.evaluations import Evaluations
from madlib_mop.driver.running.pausing import RunPause
from madlib_mop.driver.running.segments import Segments
from madlib_mop.driver.session.progress import ProgressReporter
from madlib_mop.models.sharing import Architectures
from madlib_mop.schedule import SCHEDULES, ModelWork, Scheduler, Unit, Visit, make_scheduler


class RunningModels(RunSide):
    """The `RunSide` of a run that trains.

    Parameters
    ----------
    record : Record
    run : RunRow
    models : RunModels
    segments : Segments
    progress : ProgressReporter
    decider : Decider
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
        decider: Decider,
        recorded: Sequence[Visit] | None = None,
        slots: StateSlots | None = None,
    ):
        super().__init__(record, run, models, slots, decider)
        self.progress = progress
        self.stops = EarlyStops(record, run, self.models, self.slots, progress)
        groups_graphs = run.plan.any_trainer or (recorded is None and SCHEDULES[run.schedule].groups_graphs)
        self._graphs = Architectures() if groups_graphs else None
        self.scheduler = self._make_scheduler(recorded)
        self.evaluations = Evaluations(record, run, self.scheduler, self.models, self.groups.unit_of)
        self.pause = RunPause(run.paused_by is not None, segments, self.scheduler, progress)
        self._held: set[Unit] = set()  # fused groups for which a command waits

    @property
    def in_search(self) -> bool:
        return self.decider.decides

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
        return None if self._graphs is None else self._graphs.signature(model.configuration)
