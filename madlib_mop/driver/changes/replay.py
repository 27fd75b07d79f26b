"""The deciders of a replay: a search that repeats its recorded decisions, and the commands of the repeated run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import Metric, SearchEvent
from madlib_mop.catalog.rows.states import ChangeSource
from madlib_mop.driver.changes.deciders import Decider, Decision, Decisions
from madlib_mop.models.changes import Add, Change, Clone, EndAlike, Exploit, Extend, Finish


class RecordedSearch:
    """Repeats the recorded events of a search in order, each as soon as its result is available again.

    Models end where they ended in the original run, also if the budget or a command stopped them: a replay makes no
    visits but recorded ones.

    Parameters
    ----------
    events : sequence of SearchEvent
        Those of the repeated run.
    models : sequence of ModelRow
        Its models, at its end.

    Attributes
    ----------
    untrained : set of int
        The models that were not trained to their ends.
    notices : list of str
        None: the repeated search has told them.
    sampler_version : None
        It draws nothing.
    """

    sampler_version = None

    def __init__(self, events: Sequence[SearchEvent], models: Sequence[ModelRow]):
        self._events = list(events)
        self._reach = {m.mst_key: m.last_epoch for m in models}
        self._last_epochs: dict[int, int] = {}  # mst_key -> the last epoch that was requested
        self.untrained = {m.mst_key for m in models if not m.is_alive}
        self.notices: list[str] = []
        self._next = 0
        self._known: set[tuple[int, int]] = set()

    def start(self, n_slots: int) -> list[Change]:
        """Return the first actions."""
        return self._advance()

    def result(self, mst_key: int, epoch: int, loss: float) -> list[Change]:
        """Process a result; return the actions of all recorded events that are now complete."""
        self._known.add((mst_key, epoch))
        return self._advance()

    def failed(self, mst_key: int) -> list[Change]:
        """Record a failure; after an unrecorded failure, the replay lacks results that it waits for."""
        return self._advance()

    @property
    def enough_iterations(self) -> int:
        """Return 0: decisions that depend on the time are recorded."""
        return 0

    def is_given(self, mst_key: int) -> bool:
        """Return False: no time is measured."""
        return False

    def time_left(self, n_iterations: int) -> list[Change]:
        """Return no actions."""
        return []

    def finish(self, reason: str) -> list[Change]:
        """End the replay."""
        self._next = len(self._events)
        return [Finish(reason)]

    @property
    def done(self) -> bool:
        """Return whether all events have been repeated."""
        return self._next == len(self._events)

    def _advance(self) -> list[Change]:
        actions: list[Change] = []
        while not self.done:
            event = self._events[self._next]
            if event.event == "result" and (event.mst_key, event.epoch) not in self._known:
                break
            self._next += 1
            actions += [kept for action in event.changes if (kept := self._within_reach(action))]
            if self.done:
                actions += self._extended()
        return actions

    def _extended(self) -> list[Change]:
        """Return the iterations that commands asked for after the search had ended."""
        longer = ((key, last_epoch) for key, last_epoch in self._last_epochs.items() if last_epoch < self._reach[key])
        return [Extend(key, self._reach[key]) for key, _ in longer]

    def _within_reach(self, action: Change) -> Change | None:
        """Return an action with the last epoch of its model; None if that was not started."""
        match action:
            case Add():
                last_epoch = self._raise_last_epoch(action.proposal.mst_key, action.proposal.last_epoch)
                return Add((replace(action.proposal, last_epoch=last_epoch),)) if last_epoch else None
            case Extend() | Exploit():
                assert action.mst_key is not None and action.last_epoch is not None, "a search says both"
                last_epoch = self._raise_last_epoch(action.mst_key, action.last_epoch)
                return replace(action, last_epoch=last_epoch) if last_epoch else None
            case Finish():
                return None
        return action

    def _raise_last_epoch(self, mst_key: int, last_epoch: int) -> int | None:
        last_epoch, before = min(last_epoch, self._reach[mst_key]), self._last_epochs.get(mst_key, 0)
        self._last_epochs[mst_key] = max(last_epoch, before)
        return last_epoch if last_epoch > before else None


class RepeatedCommands(Decider):
    """Repeats commands: clones are made again after the same visits, models that were stopped or have failed end alike.

    The rest of what commands did is in the plan of the replay: added models begin with the others, extended ones have
    their last iteration from the start, and each model repeats its recorded visits only.

    Parameters
    ----------
    models : sequence of ModelRow
        Those of the repeated run, at its end.
    """

    def __init__(self, models: Sequence[ModelRow]):
        self._clones = [(model.mst_key, model.cloned_from) for model in models if model.cloned_from is not None]
        self._ended = [model.mst_key for model in models if not model.is_alive]
        self._models: Mapping[int, ModelRow] = {}  # set by `begin`

    def begin(self, models: Mapping[int, ModelRow]) -> Decisions:
        """Make the clones that a dead driver did not make; their originals had not started another visit."""
        self._models = models
        for mst_key in list(models):
            yield from self.visited(mst_key)

    def visited(self, mst_key: int) -> Decisions:
        """Clone a model that has reached the visit after which it was cloned; a clone may be cloned at once."""
        for clone, came_from in self._clones:
            if came_from.mst_key != mst_key or clone in self._models:
                continue
            original = self._models[mst_key]
            if original.is_restored if came_from.is_best else came_from.is_state_of(original):
                yield Decision(ChangeSource.REPLAY, [Clone(mst_key, repeated=clone)])
                yield from self.visited(clone)

    def tick(self) -> Decisions:
        """Clone models that continue with another model's state: their originals have made no visit with it."""
        for mst_key in {came_from.mst_key for _, came_from in self._clones}:
            if mst_key in self._models and self._models[mst_key].is_just_taken_over:
                yield from self.visited(mst_key)

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[Metric]) -> Decisions:
        """Clone a model from its best state, which it has at its end."""
        yield from self.visited(mst_key)

    def ended(self) -> Decisions:
        """End models that were stopped, or have failed, in the repeated run."""
        ended = [key for key in self._ended if key in self._models]
        if ended:
            yield Decision(ChangeSource.REPLAY, [EndAlike(key) for key in ended])
