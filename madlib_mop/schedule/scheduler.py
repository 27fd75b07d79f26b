"""The scheduler: which model visits which segment next, from events alone; the driver and the simulator drive the same object."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from madlib_mop.errors import InvalidParameter

from .costs import MeasuredCosts
from .progress import Progress, bits, first_from
from .ready import ReadyModels
from .rules import Rotation, make_rule
from .work import EpochDone, Evaluation, ModelWork, Task, Visit


def make_scheduler(
    schedule: str,
    models: Sequence[ModelWork],
    segment_rows: Mapping[int, int],
    recorded: Iterable[Visit] | None = None,
) -> Scheduler:
    """Make the scheduler of a run, new or resumed.

    Parameters
    ----------
    schedule : {'auto', 'rotation', 'longest_first', 'recorded'}
    models : sequence of ModelWork
        All models of the run, those that have nothing left too: ``auto`` counts them.
    segment_rows : mapping of int to int
        Segment to the rows of its shard; the mapping's order is the rotation's order of segments.
    recorded : iterable of Visit, optional
        For 'recorded': the kept visits of a run, in any order. A model makes exactly its recorded visits; one whose record
        ends within an epoch (it had failed) ends there, one without a record makes none.

    Raises
    ------
    InvalidParameter
        Unknown schedule; no segment; keys, indices or visited segments that are there twice or unknown; a record with gaps.
    """
    segments = tuple(segment_rows)
    if not segments:
        raise InvalidParameter("a run needs at least one segment, received none", hint="Check the packed table: it has no rows.")
    for what, values in (("key", [m.key for m in models]), ("index", [m.index for m in models])):
        if len(set(values)) < len(values):
            raise InvalidParameter(f"two models of a run have the same {what}, received {sorted(values)}")
    numbers = {segment: number for number, segment in enumerate(segments)}
    rule = make_rule(schedule, len(models), numbers, recorded)
    return Scheduler(rule, models, segments, [max(1, segment_rows[segment]) for segment in segments])


MODE = "C"


class Scheduler:
    """Plans a run by events. It has no clock, no threads and no randomness: the same events in the same order give the same plan.

    The caller's loop is: start what :meth:`next_tasks` gives, wait until something ends, report it, repeat until :attr:`done`.

    A task given out is *in flight* and belongs to the caller until the caller reports it, exactly once, by
    :meth:`finished`, :meth:`requeue` or :meth:`failed`; till then its segment is busy, and for a visit its model too.
    A report of a task that is not in flight raises ValueError. Tasks are immutable.

    What holds at any time: a segment has at most one task in flight; a model is in one visit, or in evaluations
    (any number, on different segments), never in both; in every epoch it makes one visit a segment; it begins the next epoch after
    the last visit of the one before. Evaluations come before visits on their segment, in the order in which they were added.
    """

    def __init__(self, rule: Rotation, models: Sequence[ModelWork], segments: tuple[int, ...], units: Sequence[int]):
        self.schedule = rule.name
        self._rule = rule
        self._segments = segments
        self._units = units  # rows by segment number, at least 1
        self._numbers = {segment: number for number, segment in enumerate(segments)}
        self._costs = MeasuredCosts(units)
        self._ready = ReadyModels(len(segments), self._choose)
        self._evaluations: list[deque[Evaluation]] = [deque() for _ in segments]
        self._in_flight: dict[int, Task] = {}  # by segment number
        self._free = self._fresh = (1 << len(segments)) - 1
        self._down = 0
        self._n_unfinished = 0
        self._n_queued = 0
        self._models = {work.key: self._begin(work) for work in models}

    # the loop

    def next_tasks(self) -> list[Task]:
        """Start what may start now on free segments with free models, and give it; empty if nothing may."""
        tasks: list[Task] = []
        for number in bits(self._fresh & self._free):
            if self._evaluations[number]:
                self._n_queued -= 1
                tasks.append(self._start(number, self._evaluations[number].popleft()))
        for model, number in self._ready.match(self._free, self._fresh & self._free):
            model.in_flight = True
            tasks.append(self._start(number, Visit(model.key, self._segments[number], model.epoch, model.position + 1)))
        self._fresh = 0
        return tasks

    def finished(self, task: Task, seconds: float) -> EpochDone | None:
        """Report that a task has ended well and its result is kept.

        ``seconds`` is what the task cost, best without what is paid once (a trainer's start, a first trace): longest_first and
        auto judge the model by it. Gives EpochDone if it completed an epoch of a model that goes on or is at its end;
        evaluations of that epoch are then to be added before the next call of :meth:`next_tasks`.
        """
        model, number = self._end(task)
        if isinstance(task, Evaluation):
            model.n_evaluations -= 1
            self._offer(model)
            return None
        model.in_flight = False
        model.left &= ~(1 << number)
        model.position += 1
        model.n_visits += 1
        model.units_left -= self._units[number]
        self._costs.add(model, number, seconds)
        done = None if model.left or model.dropped else self._complete_epoch(model)
        self._offer(model)
        self._unbind()
        return done

    def requeue(self, task: Task) -> None:
        """Report that a task has left nothing behind and must be done again, by no fault of its model.

        The same visit comes again under rotation and recorded; where the model roams, its position may be spent on another segment.
        """
        model, number = self._end(task)
        if isinstance(task, Visit):
            model.in_flight = False
        elif model.dropped:
            model.n_evaluations -= 1
        else:
            self._evaluations[number].appendleft(task)
            self._n_queued += 1
        self._offer(model)

    def failed(self, task: Task) -> None:
        """Report that a task has failed for good: its model is dropped, see :meth:`drop`."""
        model, _ = self._end(task)
        if isinstance(task, Visit):
            model.in_flight = False
        else:
            model.n_evaluations -= 1
        self.drop(model.key)

    @property
    def done(self) -> bool:
        """Say whether nothing is in flight and nothing is left to start; a model held back is something left."""
        return not (self._n_unfinished or self._in_flight or self._n_queued)

    # what else happens to models

    def add_evaluation(self, model: int, segment: int, payload: object = None) -> Evaluation:
        """Queue an evaluation of a model's newest state; the model trains no further before it has ended.

        Raises
        ------
        ValueError
            The model is in a visit, or was dropped.
        """
        progress = self._models[model]
        if progress.in_flight or progress.dropped:
            raise ValueError(f"model {model} cannot be evaluated while it is in a visit or after it was dropped")
        evaluation = Evaluation(model, segment, payload)
        number = self._numbers[segment]
        progress.n_evaluations += 1
        self._withdraw(progress)
        self._evaluations[number].append(evaluation)
        self._n_queued += 1
        self._fresh |= 1 << number
        return evaluation

    def evaluations_left(self, model: int) -> int:
        """Count the evaluations of a model that are queued or in flight."""
        return self._models[model].n_evaluations

    def hold(self, model: int) -> None:
        """Start no visit of a model until :meth:`release`; what is in flight goes on, evaluations too are not held."""
        self._models[model].held = True
        self._withdraw(self._models[model])

    def release(self, model: int) -> None:
        """End :meth:`hold`."""
        self._models[model].held = False
        self._offer(self._models[model])

    def drop(self, model: int) -> None:
        """Start nothing of a model any more and forget its queued evaluations; what is in flight must still be reported."""
        progress = self._models[model]
        if progress.dropped:
            return
        self._withdraw(progress)
        self._n_unfinished -= not progress.over
        progress.dropped = True
        for number, queue in enumerate(self._evaluations):
            kept = deque(evaluation for evaluation in queue if evaluation.model != model)
            progress.n_evaluations -= len(queue) - len(kept)
            self._n_queued -= len(queue) - len(kept)
            self._evaluations[number] = kept

    # segments

    def segment_down(self, segment: int) -> None:
        """Start nothing on a segment until :meth:`segment_up`; what is in flight there must still be reported."""
        self._down |= 1 << self._numbers[segment]
        self._free &= ~self._down

    def segment_up(self, segment: int) -> None:
        """End :meth:`segment_down`."""
        number = self._numbers[segment]
        self._down &= ~(1 << number)
        self._free_segment(number)

    def in_flight(self, segment: int) -> Task | None:
        """Give the task in flight on a segment."""
        return self._in_flight.get(self._numbers[segment])

    # what is known

    def seconds_left(self) -> float | None:
        """Estimate the time until the visits left are done, in seconds, at best: a lower bound by the costs measured so far.

        None before the first measure. O(n): for a report an epoch, not for every event.
        """
        if self._costs.mean_rate is None:
            return None
        left = [self._costs.left(model) for model in self._models.values() if not model.over]
        return max(sum(left) / len(self._segments), max(left, default=0.0))

    # inside

    def _begin(self, work: ModelWork) -> Progress:
        model = Progress(work)
        model.last_epoch = self._rule.last_epoch(model)
        visited = [self._numbers.get(segment, -1) for segment in work.visited]
        model.left = 0 if model.over else self._rule.segments_of(model, model.epoch)
        for number in visited:
            if number < 0 or not model.left & (1 << number):
                raise InvalidParameter(
                    f"model {work.key} cannot have visited these segments in epoch {work.epoch}, received {work.visited}"
                )
            model.left &= ~(1 << number)
        model.n_visits = (work.epoch - 1) * len(self._segments) + len(visited)
        later = range(model.epoch + 1, model.last_epoch + 1)
        model.units_left = self._units_in(model.left) + sum(self._units_in(self._rule.segments_of(model, e)) for e in later)
        self._costs.plan(max(0, model.last_epoch - model.epoch + 1))
        if work.s_per_row is not None:
            self._costs.known(model, work.s_per_row, visited)
        if not model.over:
            self._n_unfinished += 1
            if not model.left:
                self._complete_epoch(model)
        self._offer(model)
        return model

    def _units_in(self, segments: int) -> int:
        return sum(self._units[number] for number in bits(segments))

    def _complete_epoch(self, model: Progress) -> EpochDone | None:
        complete = model.position == len(self._segments)
        done = EpochDone(model.key, model.epoch, last=model.epoch == model.last_epoch) if complete else None
        model.epoch += 1
        model.position = 0
        model.roams = False
        if model.over:
            self._n_unfinished -= 1
        else:
            model.left = self._rule.segments_of(model, model.epoch)
        return done

    def _offer(self, model: Progress) -> None:
        """Let a model wait for a segment if nothing keeps it from starting."""
        if not model.ready or model.entry is not None:
            return
        if MODE != "A" or model.position == 0:
            model.roams = model.roams or self._rule.roams(model, self._costs)
        model.bound_to = None if model.roams else self._rule.next_segment(model)
        self._ready.add(model)
        if model.bound_to is not None:
            self._fresh |= 1 << model.bound_to

    def _unbind(self) -> None:
        """Let the models that wait for one segment wait for any, once the rule says that they may choose."""
        if self._ready.n_bound and MODE == "C" and self._rule.roams(None, self._costs):
            for model in self._ready.bound():
                self._withdraw(model)
                self._offer(model)

    def _choose(self, model: Progress, segments: int) -> int:
        """Choose where a model starts that may start on several segments: most work left, then rotation order."""
        start = model.index % len(self._segments)
        if self._costs.mean_rate is None or not segments & (segments - 1):
            return first_from(segments, start)
        by_rotation = sorted(bits(segments), key=lambda number: (number - start) % len(self._segments))
        return max(by_rotation, key=self._costs.left_on)

    def _withdraw(self, model: Progress) -> None:
        if model.entry is not None:
            self._ready.remove(model)

    def _start(self, number: int, task: Task) -> Task:
        self._in_flight[number] = task
        self._free &= ~(1 << number)
        return task

    def _end(self, task: Task) -> tuple[Progress, int]:
        number = self._numbers[task.segment]
        if self._in_flight.get(number) != task:
            raise ValueError(f"{task} is not in flight on its segment")
        del self._in_flight[number]
        self._free_segment(number)
        return self._models[task.model], number

    def _free_segment(self, number: int) -> None:
        if number not in self._in_flight and not self._down & (1 << number):
            self._free |= 1 << number
            self._fresh |= 1 << number
