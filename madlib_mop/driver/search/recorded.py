"""A search that repeats its recorded decisions in the same order, whenever results arrive: for a replay of its run."""

from collections.abc import Sequence
from dataclasses import replace

from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.of_run import SearchEvent
from madlib_mop.driver.search.actions import from_json
from madlib_mop.search.base import Action, Add, Exploit, Extend, Finish


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
    untrained : dict of int to ModelRow
        The models that were not trained to their ends, by mst_key.
    """

    def __init__(self, events: Sequence[SearchEvent], models: Sequence[ModelRow]):
        self._events = list(events)
        self._reach = {m.mst_key: m.last_epoch for m in models}
        self._last_epochs: dict[int, int] = {}  # mst_key -> the last epoch that was requested
        self.untrained = {m.mst_key: m for m in models if not m.is_alive}
        self._next = 0
        self._known: set[tuple[int, int]] = set()

    def start(self, n_slots: int) -> list[Action]:
        """Return the first actions."""
        return self._advance()

    def result(self, mst_key: int, epoch: int, loss: float) -> list[Action]:
        """Process a result; return the actions of all recorded events that are now complete."""
        self._known.add((mst_key, epoch))
        return self._advance()

    def failed(self, mst_key: int) -> list[Action]:
        """Record a failure; after an unrecorded failure, the replay lacks results that it waits for."""
        return self._advance()

    @property
    def enough_iterations(self) -> int:
        """Return 0: decisions that depend on the time are recorded."""
        return 0

    def time_left(self, n_iterations: int) -> list[Action]:
        """Return no actions."""
        return []

    def finish(self, reason: str) -> list[Action]:
        """End the replay."""
        self._next = len(self._events)
        return [Finish(reason)]

    @property
    def done(self) -> bool:
        """Return whether all events have been repeated."""
        return self._next == len(self._events)

    def _advance(self) -> list[Action]:
        actions: list[Action] = []
        while not self.done:
            event = self._events[self._next]
            if event.event == "result" and (event.mst_key, event.epoch) not in self._known:
                break
            self._next += 1
            actions += [kept for action in from_json(event.actions) if (kept := self._within_reach(action))]
            if self.done:
                actions += self._extended()
        return actions

    def _extended(self) -> list[Action]:
        """Return the iterations that commands asked for after the search had ended."""
        longer = ((key, last_epoch) for key, last_epoch in self._last_epochs.items() if last_epoch < self._reach[key])
        return [Extend(key, self._reach[key]) for key, _ in longer]

    def _within_reach(self, action: Action) -> Action | None:
        """Return an action with the last epoch of its model; None if that was not started."""
        match action:
            case Add(proposal):
                last_epoch = self._raise_last_epoch(proposal.mst_key, proposal.last_epoch)
                return Add(replace(proposal, last_epoch=last_epoch)) if last_epoch else None
            case Extend() | Exploit():
                last_epoch = self._raise_last_epoch(action.mst_key, action.last_epoch)
                return replace(action, last_epoch=last_epoch) if last_epoch else None
            case Finish():
                return None
        return action

    def _raise_last_epoch(self, mst_key: int, last_epoch: int) -> int | None:
        last_epoch, before = min(last_epoch, self._reach[mst_key]), self._last_epochs.get(mst_key, 0)
        self._last_epochs[mst_key] = max(last_epoch, before)
        return last_epoch if last_epoch > before else None
