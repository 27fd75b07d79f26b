"""The scheduler: which model visits which segment next, and which trainer makes the visit, from events alone.

The driver and the simulator use the same object. The schedules are rules of ``rules.py``; where each trainer can hold
the rows of all segments, `Trainers` decides which one makes a model's visits: its first visit of a graph takes seconds,
so a model stays with the trainer that has its graph. That changes neither rows nor their order, so it changes no bit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import islice

from madlib_mop.errors import InvalidParameter

from .rules import Entry, MeasuredCosts, ModelProgress, Rank, Rotation, bits, first_from, make_rule
from .work import EpochDone, Evaluation, ModelWork, Task, Unit, Visit, check_works, title

Choice = Callable[[ModelProgress, int], int]  # (model, set of segments that it may start on) -> segment number


class KnownGraphs:
    """Which graphs each segment's trainer has traced, as far as visits have started there; see `ModelWork.graph`.

    ``n_at_once`` is how many visits can compute at the same time; None if that is not known.
    """

    def __init__(self, n_segments: int, n_at_once: int | None = None):
        self._n_at_once = n_at_once
        self._known: list[set[str | None]] = [set() for _ in range(n_segments)]
        self._spread: Counter[str | None] = Counter()  # graph -> number of segments that know it
        self._n_first_visits = 0  # in flight
        self._n_visits, self._visits_s = 0, 0.0
        self._once_s = 0.0  # the longest time of a trainer's start, of building and tracing, in a visit

    def measured(self, seconds: float, once_s: float) -> None:
        """Add the measure of a visit: its cost, and what was paid once beside it."""
        self._n_visits += 1
        self._visits_s += seconds
        self._once_s = max(self._once_s, once_s)

    def pick(
        self, number: int, first: Sequence[ModelProgress], others: Sequence[ModelProgress], n_busy: int
    ) -> ModelProgress | None:
        """Return the model that starts on a segment.

        That is one of the ``first``, the models of the best rank: one whose graph is known there, else one of the graph
        known to the fewest segments. If these segments will have started all of its models sooner than this one could
        trace the graph, one of the ``others`` starts: one whose graph is known, or if the first visits are not made
        yet, any. Return None if there is no other to start, or if a graph would have to be traced for or during a
        model's first visit while the ``n_busy`` tasks in flight use all processors.
        """
        known = self._known[number]
        model = min(first, key=lambda m: (m.graph not in known, self._spread[m.graph]))
        if model.graph in known:
            return model
        is_first = not model.n_visits
        is_left = self._is_left_to_others(sum(m.graph == model.graph for m in first), self._spread[model.graph])
        if is_left and (quick := next((m for m in others if m.graph in known), None)):
            return quick
        all_compute = self._n_at_once is not None and n_busy >= self._n_at_once
        if all_compute and (is_first or self._n_first_visits):
            return None
        if is_left and is_first and (others or n_busy):
            return others[0] if others else None
        return model

    def started(self, model: ModelProgress, number: int) -> None:
        """Note that a visit starts on a segment: its trainer will know the model's graph."""
        self._n_first_visits += not model.n_visits
        if model.graph not in self._known[number]:
            self._known[number].add(model.graph)
            self._spread[model.graph] += 1

    def ended(self, model: ModelProgress) -> None:
        """Note that a visit has ended, before the model's visits are counted anew."""
        self._n_first_visits -= not model.n_visits

    def forget(self, number: int) -> None:
        """Note that a segment has lost its trainer."""
        self._spread.subtract(self._known[number])
        self._known[number].clear()

    def _is_left_to_others(self, n_models: int, n_segments: int) -> bool:
        if not n_segments or not self._n_visits:
            return False
        return n_models / n_segments * self._visits_s / self._n_visits < self._once_s


class ReadyModels:
    """Models whose next visit may start, in two kinds.

    A *bound* model waits for one segment: there, the model with the fewest visits is the first. A *roaming* model waits
    for any segment left in its epoch, in one list sorted by the schedule's rank. An event looks at this list until a
    model fits, and at all models bound to a free segment.
    """

    # how many of the models that fit a segment are compared by their graphs
    _N_COMPARED = 64

    def __init__(
        self, n_segments: int, choose: Choice, rank: Callable[[ModelProgress], Rank], graphs: KnownGraphs | None = None
    ):
        self._choose = choose
        self._rank = rank
        self._graphs = graphs
        self._bound: list[dict[int, ModelProgress]] = [{} for _ in range(n_segments)]  # by index
        self._roaming: list[Entry] = []  # sorted

    @property
    def n_bound(self) -> int:
        """The number of bound models."""
        return sum(map(len, self._bound))

    def add(self, model: ModelProgress) -> None:
        """Add a ready model; ``bound_to`` is the segment that it waits for, or None if it roams."""
        model.entry = (*self._rank(model), model)
        if model.bound_to is None:
            insort(self._roaming, model.entry)
        else:
            self._bound[model.bound_to][model.index] = model

    def remove(self, model: ModelProgress) -> None:
        """Remove a waiting model: it starts, or may not start now."""
        assert model.entry is not None, "it waits"
        if model.bound_to is None:
            del self._roaming[bisect_left(self._roaming, model.entry)]
        else:
            del self._bound[model.bound_to][model.index]
        model.entry = None

    def ended(self, model: ModelProgress) -> None:
        """Note that a visit has ended, before the model's visits are counted anew."""
        if self._graphs is not None:
            self._graphs.ended(model)

    def bound(self) -> list[ModelProgress]:
        """Return the bound models, by index."""
        return sorted((model for models in self._bound for model in models.values()), key=lambda model: model.index)

    def match(self, free: int, fresh: int, n_busy: int) -> list[tuple[ModelProgress, int]]:
        """Return the visits that start now, as (model, segment number), and remove their models.

        Pairs are chosen in the order of the models' ranks until no further pair can start. A model takes a segment
        that no earlier model wanted, if it may, rather than a fresh segment.

        Parameters
        ----------
        free : int
            The set of free segments.
        fresh : int
            The free segments that became free, or got a bound model, since the last match.
        n_busy : int
            Number of segments with a task in flight.
        """
        if self._graphs is not None:
            return self._match_by_graph(self._graphs, free, fresh, n_busy)
        pairs: list[tuple[ModelProgress, int]] = []
        for model in self._by_rank(free):
            may_start = model.left if model.bound_to is None else 1 << model.bound_to
            if fits := may_start & free & ~fresh or may_start & fresh:
                number = self._choose(model, fits)
                pairs.append((model, number))
                free &= ~(1 << number)
                fresh &= free
                if not free:
                    break
        for model, _ in pairs:
            self.remove(model)
        return pairs

    def first(self, accepts: Callable[[ModelProgress], bool]) -> ModelProgress | None:
        """Return the first model by rank that is accepted, whatever its segment."""
        bound = (model for models in self._bound for model in models.values() if accepts(model))
        waiting = min(bound, key=_by_visits, default=None)
        roaming = next((entry[-1] for entry in self._roaming if accepts(entry[-1])), None)
        if waiting is None or roaming is None:
            return waiting or roaming
        return min(waiting, roaming, key=self._rank)

    def start(self, model: ModelProgress) -> int:
        """Let a model start, on any segment that it may; return the segment's number."""
        number = self._choose(model, model.left) if model.bound_to is None else model.bound_to
        self.remove(model)
        return number

    def _match_by_graph(
        self, graphs: KnownGraphs, free: int, fresh: int, n_busy: int
    ) -> list[tuple[ModelProgress, int]]:
        """Do the same for models that all roam, by their graphs."""
        pairs: list[tuple[ModelProgress, int]] = []
        # a segment that was left free because all were busy is no longer fresh, and comes after those that are
        for number in [*bits(fresh), *bits(free & ~fresh)]:
            if fitting := list(islice(self._by_rank(1 << number), self._N_COMPARED)):
                best = self._rank(fitting[0])[:2]
                n_first = sum(self._rank(model)[:2] == best for model in fitting)
                model = graphs.pick(number, fitting[:n_first], fitting[n_first:], n_busy + len(pairs))
                if model is not None:
                    self.remove(model)
                    graphs.started(model, number)
                    pairs.append((model, number))
        return pairs

    def _by_rank(self, free: int) -> Iterator[ModelProgress]:
        """Return the roaming models that may start on these segments, and the first bound one of each, by rank."""
        bound = [min(waiting, key=_by_visits) for number in bits(free) if (waiting := self._bound[number].values())]
        if not self._roaming:
            yield from bound  # each of them starts, in the order of the segments
            return
        roaming = (entry for entry in self._roaming if entry[-1].left & free)
        for entry in merge(sorted((*self._rank(model), model) for model in bound), roaming):
            yield entry[-1]


def _by_visits(model: ModelProgress) -> tuple[int, int]:
    return model.n_visits, model.index


#: About how many evaluations of a shard take as long as a visit of it.
_EVALUATIONS_OF_A_VISIT = 3


class Trainers:
    """The graphs that each trainer of a run has traced, and the trainer that each model is at, its home.

    Trainers have the numbers of their segments; a set of them is an int, as in `ModelProgress`.

    Parameters
    ----------
    n_trainers : int
    models : callable
        Returns the run's models.
    costs : MeasuredCosts
    n_at_once : int or None
        At how many trainers graphs may be traced for the first visits of models, and during these; None: at all.
    """

    def __init__(
        self,
        n_trainers: int,
        models: Callable[[], Iterable[ModelProgress]],
        costs: MeasuredCosts,
        n_at_once: int | None = None,
    ):
        self._models = models
        self._costs = costs
        self._n_at_once = n_at_once
        self._known: list[set[Hashable]] = [set() for _ in range(n_trainers)]
        self._homes: dict[ModelProgress, int] = {}
        self._once_s: float | None = None  # the longest time of a start, of building and tracing, in a visit

    def measured(self, once_s: float) -> None:
        """Add what a visit paid once: for the trainer's start, for building and tracing."""
        self._once_s = max(self._once_s or 0.0, once_s)

    def early_rank(self, rule: Rotation, model: ModelProgress) -> Rank:
        """Return a rank by which all models can be compared early, without a later end of the run.

        As by the rule, models that are not measured come first. Then those whose work left is a trainer's share of all
        work left: the run would wait for them at its end. Then those with the fewest visits: the work of a trainer
        takes equally long in any order.
        """
        is_measured, work, n_visits, index = rule.rank(model)
        if is_measured:
            all_left = sum(self._costs.left(other) for other in self._models() if not other.over)
            if self._costs.left(model) * len(self._known) < all_left:
                work = float(n_visits)  # the work of the others is negative
        return is_measured, work, n_visits, index

    def forget(self, number: int) -> None:
        """Note that a trainer is lost, with its graphs: its models may go to any."""
        self._known[number].clear()
        self._homes = {model: home for model, home in self._homes.items() if home != number}

    def next_visit(self, ready: ReadyModels, number: int, n_busy: int) -> ModelProgress | None:
        """Return the model that now makes its next visit in a trainer without a task, if there is one.

        ``n_busy`` trainers have a task.
        """
        is_full = self._n_at_once is not None and n_busy >= self._n_at_once
        first_visits = is_full and any(m.in_flight and not m.n_visits for m in self._models())

        def may_be_here(model: ModelProgress) -> bool:
            return _graph(model) in self._known[number] or not is_full or not (first_visits or not model.n_visits)

        following = ready.first(lambda _: True) if is_full else None
        if following is not None and not following.n_visits and not self._knowing(following):
            return None  # or later visits would keep all trainers busy, and it would never begin
        model = ready.first(lambda m: may_be_here(m) and self._is_its_own(m, number))
        if model is None:
            is_sooner_here = self._sooner_at(number)
            model = ready.first(lambda m: may_be_here(m) and is_sooner_here(m))
        if model is not None:
            self._homes[model] = number
            self._known[number].add(_graph(model))
        return model

    def home_for(self, model: ModelProgress, free: int) -> int | None:
        """Return the trainer that evaluates a model before it makes visits: its home, if it is ``free`` of tasks.

        A model without a home is evaluated by any.
        """
        home = self._homes.get(model)
        if home is None:
            return self.other_for(model, free)
        return home if free & (1 << home) else None

    def other_for(self, model: ModelProgress, free: int) -> int | None:
        """Return a trainer ``free`` of tasks that evaluates a model if it has no visit to make, or None.

        That is one that has the model's graph. Another one traces the graph only if the model has no home, or if
        evaluations take longer than that.
        """
        home, graph = self._homes.get(model), _graph(model)
        at = next((number for number in bits(free) if graph in self._known[number]), None)
        if at is None and (home is None or self._evaluates_long(model)):
            at = next(bits(free), None)
        if at is not None:
            self._homes.setdefault(model, at)
            self._known[at].add(graph)
        return at

    def _evaluates_long(self, model: ModelProgress) -> bool:
        return self._once_s is not None and self._costs.visit_s(model) > _EVALUATIONS_OF_A_VISIT * self._once_s

    def _is_its_own(self, model: ModelProgress, number: int) -> bool:
        """Return whether a model is at this trainer, or at none and its graph is known here or nowhere."""
        home = self._homes.get(model)
        if home is not None:
            return home == number
        graph = _graph(model)
        return graph in self._known[number] or not any(graph in known for known in self._known)

    def _sooner_at(self, number: int) -> Callable[[ModelProgress], bool]:
        """Return whether a model is completed sooner here than elsewhere, although its graph may have to be traced."""
        if self._once_s is None:  # nothing is measured: trace at once what nobody has begun
            return lambda model: model not in self._homes
        loads, once_s = self._loads(), self._once_s

        def is_sooner_here(model: ModelProgress) -> bool:
            there = self._homes.get(model)
            if there is None:
                there = min(self._knowing(model), key=loads.__getitem__)
            more_s = 0.0 if _graph(model) in self._known[number] else once_s
            return loads[number] + self._costs.left(model) + more_s < loads[there]

        return is_sooner_here

    def _loads(self) -> Sequence[float]:
        """Return the seconds of work left of each trainer's models; models that are at none go where there is least."""
        loads = [0.0] * len(self._known)
        others = []
        for model in self._models():
            if model.over:
                continue
            home = self._homes.get(model)
            if home is None:
                others.append(model)
            else:
                loads[home] += self._costs.left(model)
        for model in others:
            numbers = self._knowing(model) or range(len(loads))
            loads[min(numbers, key=loads.__getitem__)] += self._costs.left(model)
        return loads

    def _knowing(self, model: ModelProgress) -> list[int]:
        return [number for number, known in enumerate(self._known) if _graph(model) in known]


def _graph(model: ModelProgress) -> Hashable:
    return model.unit if model.graph is None else model.graph


class Scheduler:
    """Plans a run by events; made by `make_scheduler`.

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
    (`Trainers`). Then a segment that is busy or down means its trainer: others train on its rows.

    An event looks at the models that wait, see `ReadyModels`; memory is O(n + p).
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
            queue = self._evaluations[number]
            evaluation = next((one for one in queue if not self._models[one.unit].lacks_state), None)
            if evaluation is not None:
                queue.remove(evaluation)
                self._n_queued -= 1
                tasks.append(self._start(number, evaluation))
        for model, number in self._ready.match(self._free, self._fresh & self._free, len(self._in_flight)):
            model.in_flight = True
            visit = Visit(model.unit, self.segments[number], model.epoch, model.position + 1)
            tasks.append(self._start(number, visit))
        self._fresh = 0
        return tasks

    def _next_at(self, trainers: Trainers) -> list[Task]:
        """Do the same where any trainer can make a visit; a model may then wait for the one that has its graph."""
        tasks = self._evaluations_at(trainers.home_for)
        for at in bits(self._free):
            model = trainers.next_visit(self._ready, at, len(self._in_flight))
            if model is not None:
                model.in_flight = True
                place = self.segments[self._ready.start(model)], model.epoch, model.position + 1
                tasks.append(self._start(at, Visit(model.unit, *place, trainer=self.segments[at])))
        # At the end of the run, others than a model's home have visits to make first: evaluations come after these too.
        return tasks + self._evaluations_at(trainers.other_for)

    def _evaluations_at(self, trainer_for: Callable[[ModelProgress, int], int | None]) -> list[Task]:
        """Start the queued evaluations at the free trainers that are given for their models, and return them."""
        tasks: list[Task] = []
        for queue in self._evaluations:
            for evaluation in tuple(queue) if self._free else ():
                if self._models[evaluation.unit].lacks_state:
                    continue
                at = trainer_for(self._models[evaluation.unit], self._free)
                if at is not None:
                    queue.remove(evaluation)
                    self._n_queued -= 1
                    tasks.append(self._start(at, replace(evaluation, trainer=self.segments[at])))
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

    @property
    def n_unfinished(self) -> int:
        """The number of units with visits left or in flight."""
        return self._n_unfinished

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

    def state_away(self, unit: Unit) -> None:
        """Start no task of a model, evaluations included, until :meth:`state_back`: its state cannot be had now."""
        self._models[unit].lacks_state = True
        self._withdraw(self._models[unit])

    def state_back(self, unit: Unit) -> None:
        """End :meth:`state_away`."""
        self._models[unit].lacks_state = False
        self._fresh |= self._free  # for its queued evaluations
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


def make_scheduler(
    schedule: str,
    models: Sequence[ModelWork],
    segment_rows: Mapping[int, int],
    recorded: Iterable[Visit] | None = None,
    n_at_once: int | None = None,
    any_trainer: bool = False,
) -> Scheduler:
    """Make the scheduler of a run, new or resumed.

    Parameters
    ----------
    schedule : str
        A name of `SCHEDULES`, or 'recorded'.
    models : sequence of ModelWork
        All units of the run, those that have nothing left too: ``auto`` counts them.
    segment_rows : mapping of int to int
        Segment to the rows of its shard; the mapping's order is the rotation's order of segments.
    recorded : iterable of Visit, optional
        For 'recorded': the kept visits of a run, in any order. A model makes exactly its recorded visits, up to its
        ``last_epoch``. One whose record ends within an epoch (it had failed) ends there; one without a record makes
        none.
    n_at_once : int, optional
        How many visits can compute at the same time; None if that is not known.
    any_trainer : bool
        Whether the trainer of each segment can hold the rows of all.

    Raises
    ------
    InvalidParameter
        Unknown schedule; no segment; units, indices or visited segments that are twice there or unknown; a record
        with gaps.
    """
    if not segment_rows:
        raise InvalidParameter("a run needs at least one segment, received none", hint="Pack a table that has rows.")
    check_works(models, segment_rows)
    numbers = {segment: number for number, segment in enumerate(segment_rows)}
    return Scheduler(make_rule(schedule, len(models), numbers, recorded), models, segment_rows, n_at_once, any_trainer)
