"""Drives a scheduler with random events and asserts that it keeps its contract; for the tests of schedules."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from madlib_mop.schedule import EpochDone, Evaluation, ModelWork, Scheduler, Task, Unit, Visit


@dataclass
class Chances:
    """Probability of each kind of event at each step; the remainder is that of a task that succeeds."""

    requeue: float = 0.0
    fail: float = 0.0
    segment: float = 0.0  # probability that a segment fails, with the task on it, or recovers
    hold: float = 0.0
    # probability that a model is added, extended or ended early, as in searches; up to a maximum number
    change: float = 0.0
    n_changes: int = 40
    evaluate: bool = False


@dataclass
class Referee:
    """Owns the tasks in flight, as the driver does, and computes independently what may run.

    ``kept`` are the finished visits in the order of their ends, those before a resume included.
    """

    scheduler: Scheduler
    models: list[ModelWork]
    segments: list[int]
    rng: random.Random
    chances: Chances = field(default_factory=Chances)
    any_trainer: bool = False
    kept: list[Visit] = field(default_factory=list)
    started: list[Task] = field(default_factory=list)
    running: dict[int, Task] = field(default_factory=dict)
    waiting: list[tuple[Unit, int]] = field(default_factory=list)  # evaluations that were requested and have not ended
    evaluated: list[tuple[Unit, int, object]] = field(default_factory=list)
    epochs_done: list[EpochDone] = field(default_factory=list)
    dropped: set[Unit] = field(default_factory=set)
    held: set[Unit] = field(default_factory=set)
    down: set[int] = field(default_factory=set)

    def run(self, max_steps: int = 100_000) -> Referee:
        """Run until the scheduler is done, or for this number of steps."""
        for _ in range(max_steps):
            if self.scheduler.done:
                assert not self.running, "done with tasks in flight"
                return self
            for task in self.scheduler.next_tasks():
                self._check_start(task)
            self._check_nothing_more_could_start()
            self._event()
        return self

    def visits_in_order(self) -> dict[Unit, list[tuple[int, int, int]]]:
        """Return (epoch, position, segment) by unit, in the order of the visits' ends."""
        return {m.unit: [(v.epoch, v.position, v.segment) for v in self.kept if v.unit == m.unit] for m in self.models}

    def check_whole(self) -> None:
        """Assert that every model that was not dropped made each visit of each epoch exactly once, in order."""
        for model in self.models:
            made = [visit for visit in self.kept if visit.unit == model.unit]
            assert [(v.epoch, v.position) for v in made] == [
                (epoch, position)
                for epoch in range(1, model.last_epoch + 1)
                for position in range(1, len(self.segments) + 1)
            ][: len(made) if model.unit in self.dropped else None]
            for epoch in {visit.epoch for visit in made}:
                visited = [visit.segment for visit in made if visit.epoch == epoch]
                assert len(set(visited)) == len(visited)

    def _check_start(self, task: Task) -> None:
        assert task.at not in self.running and task.at not in self.down
        assert self.any_trainer or task.at == task.segment
        assert task.unit not in self.dropped
        at_work = [other for other in self.running.values() if other.unit == task.unit]
        if isinstance(task, Visit):
            assert not at_work and task.unit not in self.held
            assert all(unit != task.unit for unit, _ in self.waiting), "trains before its evaluations have ended"
            assert task.segment not in self._visited(task.unit, task.epoch)
        else:
            assert all(isinstance(other, Evaluation) for other in at_work)
        self.running[task.at] = task
        self.started.append(task)

    def _check_nothing_more_could_start(self) -> None:
        """Object to an idle segment that a queued evaluation or, where models may choose, a ready model could use."""
        if self.any_trainer:
            return  # a model may wait for the trainer that has its graph
        free = [segment for segment in self.segments if segment not in self.running and segment not in self.down]
        in_flight = {(task.unit, task.segment) for task in self.running.values() if isinstance(task, Evaluation)}
        assert not any(segment in free and (unit, segment) not in in_flight for unit, segment in self.waiting)
        if self.scheduler.schedule != "longest_first":
            return
        busy = {task.unit for task in self.running.values()} | {unit for unit, _ in self.waiting}
        for model in self.models:
            if model.unit in busy | self.held | self.dropped:
                continue
            n_epochs_done = sum(visit.unit == model.unit for visit in self.kept) // len(self.segments)
            if n_epochs_done < model.last_epoch:
                unused = set(free) - self._visited(model.unit, n_epochs_done + 1)
                assert not unused, f"{model.unit} could start on {unused}"

    def _visited(self, unit: Unit, epoch: int) -> set[int]:
        return {visit.segment for visit in self.kept if (visit.unit, visit.epoch) == (unit, epoch)}

    def _event(self) -> None:
        if not self.running:
            assert self.scheduler.done or self.down or self.held, "nothing runs and something is left: a deadlock"
            for segment in sorted(self.down):
                self._toggle_segment(segment)
            for unit in sorted(self.held):
                self._toggle_hold(unit)
            return
        chance = self.rng.random
        if chance() < self.chances.segment:
            self._toggle_segment(self.rng.choice(self.segments))
        if chance() < self.chances.hold:
            self._toggle_hold(self.rng.choice(self.models).unit)
        if chance() < self.chances.change and self.chances.n_changes:
            self.chances = replace(self.chances, n_changes=self.chances.n_changes - 1)
            self._change()
        if not self.running:
            return
        task = self.running.pop(self.rng.choice(sorted(self.running)))
        if chance() < self.chances.requeue:
            self._requeue(task)
        elif chance() < self.chances.fail:
            self.scheduler.failed(task)
            self._forget(task.unit)
        else:
            self._finish(task)

    def _requeue(self, task: Task) -> None:
        self.scheduler.requeue(task)
        if task.unit in self.dropped and isinstance(task, Evaluation):
            self.waiting.remove((task.unit, task.segment))

    def _finish(self, task: Task) -> None:
        done = self.scheduler.finished(task, self.rng.random())
        if isinstance(task, Evaluation):
            self.waiting.remove((task.unit, task.segment))
            self.evaluated.append((task.unit, task.segment, task.payload))
            assert done is None
            return
        if task.unit in self.dropped:
            assert done is None
            return
        self.kept.append(task)
        complete = len(self._visited(task.unit, task.epoch)) == len(self.segments)
        assert (done is not None) == complete
        if done is None:
            return
        last = next(model.last_epoch for model in self.models if model.unit == task.unit)
        assert done == EpochDone(task.unit, task.epoch, task.epoch == last)
        self.epochs_done.append(done)
        if self.chances.evaluate:
            for segment in self.segments:
                self.scheduler.add_evaluation(done.unit, segment, done.epoch)
                self.waiting.append((done.unit, segment))
            assert self.scheduler.evaluations_left(done.unit) == len(self.segments)

    def _change(self) -> None:
        kind = self.rng.choice(["add", "extend", "finish"])
        if kind == "add":
            work = ModelWork((1000 + len(self.models),), len(self.models) + 50, self.rng.randrange(3))
            self.models.append(work)
            self.scheduler.add_model(work)
            return
        place = self.rng.randrange(len(self.models)) if self.models else 0
        if not self.models or self.models[place].unit in self.dropped:
            return
        model = self.models[place]
        if kind == "extend":
            last_epoch = model.last_epoch + self.rng.randrange(3)
            self.scheduler.extend(model.unit, last_epoch)
        else:
            n_done = sum(visit.unit == model.unit for visit in self.kept) // len(self.segments)
            at_work = any(isinstance(task, Visit) and task.unit == model.unit for task in self.running.values())
            begun = at_work or self._visited(model.unit, n_done + 1)
            last_epoch = min(model.last_epoch, n_done + bool(begun))
            assert self.scheduler.finish_early(model.unit) == last_epoch
        self.models[place] = replace(model, last_epoch=last_epoch)

    def _forget(self, unit: Unit) -> None:
        self.dropped.add(unit)
        in_flight = {task.segment for task in self.running.values() if task.unit == unit}
        self.waiting = [(u, s) for u, s in self.waiting if u != unit or s in in_flight]

    def _toggle_segment(self, segment: int) -> None:
        if segment in self.down:
            self.down.remove(segment)
            self.scheduler.segment_up(segment)
            return
        self.down.add(segment)
        self.scheduler.segment_down(segment)
        task = self.running.pop(segment, None)
        assert self.scheduler.in_flight(segment) == task
        if task is not None:
            self._requeue(task)

    def _toggle_hold(self, unit: Unit) -> None:
        if unit in self.held:
            self.held.remove(unit)
            self.scheduler.release(unit)
        else:
            self.held.add(unit)
            self.scheduler.hold(unit)
