"""The time of a run (max_seconds): its decider alone, and in runs without a server, whose clock is their progress."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from mop_backend.messages import Evaluate

from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState, RunState
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.deciders import TimeLimit, make_time_limit
from madlib_mop.driver.changes.search import make_searcher
from madlib_mop.driver.changes.side import RunSide
from madlib_mop.driver.running.averaging import Averaging
from madlib_mop.driver.running.hopper import Hopper
from madlib_mop.driver.running.policy import Policy, PolicyCommands
from madlib_mop.models.changes import Extend, Finish, Resume
from madlib_mop.schedule import SCHEDULES
from madlib_mop.schedule.bulk import AVERAGING
from tests.helpers.unit.memory_record import MemoryRecord
from tests.helpers.unit.memory_runs import ARCH, COMPILE, PASSING, RULE, Driver
from tests.helpers.unit.rows import a_model, a_plan, a_run, a_search

TRAINED, STOPPED, FAILED = ModelState.TRAINED, ModelState.STOPPED, ModelState.FAILED
OVER = "max_seconds (7 s) was over"


class LimitedDriver(Driver):
    """Drives a run with a limit of time: each visit takes a second; without ``only_visits``, also each average and
    each metric."""

    only_visits = True

    def __init__(self, seed, limit_s, **options):
        super().__init__(seed, **options)
        plan = replace(self.record.the_run.plan, time_limit_s=float(limit_s))
        self.record.the_run = replace(self.record.the_run, plan=plan)

    def hopper(self, run, progress):
        decider = make_time_limit(self.record, run, self.elapsed_s)
        if run.schedule == AVERAGING:
            return Averaging(self.record, self.segments, run, progress, [decider])
        policy = None
        if run.plan.policy is not None:
            commands = PolicyCommands(self.record, run, self.caller)
            policy = Policy(run.plan.policy, 1, commands, self.segments, progress.tell)
        return Hopper(self.record, self.segments, run, progress, None, [decider], policy)

    def elapsed_s(self):
        """Return the time of the run."""
        record = self.record
        others = 0 if self.only_visits else len(record.all_metrics) + record.rows[1].state_version
        return float(len(record.all_visits) + others)

    @property
    def decisions(self):
        """The changes that the limit has made."""
        return [row for row in self.record.changes if row.source is ChangeSource.TIME_LIMIT]


def decided(decisions):
    """Return the changes of all decisions."""
    return [change for decision in decisions for change in decision.changes]


# The decider


def test_the_time_is_over_once_after_the_seconds_of_training():
    now = [0.0]
    limit = TimeLimit(7.0, lambda: now[0])
    assert decided(limit.begin({1: a_model(1)})) == decided(limit.tick()) == [] and limit.time_over is None
    now[0] = 6.9
    assert decided(limit.tick()) == []
    now[0] = 7.0
    (decision,) = limit.tick()
    assert (decision.source, decision.changes) == (ChangeSource.TIME_LIMIT, [Finish(OVER, 7.0)])
    assert decision.notices == [f"{OVER}; the models complete their current iterations"]
    assert limit.time_over == OVER and decided(limit.tick()) == []


def test_a_run_that_was_interrupted_has_what_was_left_of_its_time():
    assert decided(TimeLimit(7.0, lambda: 8.0).begin({1: a_model(1)})) == [Finish(OVER, 7.0)]


@pytest.mark.parametrize("limit_s, is_over", [(None, False), (7.0, True)])
def test_without_a_limit_and_after_it_nothing_is_decided(limit_s, is_over):
    limit = TimeLimit(limit_s, lambda: 8.0, is_over)
    assert decided(limit.begin({1: a_model(1)})) == decided(limit.tick()) == []


@pytest.mark.parametrize("state", [TRAINED, STOPPED, FAILED])
def test_a_run_that_has_just_ended_by_itself_is_not_ended_by_its_limit(state):
    limit = TimeLimit(7.0, lambda: 8.0)
    assert decided(limit.begin({1: a_model(1, state=state)})) == [] and limit.time_over is None


def test_only_this_limit_counts_as_recorded():
    """A run that was continued with a later limit has that one."""
    record = SimpleNamespace(time_limits_over=lambda run_id: {7.0})
    for limit_s, is_over in [(7.0, True), (9.0, False), (None, False)]:
        run = a_run(a_plan(time_limit_s=limit_s))
        limit = make_time_limit(record, run, lambda: 10.0)
        assert bool(limit.time_over) is is_over
        assert len(decided(limit.begin({1: a_model(1)}))) == (limit_s == 9.0)


def a_search_run(params="num_configs=4, algorithm=rand, budget_s=5", limit_s=None, **columns):
    """Return a run with a search."""
    search = a_search(
        "hyperopt", params=params, fit_params_grid="{'batch_size': [4, 8]}", archs={"1": json.dumps(ARCH)},
        compile_params_grid="{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD', 'Adam']}]}",
    )  # fmt: skip
    return a_run(a_plan(search=search, time_limit_s=limit_s), kind="automl", **columns)


@pytest.mark.parametrize("new_limit_s, events", [(None, ["start", "budget"]), (50.0, ["start"])])
def test_a_call_of_resume_gives_a_search_new_time_in_place_of_its_budget(new_limit_s, events):
    run = a_search_run(limit_s=new_limit_s)
    record = MemoryRecord(run, [])
    searcher = make_searcher(record, run, lambda: 10.0)
    told = [decision.event.event for decision in [*searcher.begin({}), *searcher.tick()]]
    assert told == events
    assert searcher.time_over == ("the time budget was used up" if new_limit_s is None else None)


def a_search_after_its_budget(limit_s, is_older=False, **columns):
    """Return the decider of the next driver of a search whose budget was over, and one more model.

    ``is_older``: a version began it that did not record the limit.
    """
    run = a_search_run()
    record, models = MemoryRecord(run, []), {50: a_model(50, command_id=1, last_epoch=9)}
    first = make_searcher(record, run, lambda: 10.0)
    events = [decision.event for decision in [*first.begin(models), *first.tick()]]
    record.search_events = lambda run_id: events
    assert events[-1].changes == [Finish("the time budget was used up", 5)]
    if is_older:
        events[-1] = replace(events[-1], changes=[Finish("the time budget was used up")])
    assert decided(first.tick()) == [] and first.time_over == "the time budget was used up", "it is over once"
    run = replace(run, plan=replace(run.plan, time_limit_s=limit_s), **columns)
    return make_searcher(record, run, lambda: 100.0), models


@pytest.mark.parametrize("columns", [{}, {"reopened": True}])
@pytest.mark.parametrize("limit_s, changes", [(None, []), (60.0, [Finish("max_seconds (60 s) was over", 60.0)])])
def test_models_that_are_added_after_the_budget_have_only_a_new_limit(limit_s, changes, columns):
    searcher, models = a_search_after_its_budget(limit_s, **columns)
    assert decided([*searcher.begin(models), *searcher.tick()]) == changes
    assert (searcher.time_over is None) == (limit_s is None and bool(columns))


@pytest.mark.parametrize("columns, is_over", [({}, True), ({"reopened": True}, False)])
def test_the_budget_that_was_over_in_an_older_version_stays_so(columns, is_over):
    searcher, models = a_search_after_its_budget(None, is_older=True, **columns)
    assert decided([*searcher.begin(models), *searcher.tick()]) == []
    assert bool(searcher.time_over) is is_over


# Runs


class SearchDriver(LimitedDriver):
    """Drives a short search and a model of a command, which has 9 iterations."""

    def __init__(self, seed, budget_s, limit_s=None, **options):
        Driver.__init__(self, seed, n_segments=2, **options)
        run = self.record.the_run
        params = "num_configs=2, num_iterations=1, algorithm=rand" + (f", budget_s={budget_s}" if budget_s else "")
        plan = replace(run.plan, search=a_search_run(params=params).plan.search, time_limit_s=limit_s)
        self.record.the_run = replace(run, plan=plan, kind="automl", metrics_compute_frequency=None)
        self.record.rows = {50: a_model(50, last_epoch=9, model_arch=ARCH, compile_params=COMPILE, command_id=1)}

    def hopper(self, run, progress):
        searcher = make_searcher(self.record, run, self.elapsed_s)
        return Hopper(self.record, self.segments, run, progress, None, [searcher])


@pytest.mark.parametrize("budget_s, limit_s", [(14, None), (None, 14.0), (100, 14.0)])
@pytest.mark.parametrize("seed", range(5))
def test_the_time_of_a_search_ends_models_of_commands_when_the_search_itself_is_over(seed, budget_s, limit_s):
    driver = SearchDriver(seed, budget_s, limit_s, faults=PASSING).drive_by_several()
    assert [event for event in driver.record.events if event.event == "budget" and event.epoch is None] == []
    (row,), added = driver.decisions, driver.record.rows[50]
    assert row.read() == Finish("max_seconds (14 s) was over", 14.0)
    assert added.state is TRAINED and added.epoch == added.last_epoch < 9


def assert_ended_in_time(driver, limit_s, n_segments):
    """Each model ends with the iteration that it was in, and is evaluated; without a complete one, it is stopped."""
    (row,) = driver.decisions
    visits = driver.record.visits(1)
    assert row.read() == Finish(f"max_seconds ({limit_s} s) was over", float(limit_s))
    for key, model in driver.record.rows.items():
        made = [v for v in visits if v.mst_key == key]
        epoch = row.visits.get(str(key), [model.epoch])[0]
        assert all(v.epoch <= epoch + 1 for v in made), "no other iteration begins"
        if model.state is STOPPED:
            assert len(made) < n_segments + 1 and "before its first epoch was complete" in model.state_detail
        else:
            assert model.state is TRAINED and model.position == n_segments and model.epoch == model.last_epoch
            assert len(made) == n_segments * model.epoch
            assert model.epoch in {m.epoch for m in driver.record.all_metrics if m.mst_key == key}
            ended = f"ended after iteration {model.epoch} of 9: {row.read().reason}"
            assert (model.state_detail or "").startswith(ended)


@pytest.mark.parametrize("groups", [[], [[1, 2], [3, 4]], [[1, 2, 3, 4]]])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_models_end_with_the_iterations_in_which_they_are_whatever_happens(schedule, groups):
    states = set()
    for seed in range(15):
        limit_s = 1 + seed * 3
        options = {"n_models": 4, "n_segments": 3, "n_epochs": 9, "schedule": schedule, "groups": groups}
        driver = LimitedDriver(seed, limit_s, faults=PASSING, **options).drive_by_several()
        assert_ended_in_time(driver, limit_s, 3)
        assert driver.record.slots == driver.record.used_slots
        states.update(model.state for model in driver.record.rows.values())
    assert states == {TRAINED, STOPPED}


@pytest.mark.parametrize("seed", range(20))
def test_a_model_with_early_stopping_ends_with_its_best_iteration(seed):
    options = {"n_models": 3, "n_segments": 2, "n_epochs": 9, "metrics_compute_frequency": 1}
    rule = RULE | {"patience": 9}
    driver = LimitedDriver(seed, 10 + seed, early_stopping=rule, faults=PASSING, **options).drive_by_several()
    assert_ended_in_time(driver, 10 + seed, 2)
    for key, model in driver.record.rows.items():
        losses = {m.epoch: m.value for m in driver.record.all_metrics if m.mst_key == key}
        best = min(losses, key=losses.get)
        (of_best,) = [v for v in driver.record.visits(1) if (v.mst_key, v.epoch, v.position) == (key, best, 2)]
        assert model.is_restored and model.digest == of_best.digest_out
        assert (f"the weights are those of iteration {best}" in model.state_detail) == (best != model.epoch)


def test_a_model_whose_metrics_are_known_ends_at_once_with_its_best_iteration():
    """Its newest iteration is complete and evaluated, and its next visit waits for a segment."""
    found = 0
    for seed in range(60):
        options = {"n_models": 3, "n_segments": 1, "n_epochs": 9, "metrics_compute_frequency": 1}
        driver = LimitedDriver(seed, 6 + seed % 5, early_stopping=RULE | {"patience": 9}, **options).drive()
        (row,) = driver.decisions
        found += any(
            model.best_state.epoch < model.epoch == row.visits[str(key)][0] and model.is_restored
            for key, model in driver.record.rows.items()
        )
        assert all(model.is_restored for model in driver.record.rows.values())
    assert found


def test_models_that_train_together_are_evaluated_together():
    """As in a run that ends by itself: one of them would else be evaluated in another graph."""
    for seed in range(10):
        options = {"n_models": 4, "n_segments": 1, "n_epochs": 9, "groups": [[1, 2], [3, 4]]}
        driver = LimitedDriver(seed, 4 + seed, **options)
        do, evaluated = driver.record.do, []

        def noted(order, do=do, evaluated=evaluated):
            evaluated += [list(order.members)] if isinstance(order, Evaluate) else []
            return do(order)

        driver.record.do = noted
        driver.drive()
        assert sorted(evaluated) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("only_visits", [True, False])
@pytest.mark.parametrize("frequency", [None, 1])
@pytest.mark.parametrize("seed", range(16))
def test_model_averaging_ends_with_its_current_iteration_and_completes_the_first(seed, frequency, only_visits):
    limit_s = seed
    options = {"n_models": 1, "n_epochs": 9, "schedule": AVERAGING, "metrics_compute_frequency": frequency}
    driver = LimitedDriver(seed, limit_s, faults=PASSING, **options)
    driver.only_visits = only_visits
    driver.drive_by_several()
    (model,), (row,) = driver.record.models(1), driver.decisions
    begun, _ = row.visits["1"]
    assert model.state is TRAINED and model.epoch == model.last_epoch == max(m.epoch for m in driver.record.all_metrics)
    assert model.epoch in (max(1, begun), begun + 1) and len(driver.record.visits(1)) == 3 * model.epoch
    assert model.epoch <= (limit_s - 1) // 3 + 2, "no other iteration begins"
    assert model.state_detail == f"ended after iteration {model.epoch} of 9: max_seconds ({limit_s} s) was over"
    assert driver.record.slots == driver.record.used_slots and not driver.record.staged


def test_model_averaging_ends_with_its_best_iteration():
    options = {"n_models": 1, "n_segments": 2, "n_epochs": 9, "schedule": AVERAGING, "metrics_compute_frequency": 1}
    for seed in range(30):
        driver = LimitedDriver(seed, 2 + seed % 9, early_stopping=RULE | {"patience": 9}, faults=PASSING, **options)
        driver.only_visits = seed % 2 == 0
        driver.drive_by_several()
        (model,) = driver.record.models(1)
        losses = {m.epoch: m.value for m in driver.record.all_metrics}
        assert model.state is TRAINED and model.is_restored
        assert model.best_state.epoch == min(losses, key=losses.get) and max(losses) == model.last_epoch


@pytest.mark.parametrize("groups, alone", [([], {2, 3}), ([[1, 2]], {3})])
def test_a_pinned_model_makes_all_its_iterations_and_so_do_those_that_train_with_it(groups, alone):
    driver = LimitedDriver(1, 7, n_models=3, n_segments=2, n_epochs=9, groups=groups)
    driver.record.rows[1] = replace(driver.record.rows[1], pinned=True)
    driver.drive()
    epochs = {key: model.epoch for key, model in driver.record.rows.items()}
    assert {key for key, epoch in epochs.items() if epoch == 9} == {1, 2, 3} - alone
    assert all(driver.record.rows[key].state is TRAINED for key in epochs)


@pytest.mark.parametrize("seed", range(5))
def test_the_policy_asks_for_nothing_when_the_time_is_over(seed):
    """Otherwise it could extend models for ever."""
    driver = LimitedDriver(seed, 30, n_models=4, n_segments=2, n_epochs=9, metrics_compute_frequency=1)
    plan = replace(driver.record.the_run.plan, policy=PolicyPlan("SELECT 1", None, 10))
    driver.record.the_run = replace(driver.record.the_run, plan=plan)
    asked = []

    def extend():
        asked.append(bool(driver.decisions))
        return json.dumps([{"action": "extend", "mst_key": 1, "arguments": {"num_iterations": len(asked)}}])

    driver.policy_says = extend
    driver.drive()
    sources = [row.source for row in driver.record.changes]
    assert ChangeSource.POLICY in sources, "it is asked before"
    assert ChangeSource.POLICY not in sources[sources.index(ChangeSource.TIME_LIMIT) :]
    assert sum(asked) <= 1, "only an evaluation that was in progress ends later"
    assert all(model.state is TRAINED and model.epoch <= 6 for model in driver.record.rows.values())


def test_what_people_ask_for_after_the_run_has_time_of_its_own():
    driver = LimitedDriver(1, 5, n_models=4, n_segments=2, n_epochs=9).drive()
    stopped = [key for key, model in driver.record.rows.items() if model.state is STOPPED]
    (trained, *_) = [key for key, model in driver.record.rows.items() if model.state is TRAINED]
    assert stopped and len(driver.record.all_visits) < 12
    driver.record.end_training(1)
    driver.record.finish(1)
    for change in (Extend(trained, num_iterations=2), Resume(stopped[0])):
        driver.record.issue(ChangeRow.asked(1, change.function, {}, 10).checked(change))
    pending = driver.record.commands(1, ChangeState.PENDING)
    Changes(RunSide(driver.record, driver.record.the_run)).apply(pending)
    assert driver.record.the_run.state is RunState.INTERRUPTED and driver.record.the_run.plan.time_limit_s is None
    before = driver.record.rows[trained].epoch
    driver.drive()
    assert driver.record.rows[trained].epoch == before + 2 and driver.record.rows[trained].state_detail is None
    assert (driver.record.rows[stopped[0]].state, driver.record.rows[stopped[0]].epoch) == (TRAINED, 9)
    assert len(driver.decisions) == 1
