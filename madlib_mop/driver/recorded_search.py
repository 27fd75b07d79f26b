"""A search that decides what it decided before, in the same order, whenever results come: for a replay of its run."""

from collections.abc import Sequence
from dataclasses import replace

from madlib_mop.driver.search_actions import from_json
from madlib_mop.search.base import Action, Add, Exploit, Extend, Finish


class RecordedSearch:
    """Repeats the recorded events of a search one after the other, each as soon as its result is there again.

    What the budget cut short is not begun: models are told from the start to go as far as they came.

    Parameters
    ----------
    events : sequence of dict
        Rows of `madlib_mop.search_event` of the run that is repeated.
    models : sequence of dict
        Its rows of `madlib_mop.model`, at its end.

    Attributes
    ----------
    failures : dict of int to str
        Why models failed, by mst_key; they make the visits that they made.
    """

    def __init__(self, events: Sequence[dict], models: Sequence[dict]):
        self._events = list(events)
        self._last_epoch = {m["mst_key"]: m["last_epoch"] for m in models if m["state"] != "stopped"}
        self.failures = {m["mst_key"]: m["state_detail"] for m in models if m["state"] == "failed"}
        self._next = 0
        self._known: set[tuple[int, int]] = set()

    def start(self, n_slots: int) -> list[Action]:
        """Give the first actions."""
        return self._advance()

    def result(self, mst_key: int, epoch: int, loss: float) -> list[Action]:
        """Take a result; give the actions of all recorded events that wait for nothing more."""
        self._known.add((mst_key, epoch))
        return self._advance()

    def failed(self, mst_key: int) -> list[Action]:
        """Take note of a failure; one that was not recorded leaves the replay without the results that it waits for."""
        return self._advance()

    def finish(self, reason: str) -> list[Action]:
        """End the replay where it is."""
        self._next = len(self._events)
        return [Finish(reason)]

    @property
    def done(self) -> bool:
        """Say whether all events have been repeated."""
        return self._next == len(self._events)

    def _advance(self) -> list[Action]:
        actions: list[Action] = []
        while not self.done:
            event = self._events[self._next]
            if event["event"] == "result" and (event["mst_key"], event["epoch"]) not in self._known:
                break
            self._next += 1
            actions += [kept for action in from_json(event["actions"]) if (kept := self._within_reach(action))]
        return actions

    def _within_reach(self, action: Action) -> Action | None:
        match action:
            case Add(proposal):
                reached = self._last_epoch.get(proposal.mst_key)
                last_epoch = min(proposal.last_epoch, reached or 0)
                return Add(replace(proposal, last_epoch=last_epoch)) if reached else None
            case Extend() | Exploit():
                reached = self._last_epoch.get(action.mst_key)
                return replace(action, last_epoch=min(action.last_epoch, reached)) if reached else None
            case Finish():
                return None
        return action
