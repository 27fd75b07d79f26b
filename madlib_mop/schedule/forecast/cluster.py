"""Forecasts a run on many segments: the scheduler in simulated time, with a coordinator of limited capacity.

Every visit passes the driver, the coordinator's link and its commits, one at a time each; its work on the segment
runs in parallel with others. Called by `madlib-mop simulate` and tests; nothing here runs a database.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from ..scheduler import Scheduler, make_scheduler
from ..work import ModelWork, Visit

_NEARLY_ALWAYS = 0.9


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a visit; durations in seconds, bandwidths in bytes per second and direction.

    Attributes
    ----------
    visit_s : float
        Training of the mean model on a segment's rows, at the segment.
    overhead_s : float
        What else a visit takes of its segment's time: state in and out of the trainer, statements.
    driver_s : float
        The driver's own time a visit; it is one process, so these add up.
    commit_s : float
        A commit at the coordinator, without the state's bytes.
    state_bytes : int
    disk_bytes_per_s : float
        At which the coordinator writes states, the log's copy included: commits wait for it one after the other.
    coordinator_bytes_per_s, host_bytes_per_s : float
        Links; infinite where all segments are on the coordinator itself.
    start_s : float
        Until a segment's trainer can begin its first visit.
    """

    visit_s: float
    overhead_s: float = 0.0
    driver_s: float = 0.0
    commit_s: float = 0.0
    state_bytes: int = 0
    disk_bytes_per_s: float = inf
    coordinator_bytes_per_s: float = inf
    host_bytes_per_s: float = inf
    start_s: float = 0.0

    def serial_s(self) -> dict[str, float]:
        """Return the seconds a visit that it takes of each thing that the coordinator has once, by its name."""
        return {
            "driver": self.driver_s,
            "network out": self.state_bytes / self.coordinator_bytes_per_s,
            "network in": self.state_bytes / self.coordinator_bytes_per_s,
            "commits": self.commit_s + self.state_bytes / self.disk_bytes_per_s,
        }

    def alone_s(self) -> float:
        """Return the duration of a visit without waiting."""
        path = 2 * self.state_bytes / min(self.coordinator_bytes_per_s, self.host_bytes_per_s)
        serial = self.serial_s()
        return self.visit_s + self.overhead_s + path + serial["driver"] + serial["commits"]

    def feeds(self) -> dict[str, float]:
        """Return the number of segments that each resource can keep busy; infinite without a cost."""
        alone = self.alone_s()
        return {name: alone / seconds if seconds else inf for name, seconds in self.serial_s().items()}


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a run.

    Attributes
    ----------
    makespan_s, lower_bound_s : float
        The bound is that of training alone: the busiest segment, or the longest model.
    idle_share : float
        The share of the segments' time without training.
    n_visits, n_sessions : int
        Sessions of the coordinator: a worker a segment, the driver's and the caller's.
    commits_per_s, state_bytes_per_s : float
        Means over the run; bytes in both directions together.
    network_bytes : int
        State bytes over the network, 0 where all segments are on the coordinator.
    busy : dict of str to float
        The share of the run's time for which each part of the coordinator was at work.
    waits_for : str
        What another would shorten the run: the name of a part of the coordinator that is nearly always at work,
        "models" where they are fewer than segments, else "training".
    """

    makespan_s: float
    lower_bound_s: float
    idle_share: float
    n_visits: int
    n_sessions: int
    commits_per_s: float
    state_bytes_per_s: float
    network_bytes: int
    busy: dict[str, float]
    waits_for: str


def forecast(
    n_models: int,
    n_segments: int,
    costs: Costs,
    *,
    n_iterations: int = 1,
    schedule: str = "auto",
    n_hosts: int = 0,
    rates: Sequence[float] = (1.0,),
    slow: Sequence[float] = (),
    noise: float = 0.03,
    seed: int = 0,
) -> Forecast:
    """Simulate a run.

    Parameters
    ----------
    n_models, n_segments, n_iterations : int
    costs : Costs
    schedule : str
        A name of `SCHEDULES`.
    n_hosts : int
        Hosts that the segments are distributed to in turn, with one link each; 0 for the coordinator itself.
    rates : sequence of float
        Relative costs of models; model c has the one at c modulo their number. Scaled to a mean of 1.
    slow : sequence of float
        Factors by which the first segments are slower; the others have 1.
    noise : float
        Visits differ by this share, up and down.
    seed : int
        Of the noise.

    Returns
    -------
    Forecast
    """
    mean = sum(rates[c % len(rates)] for c in range(n_models)) / n_models
    of_model = [costs.visit_s * rates[c % len(rates)] / mean for c in range(n_models)]
    of_segment = [*slow[:n_segments], *[1.0] * max(0, n_segments - len(slow))]
    works = [ModelWork((c,), c, n_iterations) for c in range(n_models)]
    scheduler = make_scheduler(schedule, works, dict.fromkeys(range(n_segments), 1))
    world = _World(scheduler, costs, of_model, of_segment, n_hosts, noise, seed)
    world.run()
    n_visits, passed = n_models * n_segments * n_iterations, world.now
    busy = {name: seconds * n_visits / passed for name, seconds in costs.serial_s().items()}
    busiest = max(busy, key=busy.__getitem__)
    otherwise = "models" if n_models < n_segments else "training"
    moved = 2 * costs.state_bytes * n_visits
    longest_model = n_iterations * max(of_model) * sum(of_segment)
    busiest_segment = n_iterations * sum(of_model) * max(of_segment)
    return Forecast(
        makespan_s=passed,
        lower_bound_s=max(longest_model, busiest_segment),
        idle_share=max(0.0, 1.0 - world.trained_s / (n_segments * passed)),
        n_visits=n_visits,
        n_sessions=n_segments + 2,
        commits_per_s=n_visits / passed,
        state_bytes_per_s=moved / passed,
        network_bytes=moved if n_hosts else 0,
        busy=busy,
        waits_for=busiest if busy[busiest] > _NEARLY_ALWAYS else otherwise,
    )


class _World:
    """The simulated time, and the time until which each resource is busy."""

    def __init__(
        self,
        scheduler: Scheduler,
        costs: Costs,
        of_model: Sequence[float],
        of_segment: Sequence[float],
        n_hosts: int,
        noise: float,
        seed: int,
    ):
        self.now = 0.0
        self.trained_s = 0.0
        self._scheduler = scheduler
        self._of_model, self._of_segment = of_model, of_segment
        self._noise, self._uniform = noise, random.Random(seed).uniform
        self._costs, serial = costs, costs.serial_s()
        self._driver_s, self._commit_s = serial["driver"], serial["commits"]
        self._link_s, self._host_s = serial["network out"], costs.state_bytes / costs.host_bytes_per_s
        self._driver = self._out = self._in = self._commits = 0.0
        self._n_hosts = max(1, n_hosts)
        self._to_host, self._from_host = [0.0] * self._n_hosts, [0.0] * self._n_hosts
        self._events: list[tuple[float, int, bool, float, Visit]] = []
        self._n_events = 0

    def run(self) -> None:
        """Make all visits."""
        self.now = self._costs.start_s
        while not self._scheduler.done:
            for visit in self._scheduler.next_tasks():
                assert isinstance(visit, Visit), "a forecast has no evaluations"
                self._begin(visit)
            while True:
                self.now, _, is_kept, seconds, visit = heappop(self._events)
                if is_kept:
                    break
                self._store(visit, seconds)
            self._scheduler.finished(visit, seconds)

    def _begin(self, visit: Visit) -> None:
        """Notify the worker, bring the state to the segment, train; comes back as an event when that is done."""
        self._driver = driver_done = max(self.now, self._driver) + self._driver_s
        host = visit.segment % self._n_hosts
        self._out = max(driver_done, self._out) + self._link_s
        self._to_host[host] = max(driver_done, self._to_host[host]) + self._host_s
        (model,) = visit.unit
        seconds = self._of_model[model] * self._of_segment[visit.segment]
        seconds *= 1 + self._uniform(-self._noise, self._noise)
        self.trained_s += seconds
        there = max(self._out, self._to_host[host])
        self._push(there + self._costs.overhead_s + seconds, False, seconds, visit)

    def _store(self, visit: Visit, seconds: float) -> None:
        """Bring the state back and commit it."""
        host = visit.segment % self._n_hosts
        self._in = max(self.now, self._in) + self._link_s
        self._from_host[host] = max(self.now, self._from_host[host]) + self._host_s
        self._commits = max(self._in, self._from_host[host], self._commits) + self._commit_s
        self._push(self._commits, True, seconds, visit)

    def _push(self, at: float, is_kept: bool, seconds: float, visit: Visit) -> None:
        self._n_events += 1
        heappush(self._events, (at, self._n_events, is_kept, seconds, visit))
