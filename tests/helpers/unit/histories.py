"""Random histories of a run, and the promises that hold after each, without a server.

A history has the models of a fit, a warm start or a search, commands of people and of a policy at random moments (with
and without a driver; some are withdrawn), a limit of time, early stopping, fused groups, validation data, metrics on a
sample, metrics that are no means, losses that are NaN, and faults of each kind. Its drivers die before any wait, and
before any write to the record or commit. The real hopper, scheduler, changes and deciders drive it, in simulated time
(`simulated_segments`).

``python -m tests.helpers.unit.histories SEED`` prints one, or what is left of it if it does not keep a promise;
``... FIRST LAST`` checks many; with ``hopping`` in front, those of runs with direct hops.
"""

import hashlib
import json
import math
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self
from unittest import mock

from mop_backend.refusals import STATE_DAMAGED

from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import STATE_COLUMNS, ClonedFrom, ModelRow
from madlib_mop.catalog.rows.plan import HopPlan, PolicyPlan, SamplePlan, ShardAccess
from madlib_mop.catalog.rows.run import VisitRow
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState, RunState
from madlib_mop.catalog.state_slots import SLOTS_PER_RUN
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.deciders import make_time_limit
from madlib_mop.driver.changes.replay import RepeatedCommands
from madlib_mop.driver.changes.search import make_searcher
from madlib_mop.driver.changes.side import RunSide
from madlib_mop.driver.planning.replay import _fused_again, _states, recorded_visits, untrained
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.running.policy import Policy, PolicyCommands
from madlib_mop.errors import Cancelled, MopError
from madlib_mop.models.changes import (
    BY_FUNCTION,
    Add,
    Change,
    Clone,
    Exploit,
    Extend,
    Finish,
    NewModel,
    Pause,
    Pin,
    Resume,
    Stop,
    Unpause,
)
from madlib_mop.models.configuration import Configuration
from tests.helpers.unit.fake_segments import Fault
from tests.helpers.unit.memory_record import NO_MEAN, STATE_BYTES, MemoryRecord
from tests.helpers.unit.memory_runs import ARCH, COMPILE, RULE, Died, Driver
from tests.helpers.unit.rows import a_run, a_search, packed
from tests.helpers.unit.searches import SMALLEST
from tests.helpers.unit.simulated_segments import SimulatedSegments, World

PARENT = 9  # the run that a replay repeats
EARLIER = 8  # the run that a warm start continues
#: Faults that a run overcomes.
FAULTS = {
    Fault.LOST_BEFORE: 0.05, Fault.LOST_AFTER: 0.05, Fault.LOST_LATER: 0.08, Fault.DOUBLED: 0.05, Fault.LATE: 0.05,
    Fault.LOST_IDLE: 0.05, Fault.LOST_OPENING: 0.1, Fault.KILLED: 0.05, Fault.HOST: 0.05, Fault.STATEMENT_AFTER: 0.03,
}  # fmt: skip
#: Faults that some histories have in addition.
_RARE = {Fault.MEMORY: 0.01, Fault.MODEL: 0.01, Fault.DAMAGED: 0.01, Fault.STATEMENT: 0.03, Fault.POLICY: 0.1}
_METHODS = ("hyperband", "hyperopt", "asha", "pbt")
_OPTIMIZERS = "[{'optimizer': ['SGD', 'Adam'], 'lr': [0.001, 0.1, 'log']}]"
_GRIDS = {
    "compile_params_grid": f"{{'loss': ['mse'], 'optimizer_params_list': {_OPTIMIZERS}}}",
    "fit_params_grid": "{'batch_size': [4, 8]}",
}
_MOST_DRIVERS = 200
_SMALL_SHARE = 0.6
_SMALL_STATE_BYTES = 300 << 10  # a slot has several
_MOST_RUNS_TO_SHRINK = 400
#: How many histories there are for one whose replay is checked too.
_REPLAYED_EVERY = 2


@dataclass(frozen=True)
class Limits:
    """The largest sizes of a history; None: as large as the seed says."""

    n_epochs: int | None = None
    n_segments: int | None = None
    n_models: int | None = None


_SMALL = Limits(n_epochs=2, n_segments=2, n_models=2)


class Life(Driver):
    """Drives a run by drivers that die, in simulated time, until nothing is left to do.

    Parameters
    ----------
    seed : int
        Of all that happens.
    n_deaths : int
    left_out : collection of str
        Names of events that do not happen.
    options : dict
        See `Driver`.
    """

    segments: SimulatedSegments

    def __init__(self, seed: int | str, n_deaths: int, left_out: Collection[str] = (), **options: Any):
        super().__init__(seed, **options)
        self.world = World(seed, left_out)
        self.deaths = self._moments([self.chance.randint(1, 60) for _ in range(n_deaths)])

    def _moments(self, pauses: Sequence[int]) -> list[int]:
        """Return the pauses before each death: if one is left out, the others keep their moments."""
        moment, moments = 0, [0]
        for number, pause in enumerate(pauses):
            moment += pause
            if self.world.named(f"death {number}"):
                moments.append(moment)
        return [at - before for before, at in zip(moments, moments[1:], strict=False)]

    @property
    def clock(self) -> float:
        """Seconds since the run began."""
        return self.world.now

    def _set_up(self) -> None:
        """Let all that is random happen to the record."""
        record, chance = self.record, self.chance
        self.between, record.on_write = self._meanwhile, self._writes
        record.present = lambda shards: shards[: chance.randint(1, len(shards))]  # others do not fit into memory

    def make_segments(self) -> SimulatedSegments:
        """Return the segments of the next driver, which has ended the writers of the last one."""
        self._end_writers()
        self.world.say("a driver begins")
        return SimulatedSegments(
            self.segment_ids, self.record, self.world, self.faults, lambda: self.between(), self.policy_says
        )

    def _end_writers(self) -> None:
        if self.segments is not None:
            self.segments.end_writers()

    def live(self) -> Self:
        """Train until a driver has ended the run, and nothing more was asked for."""
        self._set_up()
        with mock.patch("time.monotonic", lambda: self.world.now):
            for _ in range(_MOST_DRIVERS):
                if self._lives_on():
                    return self
        raise AssertionError("the run does not end")

    def _lives_on(self) -> bool:
        """Let one driver train; return whether nothing is left to do."""
        state = RunState.INTERRUPTED
        try:
            self.record.set_run(1, state=RunState.RUNNING)
            self._before()
            self.drive()
            assert not self.segments.has_task, "no task is left in flight"
            if not self.record.end_training(1):
                raise Cancelled("at the end")
            self._check_no_slot_is_leaked()
            self.record.finish(1)
            return not self._prepares()
        except Died:
            pass
        except Cancelled:
            self.record.cancelled, state = None, RunState.CANCELLED
        except MopError as error:
            assert "no space left on device" in error.message, error
            state = RunState.FAILED
        if self.segments is not None:
            self.segments.orphan()
        if not self.record.the_run.state.is_trained:
            self._ends_as(state)
            self._undriven()
        return False

    def _ends_as(self, state: RunState) -> None:
        on_write, self.record.on_write = self.record.on_write, lambda: None
        self.record.set_run(1, state=state)
        self.record.on_write = on_write

    def _before(self) -> None:
        """Called before a driver begins to train."""

    def _undriven(self) -> None:
        """Called between two drivers."""

    def _apply_undriven(self) -> None:
        changes = Changes(RunSide(self.record, self.record.the_run))
        changes.apply(self.record.commands(self.record.the_run.run_id, ChangeState.PENDING))

    def _prepares(self) -> bool:
        """Return whether people have asked for more after the run's end."""
        return False

    def _check_no_slot_is_leaked(self) -> None:
        assert self.record.slots == self.record.used_slots, "spare slots are dropped at the end"

    def _meanwhile(self) -> None:
        """Called at each wait."""
        self._die()

    def _writes(self) -> None:
        """Let writers commit between two statements of the driver; not within its transactions, which lock rows."""
        if not self.record.is_in_transaction:
            self.world.pass_time(self.world.seconds("statement", 0.0, 0.1))
        self._die()

    def _die(self) -> None:
        """Kill the driver when it is its time."""
        if self.deaths:
            self.deaths[0] -= 1
            if not self.deaths[0]:
                self.deaths.pop(0)
                raise Died


class History(Life):
    """A run with random options, commands and faults.

    Parameters
    ----------
    seed : int
    left_out : collection of str
        Names of events that do not happen.
    limits : Limits
    """

    def __init__(self, seed: int, left_out: Collection[str] = (), limits: Limits | None = None):
        chance = Random(f"options {seed}")
        self.kind = chance.choice(["fit", "fused", "early stopping", "search", "search"])
        n_models = 4 if self.kind == "fused" else chance.randint(1, 4)
        options = {
            "n_models": n_models, "n_segments": chance.randint(1, 4), "n_epochs": chance.randint(1, 3),
            "schedule": chance.choice(["rotation", "breadth_first", "longest_first", "auto"]),
            "metrics_compute_frequency": chance.choice([None, 1, 2]),
            "faults": chance.choice([{}, FAULTS, FAULTS | _RARE, FAULTS | _RARE, {Fault.STATEMENT: 0.3}]),
        }  # fmt: skip
        if self.kind == "fused":
            options["groups"] = chance.choice([[[1, 2], [3, 4]], [[1, 2, 3]], [[1, 2, 3, 4]]])
        has_no_mean, self.has_validation = chance.random() < 0.3, chance.random() < 0.4
        if self.kind == "early stopping":
            name = chance.choice(["loss", NO_MEAN if has_no_mean else "loss"])
            rule = RULE | {
                "metric": chance.choice(["", "val_"] if self.has_validation else [""]) + name,
                "mode": "max" if name == NO_MEAN else "min", "min_delta": chance.choice([0.0, 0.0, 0.1]),
                "restore_best": chance.random() < 0.7, "patience": chance.randint(1, 2),
            }  # fmt: skip
            options |= {"early_stopping": rule, "n_epochs": chance.randint(2, 6), "metrics_compute_frequency": 1}
            if Fault.DAMAGED in options["faults"]:
                options["faults"] = options["faults"] | {Fault.DAMAGED: 0.03}
        self._limit(options, limits or Limits(), Random(f"sizes {seed}"))
        n_deaths, any_trainer = chance.choice([0, 2, 8]), chance.random() < 0.5
        super().__init__(seed, n_deaths, left_out, any_trainer=any_trainer, **options)
        self.has_policy = chance.random() < 0.4
        self.plan_data(chance)
        self.plan_warm_start(chance)
        self.plan_search(chance)
        self.plan_time(Random(f"time {seed}"))
        self.record.has_no_mean = has_no_mean
        self.record.nan_share = chance.choice([0.0, 0.0, 0.03, 0.2])
        self.record.state_bytes = chance.choice([STATE_BYTES, _SMALL_STATE_BYTES])
        self.first = dict(self.record.rows)
        kinds = [chance.choice(list(BY_FUNCTION.values())) for _ in range(chance.choice([0, 3, 6, 10]))]
        self.commands = kinds and [*kinds, Unpause]
        self.n_moments = chance.randint(0, 4)  # commands at moments that are rare
        self.pending: set[int] = set()  # commands at the moment that a driver begins
        self.has_begun_with_commands = False
        self.undriven: set[int] = set()  # commands that were obeyed while no driver trained the run
        self.may_be_cancelled = chance.random() < 0.3
        self.n_issued = 0
        if Fault.MODEL in self.faults:
            self.record.member_fails = lambda: self.world.happens("a member fails", 0.1)
        self.may_be_withdrawn = chance.random() < 0.5
        if self.may_be_withdrawn:
            self.record.withdraws = lambda: self.chance.random() < 0.1

    def _limit(self, options: dict[str, Any], limits: Limits, chance: Random) -> None:
        """Limit the sizes; most histories are small."""
        small = _SMALL if chance.random() < _SMALL_SHARE else Limits()
        for name, most in [*vars(small).items(), *vars(limits).items()]:
            if most is not None and (self.kind, name) != ("fused", "n_models"):
                options[name] = min(options[name], most)

    def text(self) -> str:
        """Return the history as lines."""
        run = self.record.the_run
        sizes = f"{run.n_models} models, {run.n_segments} segments, {run.num_iterations} iterations"
        return "\n".join([f"{self.kind}, {sizes}, schedule {run.schedule}", *self.world.log])

    def plan_data(self, chance: Random) -> None:
        """Plan validation data, and a sample for metrics after visits."""
        plan = self.record.the_run.plan
        if self.has_validation:
            shards = [(shard, chance.choice([0, 5, 5])) for shard in range(chance.randint(1, 5))]
            plan = replace(plan, validation=packed([*shards, (len(shards), 5)]))
        if chance.random() < 0.4:
            of = plan.validation or plan.training
            data_set = "validation" if plan.validation else "training"
            sample = SamplePlan(data_set, of.segments[-1].segment_id, 2, chance.randint(1, 3))
            plan = replace(plan, sample=sample)
        self.record.the_run = replace(self.record.the_run, plan=plan)

    def plan_warm_start(self, chance: Random) -> None:
        """Let models continue an earlier run, with its states or with its weights only; fused ones all do the same."""
        run, earlier, models = self.record.the_run, dict[int, ModelRow](), dict(self.record.rows)
        if self.kind == "search" or chance.random() < 0.6:
            return
        n_before, has_states = chance.randint(1, 3), chance.random() < 0.7
        for key, model in models.items():
            if self.kind != "fused" and chance.random() < 0.3:
                continue
            models[key] = replace(
                model, first_epoch=n_before + 1, last_epoch=n_before + run.num_iterations, epoch=n_before
            )
            if not has_states:
                models[key] = replace(models[key], start_weights=f"mst_key {key}")
                continue
            digest = hashlib.sha256(f"earlier {key}".encode()).hexdigest()
            state = dict.fromkeys(("state_bytes", "model_bytes"), STATE_BYTES)
            state |= {"forward_parts": 1, "digest": digest, "weights_digest": digest}
            models[key] = replace(models[key], state_slot=SLOTS_PER_RUN, **state)
            earlier[key] = replace(
                model, run_id=EARLIER, state=ModelState.TRAINED, epoch=n_before, last_epoch=n_before,
                position=run.n_segments, state_version=n_before * run.n_segments, state_slot=EARLIER * SLOTS_PER_RUN,
                **state,
            )  # fmt: skip
        self.record = MemoryRecord(replace(run, parent_run_id=EARLIER), list(models.values()), earlier)

    def plan_search(self, chance: Random) -> None:
        """Complete the run's plan."""
        record = self.record
        record.rows = {key: replace(m, fit_params=f"batch_size={key}") for key, m in record.rows.items()}
        plan = record.the_run.plan
        if self.has_policy:
            plan = replace(plan, policy=PolicyPlan("SELECT 1", None, 10))
        if self.kind == "search":
            method = chance.choice(_METHODS)
            params = SMALLEST[method] + (f", budget_s={chance.randint(5, 60)}" if chance.random() < 0.3 else "")
            search = a_search(method, params=params, is_paced=True, archs={"1": json.dumps(ARCH)}, **_GRIDS)
            plan, record.rows = replace(plan, search=search), {}
            record.the_run = replace(record.the_run, kind="automl", metrics_compute_frequency=None)
        record.the_run = replace(record.the_run, plan=plan)

    def plan_time(self, chance: Random) -> None:
        """Limit the time of a fit; a search has a budget in its own plan."""
        run = self.record.the_run
        if not run.is_search and chance.random() < 0.4:
            plan = replace(run.plan, time_limit_s=float(chance.randint(0, 60)))
            self.record.the_run = replace(run, plan=plan)
        self.n_in_time = 0  # visits before the time was over

    def hopper(self, run, progress):
        make = make_searcher if run.is_search else make_time_limit
        decider = make(self.record, run, lambda: self.clock)
        policy = None
        if self.has_policy:
            commands = PolicyCommands(self.record, run, self.caller)
            policy = Policy(run.plan.policy, 1, commands, self.segments, progress.tell)
        return Hopper(self.record, self.segments, run, progress, None, [decider], policy)

    @property
    def time_is_over(self) -> bool:
        """Whether the time of the run, or the budget of its search, was over."""
        spent = (event.event == "budget" and event.epoch is None for event in self.record.events)
        return any(spent) or any(row.source is ChangeSource.TIME_LIMIT for row in self.record.changes)

    def policy_says(self):
        """Return commands that are a function of the metrics."""
        rows = []
        known = [(m.mst_key, m.value) for m in self.record.all_metrics if (m.data_set, m.ordinal) == ("training", 0)]
        known += [(key, loss) for (key, _, _), loss in self.record.visit_metrics.items()]
        for mst_key, loss in known:
            rows += {
                0: [{"action": "extend", "mst_key": mst_key, "arguments": {"num_iterations": 1}}],
                1: [{"action": "clone_model", "mst_key": mst_key, "arguments": {"num_iterations": 1}}],
                2: [{"action": "resume_model", "mst_key": mst_key}],
                3: [{"action": "pause"}],
                4: [{"action": "pin_model", "mst_key": mst_key}],
                5: [{"action": "pin_model", "mst_key": mst_key}],
                6: [{"action": "stop_model", "mst_key": mst_key, "reason": "it is too slow"}],
                7: [{"action": "stop_model", "mst_key": min(self.record.rows)}],
            }.get(-1 if math.isnan(loss) else int(loss * 0x10000) % 20, [])
        return json.dumps(rows)

    def _apply_undriven(self) -> None:
        changes = Changes(RunSide(self.record, self.record.the_run))
        changes.apply(self.record.commands(self.record.the_run.run_id, ChangeState.PENDING))

    def _prepares(self) -> bool:
        if not self.commands:
            return not self.record.the_run.state.is_trained
        self.issue()
        self._apply_undriven()
        return True

    def _before(self) -> None:
        """Issue commands that are pending when a driver begins."""
        while self.commands and self.chance.random() < 0.3:
            self.issue()
        self.pending = {row.change_id for row in self.record.changes if row.state is ChangeState.PENDING}
        self.has_begun_with_commands |= bool(self.pending)

    def _undriven(self) -> None:
        """Issue a command to a run without a driver: its call ends the old writers, and obeys it."""
        self._end_writers()
        if self.commands and self.chance.random() < 0.3:
            self.issue()
            before = len(self.record.settled)
            with suppress(Died):
                self._apply_undriven()
            self.undriven |= {change_id for change_id, _ in self.record.settled[before:]}

    def _meanwhile(self) -> None:
        """Issue commands sometimes, often several at once; sometimes withdraw one, or cancel the run."""
        segments, record, chance = self.segments, self.record, self.chance
        limit_s = record.the_run.plan.time_limit_s
        if limit_s is None or self.clock < limit_s:
            self.n_in_time = len(record.all_visits)
        assert record.cancelled is None or not segments.has_notified, "a cancelled run ends when it is told"
        asks = self.has_policy and not self.time_is_over
        assert not (asks and segments.has_news), "the policy sees metrics on the sample"
        waiting = [model for model in record.rows.values() if model.state is ModelState.WAITING]
        assert not any(model.has_own_visits for model in waiting), "a model waits for its first visit"
        pending = [row for row in record.changes if row.state is ChangeState.PENDING]
        if segments.n_waits == 1:
            self._check_begun([row for row in pending if row.change_id in self.pending])
        super()._meanwhile()
        if self.may_be_cancelled and chance.random() < 0.01:
            record.cancelled = "ada"
        for row in pending if self.may_be_withdrawn else ():
            if row.source is ChangeSource.PERSON and chance.random() < 0.02:
                record.withdraw(row.change_id)
        if not self.commands and record.the_run.paused_by and not pending:
            self.commands.append(Unpause)
        self._issue_at_moment()
        while self.commands and chance.random() < 0.2:
            self.issue()

    def _check_begun(self, left: Sequence[ChangeRow]) -> None:
        """A driver obeys pending commands before its first task, but those that wait for an evaluation or a host."""
        # also those that were withdrawn since
        began_with = {self.record.changes[change_id].command for change_id in self.pending}
        may_wait = self.kind in ("fused", "early stopping") and began_with & {"extend", "resume_model"}
        if self.record.the_run.plan.direct_hops is not None:
            may_wait = may_wait or "clone_model" in began_with  # for a host that holds the state
        assert not left or may_wait, "pending commands come first"

    def _issue_at_moment(self) -> None:
        """Issue another command at a moment that is rare: about a model that has just copied a state, or is at its best
        one, or whose visit is committed while the driver has no answer yet, or that is evaluated after its last one."""
        if not self.n_moments or self.chance.random() > 0.3:
            return
        rows = self.record.rows
        chances = [
            (Clone, [key for key, m in rows.items() if m.is_just_taken_over]),
            (Clone, [key for key, m in rows.items() if m.is_restored]),
            (Clone, self.segments.unread),
            (Resume, [key for key in self.segments.unread if rows[key].state is ModelState.STOPPED]),
            (Extend, [key for key, m in rows.items() if m.early_stopping is not None and self._has_ended(m)]),
        ]
        chances = [(kind, keys) for kind, keys in chances if keys]
        if chances:
            self.n_moments -= 1
            kind, keys = self.chance.choice(chances)
            self.issue(kind, self.chance.choice(keys))

    def _has_ended(self, model: ModelRow) -> bool:
        made_all = (model.epoch, model.position) == (model.last_epoch, self.record.the_run.n_segments)
        return made_all and model.state is ModelState.TRAINING

    def issue(self, kind: type[Change] | None = None, key: int | None = None) -> None:
        """Issue the next command about a random model, or this one."""
        kind, chance = kind or self.commands.pop(0), self.chance
        rows = self.record.rows
        wanted = {Resume: ModelState.STOPPED, Stop: ModelState.TRAINING}.get(kind)
        key = key or chance.choice([k for k, m in rows.items() if m.state is wanted] or list(rows) or [1])
        change = {
            Stop: Stop(key, "enough", at_once=True), Resume: Resume(key), Pause: Pause(), Unpause: Unpause(),
            Pin: Pin(key, chance.random() < 0.8),
            Extend: Extend(chance.choice([key, None]), num_iterations=chance.randint(1, 2)),
            Clone: Clone(
                key,
                chance.choice([None, self.configuration(chance.randint(50, 99))]),
                chance.random() < 0.7,
                num_iterations=chance.choice([None, 1, 2]),
            ),
            Add: Add((NewModel(self.configuration(chance.randint(100, 999)), None, None),)),
        }[kind]  # fmt: skip
        self.n_issued += 1
        if not self.world.named(f"command {self.n_issued}: {kind.function} {key}"):
            return
        self.record.issue(ChangeRow.asked(1, kind.function, {}, 10).checked(change))
        if self.segments is not None:
            self.segments.is_woken = True

    @staticmethod
    def configuration(n: int) -> Configuration:
        """Return one of many configurations."""
        return Configuration.recorded(1, COMPILE, f"batch_size={n}", ARCH)


class HoppingHistory(History):
    """A history of a run whose states hop from host to host; hosts that are lost come back with old states, or none."""

    def __init__(self, seed: int, left_out: Collection[str] = (), limits: Limits | None = None):
        super().__init__(seed, left_out, limits)
        chance, record = Random(f"hops {seed}"), self.record
        plan = record.the_run.plan
        shards = [
            replace(shard, place=ShardAccess("SELECT", f"host{shard.segment_id % 2}"))
            for shard in plan.training.segments
        ]
        if len(shards) > 1 and chance.random() < 0.3:  # a segment on the coordinator
            shards[chance.randrange(len(shards))] = replace(shards[0], segment_id=0, place=None)
        shards = [replace(shard, segment_id=number) for number, shard in enumerate(shards)]
        self.any_trainer = False
        may_hop = self.kind != "fused" and (plan.search is None or plan.search.method != "pbt")
        hops = HopPlan(chance.choice([1, 2, 2, 3]), chance.choice([None, None, 1, 2]))
        training = replace(plan.training, segments=tuple(shards))
        plan = replace(plan, training=training, any_trainer=False, direct_hops=hops if may_hop else None)
        record.the_run = replace(record.the_run, plan=plan)
        record.held = {shard.server: {} for shard in shards if shard.server is not None}
        if Fault.HOST in self.faults:
            self.faults = self.faults | {Fault.HOST: 0.15, Fault.FORGOTTEN: 0.6, Fault.ORPHANED: 0.1}


class ReplayRecord(MemoryRecord):
    """The record of a replay, which reads the repeated run too."""

    def __init__(self, parent: MemoryRecord):
        run = parent.the_run
        models = [m for m in parent.models(1) if m.cloned_from is None]
        if run.is_search:
            models = [m for m in models if m.command_id is not None]
        groups = _fused_again(run.plan.fused_training, parent.visits(1))
        plan = replace(run.plan, policy=None, time_limit_s=None, fused_training=groups, direct_hops=None)
        row = a_run(
            plan, kind="replay", parent_run_id=PARENT, schedule="recorded", num_iterations=run.num_iterations,
            metrics_compute_frequency=run.metrics_compute_frequency,
        )  # fmt: skip
        self.parent = parent
        warm = _states(self, run, models, parent.visits(1))
        states = {key: each.state for key, each in warm.models.items()} if warm else {}
        first = [untrained(model) for model in models]
        super().__init__(row, [self._with_state(model, states.get(model.mst_key)) for model in first])
        self.has_no_mean, self.nan_share = parent.has_no_mean, parent.nan_share

    @staticmethod
    def _with_state(model: ModelRow, state: ModelRow | None) -> ModelRow:
        """Return a model with the state that it continues with."""
        if state is None:
            return model
        return replace(model, state_slot=SLOTS_PER_RUN, **{name: getattr(state, name) for name in STATE_COLUMNS})

    def models(self, run_id):
        if run_id in (PARENT, EARLIER):
            return self.parent.models(1) if run_id == PARENT else list(self.parent.earlier.values())
        return super().models(run_id)

    def visits(self, run_id):
        return self.parent.visits(1) if run_id == PARENT else super().visits(run_id)

    def search_events(self, run_id):
        return self.parent.search_events(1) if run_id == PARENT else super().search_events(run_id)

    def run(self, run_id):
        return self.parent.the_run if run_id == PARENT else self.the_run


class Replay(Life):
    """The replay of a history, with other faults."""

    def __init__(self, seed: int, parent: MemoryRecord):
        self.replayed = ReplayRecord(parent)
        chance = Random(f"replay {seed}")
        faults = chance.choice([{}, FAULTS])
        super().__init__(f"replay {seed}", chance.choice([0, 4]), n_segments=parent.the_run.n_segments, faults=faults)
        self.record = self.replayed

    def hopper(self, run, progress):
        deciders = [RepeatedCommands(self.record.models(PARENT))]
        if run.is_search:
            deciders = [make_searcher(self.record, run, lambda: 0.0), *deciders]
        return Hopper(self.record, self.segments, run, progress, recorded_visits(self.record, run), deciders)


def live_and_check(seed: int, kind: type[History] = History) -> History:
    """Live a history, and for some their replay, and assert what both keep; shrink one that does not."""
    try:
        return lived(seed, kind=kind)
    except BaseException as error:
        error.add_note(f"history {seed}\n{shrink(seed, error, kind)}")
        raise


def lived(
    seed: int, left_out: Collection[str] = (), limits: Limits | None = None, kind: type[History] = History
) -> History:
    """As `live_and_check`, without shrinking: an error has the history as ``history``."""
    history = kind(seed, left_out, limits)
    try:
        history.live()
        assert_promises(history)
        if seed % _REPLAYED_EVERY == 0:
            assert_replayed(history.record, Replay(seed, history.record).live().record)
    except BaseException as error:
        error.history = history
        raise
    return history


def shrink(seed: int, error: BaseException, kind: type[History] = History) -> str:
    """Return the text of the shortest history found that fails like one of a seed: with fewer sizes and events."""
    left = _MOST_RUNS_TO_SHRINK
    limits, left_out = Limits(), frozenset[str]()
    best: History = error.history

    def fails(limits: Limits, left_out: Collection[str]) -> History | None:
        nonlocal left
        left -= 1
        try:
            lived(seed, left_out, limits, kind)
        except Exception as found:
            return found.history if place_of(found) == place_of(error) else None
        return None

    for name in ("n_epochs", "n_segments", "n_models"):
        for most in range(1, 4):
            smaller = replace(limits, **{name: most})
            if (found := fails(smaller, left_out)) is not None:
                limits, best = smaller, found
                break
    n_at_once = len(best.world.happened)
    while n_at_once and left > 0:
        events, has_shrunk = [name for name in best.world.happened if name not in left_out], False
        for start in range(0, len(events), n_at_once):
            fewer = left_out | {*events[start : start + n_at_once]}
            if left > 0 and (found := fails(limits, fewer)) is not None:
                left_out, best, has_shrunk = fewer, found, True
        n_at_once = n_at_once if has_shrunk and n_at_once == 1 else n_at_once // 2
    return best.text()


def place_of(error: BaseException) -> tuple[type, str]:
    """Return what is the same for two failures of one cause: the kind, and the line of code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), f"{frame.filename}:{frame.lineno}"


def assert_replayed(record: MemoryRecord, again: MemoryRecord) -> None:
    """A replay makes the same visits, with the same states, metrics and ends."""
    ends = [{m.mst_key: (m.state, m.digest) for m in each.models(1)} for each in (record, again)]
    for m in record.models(1):
        if m.state is ModelState.FAILED and m.is_restored:  # its newest state was damaged, which is not repeated
            assert ends[1][m.mst_key][0] is ModelState.FAILED
            del ends[0][m.mst_key], ends[1][m.mst_key]
    assert ends[0] == ends[1]
    made = [{place: v.digest_out for place, v in each.all_visits.items()} for each in (record, again)]
    assert made[0] == made[1]
    assert str(sorted(record.visit_metrics.items())) == str(sorted(again.visit_metrics.items()))  # NaN is not NaN
    values = [
        {(m.mst_key, m.epoch, m.data_set, m.name): str(m.value) for m in each.all_metrics} for each in (record, again)
    ]
    assert all(values[0][place] == value for place, value in values[1].items() if place in values[0])
    clones = [m.mst_key for m in record.models(1) if m.cloned_from is not None]
    repeated = [row for row in again.changes if row.change == "clone"]
    assert sorted(key for row in repeated for key in row.mst_keys) == clones


def assert_promises(history: History) -> None:
    """Assert what each history keeps."""
    record = history.record
    _Commands(history).check()
    for model in record.models(1):
        _check_visits(record, model)
        _check_metrics(record, model)
    _check_states(record)
    assert not record.copies, "at the end, hosts need hold no state"
    if record.the_run.is_search:
        _check_search(record)


class _Commands:
    """What commands and decisions have made of the models, by the record of the changes alone."""

    def __init__(self, history: History):
        self.history, self.record, self.run = history, history.record, history.record.the_run
        self.last_epochs: dict[int, int | None] = {m.mst_key: m.last_epoch for m in history.first.values()}
        # None: of a search
        self.extended: dict[int, int] = {}  # with the last epochs, which had been made at that time
        self.stopped: dict[int, int] = {}  # with the number of visits at that time
        self.pinned: set[int] = set()
        self.paused: int | None = None
        self.timed: dict[int, tuple[int, int]] = {}  # models ended by the time: the last epoch, the number of visits

    def check(self) -> None:
        changes = self.record.changes
        commands = [row for row in changes if row.command is not None]
        assert ChangeState.PENDING not in {row.state for row in commands}, "each is settled"
        assert not any("too late" in (row.detail or "") for row in commands), "a driver looks before it ends"
        in_order = [i for i, _ in self.record.settled if changes[i].command not in (None, Unpause.function)]
        assert in_order == sorted(in_order), "commands are settled in their order"
        obeyed = sorted(row.ordinal for row in commands if row.state is ChangeState.OBEYED)
        assert obeyed == list(range(len(obeyed)))
        for change_id, n_visits in self.record.settled:
            row = changes[change_id]
            if row.state is ChangeState.OBEYED:
                self._made(row, n_visits)
        rows = self.record.rows
        assert set(rows) == set(self.last_epochs), "models are those of the run and of the changes"
        failed = [m.state_detail for m in rows.values() if m.state is ModelState.FAILED]
        assert not any("no space left" in (why or "") for why in failed), "it is not the fault of a model"
        self._check_policy()
        self._check_time()
        for key, last_epoch in self.last_epochs.items():
            assert last_epoch in (None, rows[key].last_epoch), f"mst_key {key} trains until {last_epoch}"
        assert {key for key, model in rows.items() if model.pinned} == self.pinned
        for key in self.stopped:
            self._check_stopped(key, len(self.record.all_visits))
            assert rows[key].state in (ModelState.STOPPED, ModelState.FAILED)
        stopped = [m for m in rows.values() if m.state is ModelState.STOPPED]
        by_command = {m.mst_key for m in stopped if (m.state_detail or "").startswith("stopped by")}
        assert by_command <= set(self.stopped), "a model that was resumed is not stopped"
        assert (self.paused is None) == (self.run.paused_by is None)

    def _check_time(self) -> None:
        """When the time of a fit is over, that is decided once, and its models begin no further iteration."""
        rows = [row for row in self.record.changes if row.source is ChangeSource.TIME_LIMIT]
        assert len(rows) <= 1
        if not rows and self.run.plan.time_limit_s is not None:
            n_late = len(self.record.all_visits) - self.history.n_in_time
            assert n_late <= self.run.n_segments, "only visits in flight are made without a decision"
        for key, (last_epoch, n_visits) in self.timed.items():
            late = [v for v in self.record.visits(1)[n_visits:] if v.mst_key == key]
            assert all(v.epoch <= last_epoch for v in late), f"mst_key {key} ends with its iteration"

    def _check_policy(self) -> None:
        """Each row of the policy's result was issued once, those of its last result too."""
        rows = [row for row in self.record.changes if row.source is ChangeSource.POLICY]
        issued = [(row.command, str(row.arguments | {"reason": None})) for row in rows]
        assert len(issued) == len(set(issued)), "the policy repeats itself, its commands are not repeated"
        asks = self.history.has_policy and not self.history.time_is_over
        if asks and Fault.POLICY not in self.history.faults:
            wanted = {(row["action"], row.get("mst_key")) for row in json.loads(self.history.policy_says())}
            known = {(row.command, row.arguments.get("mst_key")) for row in rows} | {("pause", None)}
            assert wanted <= known, "its last result counts too"

    def _made(self, row: ChangeRow, n_visits: int) -> None:
        change, keys = row.read(), row.mst_keys or ()
        match change:
            case Stop() if row.source in (ChangeSource.PERSON, ChangeSource.POLICY):
                assert row.source is ChangeSource.PERSON or change.mst_key not in self.pinned, "people stop it only"
                self.stopped[change.mst_key] = n_visits
            case Stop() if row.source is ChangeSource.EARLY_STOPPING:
                epoch, _ = row.visits[str(change.mst_key)]
                assert epoch > self.extended.get(change.mst_key, 0), "a model that is extended at its end goes on"
                self.last_epochs[change.mst_key] = row.visits[str(change.mst_key)][0]
            case Resume():
                self.timed.pop(change.mst_key, None)
                if change.mst_key in self.stopped:  # otherwise the search has stopped it
                    self._check_stopped(change.mst_key, n_visits)
                    del self.stopped[change.mst_key]
            case Extend(num_iterations=None) | Exploit():
                self.last_epochs[change.mst_key] = None
            case Stop() | Finish():  # they end some models with their epochs
                assert not self.pinned & set(keys), "neither a search nor the time stops a pinned model"
                self.last_epochs |= dict.fromkeys(keys)
                if row.source is ChangeSource.TIME_LIMIT:
                    self.timed = {key: (row.visits[str(key)][0] + 1, n_visits) for key in keys}
            case Extend():
                assert change.mst_key in (None, *keys)
                for key in keys:
                    self.timed.pop(key, None)
                    made_all = list(row.visits[str(key)]) == [self.last_epochs[key], self.run.n_segments]
                    if made_all and row.change_id not in self.history.undriven:
                        self.extended[key] = self.last_epochs[key]
                    if self.last_epochs[key] is not None:
                        self.last_epochs[key] += change.num_iterations
            case Add() if row.source is ChangeSource.SEARCH:
                self.last_epochs |= dict.fromkeys(keys)
            case Add():
                assert len(keys) == len(change.models)
                self.last_epochs |= dict.fromkeys(keys, self.run.num_iterations)
            case Clone():
                (key,) = keys
                self.last_epochs[key] = self._of_clone(self.record.rows[key], change)
            case Pin():
                (self.pinned.add if change.pinned else self.pinned.discard)(change.mst_key)
            case Pause():
                self.paused = n_visits
            case Unpause():
                ended = [v for v in self.record.visits(1)[self.paused : n_visits] if not v.timing]
                n_models = len({v.mst_key for v in ended})
                assert len(ended) == n_models <= self.run.n_segments, "no visit begins in a pause"
                if not self.history.any_trainer:
                    assert len(ended) == len({v.segment_id for v in ended}), "a segment makes one visit at a time"
                self.paused = None

    def _of_clone(self, clone: ModelRow, change: Clone) -> int | None:
        came = clone.cloned_from
        if change.num_iterations is None:
            return self.last_epochs[change.mst_key]
        if came is None:
            return clone.first_epoch - 1 + change.num_iterations
        complete = came.position == self.run.n_segments
        return (came.epoch if complete else max(came.epoch, clone.first_epoch) - 1) + change.num_iterations

    def _check_stopped(self, key: int, n_visits: int) -> None:
        made = [v for v in self.record.visits(1)[self.stopped[key] : n_visits] if v.mst_key == key]
        assert len(made) <= 1, "only the visit in flight is made after a stop"


def _check_visits(record: MemoryRecord, model: ModelRow) -> None:
    """Each visit was made once and in order, in one chain of states, which ends with the model's state."""
    key, came, n_segments = model.mst_key, model.cloned_from, record.the_run.n_segments
    visits = [v for v in record.visits(1) if v.mst_key == key]
    copied = [row.work["source"] for row in record.changes if row.change == "exploit" and row.mst_keys == [key]]
    epoch, position, state = model.first_epoch - 1, n_segments, ""
    inherited: list[int] = []
    if came is not None:
        epoch, position, inherited = came.epoch, came.position or n_segments, list(came.segments)
        state = _cloned_state(record, came)
    elif model.start_weights is None and model.command_id is None and key in record.earlier:
        state = record.earlier[key].digest
    made = {epoch: inherited}
    for visit in visits:
        epoch, position = (epoch, position + 1) if position < n_segments else (epoch + 1, 1)
        assert (visit.epoch, visit.position) == (epoch, position)
        made.setdefault(epoch, []).append(visit.segment_id)
        while copied and visit.digest_in != state:
            state = _at_end_of(record, copied.pop(0), epoch - 1)
        assert visit.digest_in == state, f"mst_key {key} continues from its newest state"
        state = visit.digest_out
    assert all(len(set(segments)) == len(segments) for segments in made.values())
    assert (model.epoch, model.position) == (epoch, position) or not visits
    _check_sampled(record, model, visits)
    if model.state is ModelState.TRAINED:
        assert (model.epoch, model.position) == (model.last_epoch, n_segments), f"mst_key {key} is trained to its end"
    if model.is_restored:
        assert model.best_state is not None
        state = record.stored[key, model.best_state.version].digest
        if came is None or model.best_state.epoch > came.epoch:
            assert state == _at_end_of(record, key, model.best_state.epoch)
        assert model.best_state.epoch == _best_epoch(record, model), "its state is its best one"
    elif model.best_state is not None and STATE_DAMAGED in (model.state_detail or ""):
        raise AssertionError("a model whose newest state is damaged keeps its best one")
    elif copied:
        return  # it ends with a copy
    assert (model.digest or "") == state, f"the state of mst_key {key}"


def _at_end_of(record: MemoryRecord, key: int, epoch: int) -> str:
    """Return the state of a model after its last visit of an epoch."""
    n_segments = record.the_run.n_segments
    (visit,) = [v for v in record.visits(1) if (v.mst_key, v.epoch, v.position) == (key, epoch, n_segments)]
    return visit.digest_out


def _cloned_state(record: MemoryRecord, came: ClonedFrom) -> str:
    assert came.version is not None
    stored = record.stored[came.mst_key, came.version]
    if came.version > 0 and not came.is_best:
        assert (stored.epoch, stored.position) == (came.epoch, came.position), "the copied state is that of this visit"
    return stored.digest


def _best_epoch(record: MemoryRecord, model: ModelRow) -> int:
    """Return the epoch of a model's best metric by its rule; the first one if all are NaN."""
    metric, sign = model.early_stopping["metric"], -1 if model.early_stopping["mode"] == "max" else 1
    where = ("validation" if metric.startswith("val_") else "training", metric.removeprefix("val_"))
    of_rule = [m for m in record.all_metrics if m.mst_key == model.mst_key and (m.data_set, m.name) == where]
    best = next((m for m in of_rule if not math.isnan(m.value)), of_rule[0])
    for m in of_rule:
        if sign * m.value + model.early_stopping["min_delta"] < sign * best.value:
            best = m
    return best.epoch if not math.isnan(best.value) else of_rule[0].epoch


def _check_sampled(record: MemoryRecord, model: ModelRow, visits: Sequence[VisitRow]) -> None:
    """A model is evaluated on the sample after the visits that are due."""
    sample, n_segments = record.the_run.plan.sample, record.the_run.n_segments
    made = [(v.epoch, v.position) for v in visits]
    due = [(e, p) for e, p in made if sample and ((e - model.first_epoch) * n_segments + p) % sample.every == 0]
    assert [(e, p) for key, e, p in record.visit_metrics if key == model.mst_key] == due, "metrics on the sample"


def _check_metrics(record: MemoryRecord, model: ModelRow) -> None:
    """A trained model has the metrics of each epoch that is due, once; they are those of the epoch's state."""
    key, run = model.mst_key, record.the_run
    found: dict[int, dict[tuple[str, str], float]] = {}
    for metric in (m for m in record.all_metrics if m.mst_key == key):
        values = found.setdefault(metric.epoch, {})
        assert (metric.data_set, metric.name) not in values, "metrics are computed once"
        values[metric.data_set, metric.name] = metric.value
    for epoch, values in found.items():
        expected = record.metrics_of(_at_end_of(record, key, epoch))
        assert str(sorted(values.items())) == str(sorted(expected.items())), "metrics are those of the epoch's state"
    shards = Counter((e.epoch, e.data_set, e.shard) for e in record.evaluations if e.mst_key == key)
    places = [
        (data_set, shard.segment_id)
        for data_set, packed in run.plan.data_sets.items()
        for shard in packed.segments
        if shard.n_rows
    ]
    assert shards == Counter((epoch, *place) for epoch in found for place in places), "each shard is evaluated once"
    if model.state is ModelState.TRAINED:
        since = model.first_epoch if model.cloned_from is None else _first_own_epoch(record, model)
        due = range(since, model.last_epoch + 1)
        every = run.metrics_compute_frequency or model.last_epoch
        counted = {e for e in due if e == model.last_epoch or (e - model.first_epoch + 1) % every == 0}
        assert counted <= set(found), "metrics are computed after the iterations that are due"


def _first_own_epoch(record: MemoryRecord, model: ModelRow) -> int:
    return min((v.epoch for v in record.visits(1) if v.mst_key == model.mst_key), default=model.last_epoch + 1)


def _check_states(record: MemoryRecord) -> None:
    """The states that are stored are those of the models."""
    here = [m for m in record.rows.values() if m.state_server is None]
    assert all(m.state is ModelState.FAILED for m in record.rows.values() if m not in here), "states come home"
    needed = {(m.mst_key, m.state_version) for m in here if m.digest}
    needed |= {(m.mst_key, m.home_state.version) for m in record.rows.values() if m.home_state is not None}
    for m in here:
        assert m.digest is None or record.states[m.mst_key, m.state_version] == m.digest
        if m.best_state is not None and not m.is_restored and m.state is not ModelState.FAILED:
            needed.add((m.mst_key, m.best_state.version))
    of_failed = {(m.mst_key, m.best_state.version) for m in record.rows.values() if m.best_state is not None}
    assert needed <= set(record.states) <= needed | of_failed


def _check_search(record: MemoryRecord) -> None:
    """The search is over; it was told each result once, and another driver repeats its decisions."""
    searcher = make_searcher(record, record.the_run, lambda: 0.0)
    assert list(searcher.begin(record.rows)) == [] and not searcher.decides
    events = record.search_events(1)
    told = Counter((e.event, e.mst_key, e.epoch) for e in events if e.event in ("result", "failed"))
    assert not told or max(told.values()) == 1, "each result is reported once"
    decided = [(row.event, row.number) for row in record.changes if row.event is not None]
    assert len(decided) == len(set(decided)) == sum(len(event.changes) for event in events)
    for event in events:
        if event.event == "result":
            of = [m for m in record.all_metrics if (m.mst_key, m.epoch, m.name) == (event.mst_key, event.epoch, "loss")]
            losses = {m.data_set: m.value for m in of}
            loss = losses["validation" if record.the_run.plan.validation else "training"]
            assert str(event.loss) == str(loss), "a search gets the loss on the validation data"


if __name__ == "__main__":
    hopping = "hopping" in sys.argv[1:]
    first, *last = (int(word) for word in sys.argv[1:] if word != "hopping")
    for number in range(first, last[0] + 1 if last else first + 1):
        lived_one = live_and_check(number, HoppingHistory if hopping else History)
    print(f"{number + 1 - first} histories keep their promises" if last else lived_one.text())
