"""The scheduler: which model visits which segment next, from events alone; driver and simulator use the same object."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from .costs import MeasuredCosts
from .progress import ModelProgress, bits, first_from
from .ready import KnownGraphs, ReadyModels
from .rules import Rotation
from .trainers import Trainers
from .work import EpochDone, Evaluation, ModelWork, Task, Unit, Visit, check_works, title


class Scheduler:
    """Plans a run by events; made by :func:`.making.make_scheduler`.

    It has no clock, no threads and no randomness: the same events in the same order give the same plan. The caller's
    loop is: start what :meth:`next_tasks` gives, wait until something ends, report it, and so on until :attr:`done`.

    A task given out is *in flight* and belongs to the caller until the caller reports it, exactly once, by
    :meth:`finished`, :meth:`requeue` or :meth:`failed`; till then its segment is busy, and for a visit its model too.
    A report of a task that is not in flight raises ValueError. Tasks are immutable.

    Invariants: a segment has at most one task in flight. A model is in one visit, or in evaluations (any
    number, on different segments), never in both. In every epoch it makes one visit a segment, and it begins the next
    epoch after the last visit of the one before. On a segment, evaluations come before visits, in the order in which
    they were added: they are short, and their models can train no further before them.

    ``segments`` are the run's segments in the rotation's order, ``schedule`` is the name asked for. If
    ``any_trainer`` is set, each segment's trainer can hold the rows of all, and a task says whose makes it
    (:class:`.trainers.Trainers`). Then a segment that is busy or down means its trainer: others train on its rows.

    An event looks at the models that wait, see :class:`.ready.ReadyModels`; memory is O(n + p).
    """

    def __init__(
        self,
        rule: Rotation,
        models: Sequence[ModelWork],
        segment_rows: Mapping[int, int],
        n_at_once: int | None = None,
        any_trainer: bool = False,
    ):
        self.schedule = rule.name
        self._rule = rule
        self.segments = tuple(segment_rows)  # a segment's number is its index here
        self._numbers = {segment: number for number, segment in enumerate(self.segments)}
        self._costs = MeasuredCosts([max(1, n_rows) for n_rows in segment_rows.values()])
        self._all, self._all_rows = (1 << len(self.segments)) - 1, sum(self._costs.weights)
        self._trainers: Trainers | None = None
        if any_trainer:
            at_once = n_at_once if rule.groups_graphs else None
            self._trainers = Trainers(len(self.segments), lambda: self._models.values(), self._costs, at_once)
        by_graph = rule.groups_graphs and not any_trainer
        self._graphs = KnownGraphs(len(self.segments), n_at_once) if by_graph else None
        rank = rule.rank
        if self._trainers is not None and rule.compares_early:
            rank = partial(self._trainers.early_rank, rule)
        self._ready = ReadyModels(len(self.segments), self._choose, rank, self._graphs)
        self._evaluations: list[deque[Evaluation]] = [deque() for _ in self.segments]
        self._in_flight: dict[int, Task] = {}  # by the number of the segment whose trainer makes it
        self._free = self._fresh = self._all  # fresh: changed since the last next_tasks
        self._down = 0
        self._n_unfinished = 0  # models with remaining visits
        self._n_queued = 0  # evaluations that have not started
        self._models = {work.unit: self._begin(work) for work in models}
        self._indices = {work.index for work in models}
        self._unbind()

    # Main loop

    def next_tasks(self) -> list[Task]:
        """Start all tasks that can start now, on free segments with free models, and return them."""
        if self._trainers is not None:
            return self._next_at(self._trainers)
        tasks: list[Task] = []
        for number in bits(self._fresh & self._free):
            if self._evaluations[number]:
                self._n_queued -= 1
                tasks.append(self._start(number, self._evaluations[number].popleft()))
        for model, number in self._ready.match(self._free, self._fresh & self._free, len(self._in_flight)):
            model.in_flight = True
            visit = Visit(model.unit, self.segments[number], model.epoch, model.position + 1)
            tasks.append(self._start(number, visit))
        self._fresh = 0
        return tasks

    def _next_at(self, trainers: Trainers) -> list[Task]:
        """Do the same where any trainer can make a visit; a model may then wait for the one that has its graph."""
        tasks: list[Task] = []
        for queue in self._evaluations:
            for evaluation in tuple(queue) if self._free else ():
                at = trainers.for_evaluation(self._models[evaluation.unit], self._free)
                if at is not None:
                    queue.remove(evaluation)
                    self._n_queued -= 1
                    tasks.append(self._start(at, replace(evaluation, trainer=self.segments[at])))
        for at in bits(self._free):
            model = trainers.next_visit(self._ready, at, len(self._in_flight))
            if model is not None:
                model.in_flight = True
                place = self.segments[self._ready.start(model)], model.epoch, model.position + 1
                tasks.append(self._start(at, Visit(model.unit, *place, trainer=self.segments[at])))
        return tasks

    def finished(self, task: Task, seconds: float, once_s: float = 0.0) -> EpochDone | None:
        """Report that a task has ended and its result is committed.

        ``seconds`` is what the task cost, best without what is paid once (a trainer's start, a first trace):
        longest_first and auto judge the model by it. ``once_s`` is what was paid once. Gives EpochDone if the task
        completed an epoch of its model; that epoch's evaluations are to be added before the next call of
        :meth:`next_tasks`.
        """
        model, number = self._end(task)
        if isinstance(task, Evaluation):
            model.n_evaluations -= 1
            self._offer(model)
            return None
        model.left &= ~(1 << number)
        model.position += 1
        model.n_visits += 1
        model.rows_left -= self._costs.weights[number]
        is_slowness_other = self._costs.add(model, number, seconds)
        if self._graphs is not None:
            self._graphs.measured(seconds, once_s)
        if self._trainers is not None:
            self._trainers.measured(once_s)
        done = None if model.left or model.dropped else self._complete_epoch(model)
        if is_slowness_other:
            self._weigh_again()
        self._unbind()
        self._offer(model)
        return done

    def requeue(self, task: Task) -> None:
        """Report that a task has no result and must be repeated, without a fault of its model.

        Under rotation and recorded the same visit comes again. A model that may choose may spend the visit's
        position on another segment.
        """
        model, number = self._end(task)
        if isinstance(task, Evaluation) and model.dropped:
            model.n_evaluations -= 1
        elif isinstance(task, Evaluation):
            self._evaluations[number].appendleft(task)
            self._n_queued += 1
        self._offer(model)

    def failed(self, task: Task) -> None:
        """Report that a task has failed for good: its model is dropped, see :meth:`drop`."""
        model, _ = self._end(task)
        if isinstance(task, Evaluation):
            model.n_evaluations -= 1
        self.drop(model.unit)

    @property
    def done(self) -> bool:
        """Return whether nothing is in flight and nothing is left to start; a model held back is something left."""
        return not (self._n_unfinished or self._in_flight or self._n_queued)

    # Other events of models

    def add_model(self, work: ModelWork) -> None:
        """Add a model, at any time.

        Raises
        ------
        InvalidParameter
            Its unit or its index is there already, or it has visited a segment that is not there.
        """
        check_works([work], self.segments, self._models.keys(), self._indices)
        self._indices.add(work.index)
        self._models[work.unit] = self._begin(work)
        self._rule.n_models = len(self._models)
        self._unbind()

    def extend(self, unit: Unit, last_epoch: int) -> None:
        """Extend a model to the end of ``last_epoch``, whether or not it has completed its epochs.

        Under recorded it makes no visits but recorded ones.

        Raises
        ------
        ValueError
            The model was dropped, or goes on for longer already; :meth:`finish_early` is what ends one.
        """
        model = self._models[unit]
        if model.dropped or last_epoch < model.last_epoch:
            raise ValueError(
                f"{title(unit)} was dropped, or continues until epoch {model.last_epoch}, received {last_epoch}"
            )
        was_over, before = model.over, model.last_epoch
        model.last_epoch = max(before, self._rule.last_epoch(model, last_epoch))
        if model.over:
            return
        self._withdraw(model)  # its rank may change
        self._n_unfinished += was_over
        if was_over:
            model.left = self._rule.segments_of(model, model.epoch)
        for epoch in range(before + 1, model.last_epoch + 1):
            model.rows_left += self._rows_in(self._rule.segments_of(model, epoch))
        self._costs.plan(model.last_epoch - before)
        self._offer(model)

    def finish_early(self, unit: Unit) -> int:
        """Begin no further epoch of a model, and return its last epoch.

        That is the epoch that it is in, if a visit of it was made or is in flight: its other visits are made too, so
        that its state is one of a whole epoch. Its evaluations go on, and :meth:`extend` may let it go on later.
        """
        model = self._models[unit]
        begun = model.position > 0 or model.in_flight
        last_epoch = model.epoch if begun else model.epoch - 1
        if model.dropped or last_epoch >= model.last_epoch:
            return model.last_epoch
        self._withdraw(model)
        for epoch in range(last_epoch + 1, model.last_epoch + 1):
            model.rows_left -= self._rows_in(self._rule.segments_of(model, epoch))
        self._costs.plan(last_epoch - model.last_epoch)
        model.last_epoch = last_epoch
        if model.over:
            model.left = 0
            self._n_unfinished -= 1
        self._offer(model)
        return last_epoch

    def add_evaluation(self, unit: Unit, segment: int, payload: object = None) -> Evaluation:
        """Queue an evaluation of a model's newest state; the model trains no further before it has ended.

        Raises
        ------
        ValueError
            The model is in a visit, or was dropped.
        """
        model = self._models[unit]
        if model.in_flight or model.dropped:
            raise ValueError(f"{title(unit)} cannot be evaluated while it is in a visit or after it was dropped")
        evaluation, number = Evaluation(unit, segment, payload), self._numbers[segment]
        self._withdraw(model)
        model.n_evaluations += 1
        self._evaluations[number].append(evaluation)
        self._n_queued += 1
        self._fresh |= 1 << number
        return evaluation

    def has_model(self, unit: Unit) -> bool:
        """Return whether a model was added, whatever became of it."""
        return unit in self._models

    def is_busy(self, unit: Unit) -> bool:
        """Return whether a task of a model is in flight or an evaluation of it is queued."""
        return bool(self._models[unit].in_flight or self._models[unit].n_evaluations)

    def evaluations_left(self, unit: Unit) -> int:
        """Count the evaluations of a model that are queued or in flight."""
        return self._models[unit].n_evaluations

    def hold(self, unit: Unit) -> None:
        """Start no visit of a model until :meth:`release`; its visit in flight and its evaluations go on."""
        self._models[unit].held = True
        self._withdraw(self._models[unit])

    def release(self, unit: Unit) -> None:
        """End :meth:`hold`."""
        self._models[unit].held = False
        self._offer(self._models[unit])

    def drop(self, unit: Unit) -> None:
        """Start no further task of a model, and drop its queued evaluations.

        Tasks in flight must still be reported, in any of the three ways.
        """
        model = self._models[unit]
        if model.dropped:
            return
        self._withdraw(model)
        self._n_unfinished -= not model.over
        model.dropped = True
        for number, queue in enumerate(self._evaluations):
            kept = deque(evaluation for evaluation in queue if evaluation.unit != unit)
            model.n_evaluations -= len(queue) - len(kept)
            self._n_queued -= len(queue) - len(kept)
            self._evaluations[number] = kept

    def revive(self, unit: Unit) -> None:
        """End :meth:`drop`: let a model go on with the visits that it has not made.

        If it has completed an epoch meanwhile, the caller adds that epoch's evaluations before the next call of
        :meth:`next_tasks`; it can tell by the model's committed visits.
        """
        model = self._models[unit]
        if not model.dropped:
            return
        model.dropped = False
        if model.over:
            return
        self._n_unfinished += 1
        if not model.left and not model.in_flight:  # the visit in flight at the drop was the last of its epoch
            self._complete_epoch(model)
        model.rows_left = self._rows_left(model) if not model.over else 0.0
        self._offer(model)

    # Segments

    def segment_down(self, segment: int) -> None:
        """Start nothing on a segment until :meth:`segment_up`; what is in flight there must still be reported."""
        self._down |= 1 << self._numbers[segment]
        self._free &= ~self._down
        self.trainer_died(segment)

    def segment_up(self, segment: int) -> None:
        """End :meth:`segment_down`."""
        self._down &= ~(1 << self._numbers[segment])
        self._set_free(self._numbers[segment])

    def trainer_died(self, segment: int) -> None:
        """Forget which graphs a segment's trainer has traced: another one will take its place."""
        for graphs in (self._graphs, self._trainers):
            if graphs is not None:
                graphs.forget(self._numbers[segment])

    def in_flight(self, segment: int) -> Task | None:
        """Return the task that a segment's trainer has in flight."""
        return self._in_flight.get(self._numbers[segment])

    # Measured and estimated values

    def seconds_left(self) -> float | None:
        """Estimate the time until all visits are done: the lower bound by the costs measured so far, in seconds.

        None before the first measure. O(n): meant for a line a report, not for every event.
        """
        if self._costs.mean_rate is None:
            return None
        left = [self._costs.left(model) for model in self._models.values() if not model.over]
        return max(sum(left) / len(self.segments), max(left, default=0.0))

    # Helpers

    def _begin(self, work: ModelWork) -> ModelProgress:
        model = ModelProgress(work)
        model.last_epoch = self._rule.last_epoch(model, work.last_epoch)
        visited = [self._numbers[segment] for segment in work.visited]
        model.left = self._rule.left_after(model, visited)
        model.n_visits = (work.epoch - 1) * len(self.segments) + len(visited)
        model.rows_left = self._rows_left(model)
        if work.s_per_row is not None:
            self._costs.known(model, work.s_per_row, visited)
        if not model.over:
            self._costs.plan(model.last_epoch - model.epoch + 1)
            self._n_unfinished += 1
            if not model.left:
                self._complete_epoch(model)
        self._offer(model)
        return model

    def _rows_in(self, segments: int) -> float:
        if segments == self._all:
            return self._all_rows
        return sum(self._costs.weights[number] for number in bits(segments))

    def _rows_left(self, model: ModelProgress) -> float:
        later = range(model.epoch + 1, model.last_epoch + 1)
        return self._rows_in(model.left) + sum(self._rows_in(self._rule.segments_of(model, e)) for e in later)

    def _weigh_again(self) -> None:
        """Rank the models again, after a change of a segment's slowness."""
        self._all_rows = sum(self._costs.weights)
        for model in self._models.values():
            if not model.over:
                self._withdraw(model)
                model.rows_left = self._rows_left(model)
                self._offer(model)

    def _complete_epoch(self, model: ModelProgress) -> EpochDone | None:
        complete = model.position == len(self.segments)  # otherwise a recorded run ended within the epoch
        done = EpochDone(model.unit, model.epoch, last=model.epoch == model.last_epoch) if complete else None
        model.epoch += 1
        model.position = 0
        model.roams = False
        if model.over:
            self._n_unfinished -= 1
        else:
            model.left = self._rule.segments_of(model, model.epoch)
        return done

    def _offer(self, model: ModelProgress) -> None:
        """Let a model wait for a segment if nothing keeps it from starting."""
        if not model.ready or model.entry is not None:
            return
        model.roams = model.roams or self._rule.roams(self._costs)
        model.bound_to = None if model.roams else self._rule.next_segment(model)
        self._ready.add(model)
        if model.bound_to is not None:
            self._fresh |= 1 << model.bound_to

    def _withdraw(self, model: ModelProgress) -> None:
        if model.entry is not None:
            self._ready.remove(model)

    def _unbind(self) -> None:
        """Let the models that wait for one segment wait for any, once the rule says that models may choose."""
        if self._ready.n_bound and self._rule.roams(self._costs):
            for model in self._ready.bound():
                self._withdraw(model)
                self._offer(model)

    def _choose(self, model: ModelProgress, segments: int) -> int:
        """Choose where a model starts that may start on several segments: most work left, then rotation's order."""
        start = model.turn % len(self.segments)
        if self._costs.mean_rate is None or not segments & (segments - 1):
            return first_from(segments, start)
        before = (1 << start) - 1
        return self._costs.most_left([*bits(segments & ~before), *bits(segments & before)])

    def _start(self, number: int, task: Task) -> Task:
        self._in_flight[number] = task
        self._free &= ~(1 << number)
        return task

    def _end(self, task: Task) -> tuple[ModelProgress, int]:
        number, at = self._numbers[task.segment], self._numbers[task.at]
        if self._in_flight.get(at) != task:
            raise ValueError(f"{task} is not in flight on its segment")
        del self._in_flight[at]
        self._set_free(at)
        model = self._models[task.unit]
        if isinstance(task, Visit):
            model.in_flight = False
            self._ready.ended(model)
        return model, number

    def _set_free(self, number: int) -> None:
        if number not in self._in_flight and not self._down & (1 << number):
            self._free |= 1 << number
            self._fresh |= 1 << number
