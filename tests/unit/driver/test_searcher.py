"""A search that controls a run, without a server: killed after any step, it continues to the same history.

The record is in memory; scheduler, evaluations, changes of models and searches are the real ones. A model's loss after
an epoch is a function of its parameters and of the history of its state.
"""

import json
import math
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace

import optuna
import pytest
from mop_backend.messages import Evaluated, EvaluatedMember

from madlib_mop.catalog.rows.plan import GivenConfiguration, Plan
from madlib_mop.catalog.rows.run import Metric, SearchEvent
from madlib_mop.catalog.rows.states import ChangeSource, ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.driver.changes.changes import Changes
from madlib_mop.driver.changes.replay import RecordedSearch
from madlib_mop.driver.changes.search import Searcher, SearchHistory, loss_of, make_searcher, read_history
from madlib_mop.driver.outputs.search import brackets
from madlib_mop.driver.running.hopper import RunningModels
from madlib_mop.errors import NotReady
from madlib_mop.models.changes import Add, Extend, Finish, Proposal, read_change
from madlib_mop.models.parameters.search_grid import DRAWING
from madlib_mop.schedule import Visit
from madlib_mop.search import GivenPoint, SearchSpace, make_search
from tests.helpers.unit.rows import a_plan, a_run, a_search
from tests.helpers.unit.searches import SMALLEST, SYNCHRONOUS
from tests.helpers.unit.sums import evaluated, figures_of

SEGMENTS = {0: 10, 1: 10}
PARENT = 9  # the run that a replay repeats
GRIDS = (
    "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}]}",
    "{'batch_size': [4, 8]}",
)


class Killed(Exception):
    """The end of the driver's process."""


class MemoryRecord:
    """The tables of one run, with transactions; the process may end after any write."""

    def __init__(self, parent=None):
        self.parent = parent  # the record of the run that this one repeats
        self.tables = {"models": {}, "events": [], "changes": [], "metrics": [], "visits": [], "copies": []}
        self.writes_left = math.inf
        self._in_transaction = False

    @contextmanager
    def transaction(self):
        """Commit all writes, or none."""
        before = {name: list(rows) for name, rows in self.tables.items() if name != "models"}
        before["models"] = dict(self.tables["models"])
        self._in_transaction = True
        try:
            yield
            self._in_transaction = False
            self._count()
        except BaseException:
            self.tables, self._in_transaction = before, False
            raise

    def commands(self, run_id, state):
        """Nobody steers."""
        return []

    def _count(self):
        if not self._in_transaction:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise Killed

    def custom_functions(self, run_id):
        """There are none."""
        return {}

    def visits(self, run_id):
        """Return the visits."""
        names = ("mst_key", "epoch", "segment_id", "position")
        return [SimpleNamespace(**dict(zip(names, visit, strict=True))) for visit in self.tables["visits"]]

    def models(self, run_id):
        """Return the models."""
        if run_id == PARENT:
            return self.parent.models(1)
        return list(self.tables["models"].values())

    def lock_model(self, run_id, mst_key):
        """Return a model."""
        return self.tables["models"][mst_key]

    def add_models(self, run_id, models):
        """Add models, whose states are empty."""
        for model in models:
            self.tables["models"][model.mst_key] = replace(model, run_id=run_id, state_bytes=0)

    def set_model(self, run_id, mst_key, waits=True, **values):
        """Change a row."""
        self._change(mst_key, values)
        self._count()

    def copy_state(self, run_id, mst_key, slot, source, version=0):
        """Copy a state: here its digest."""
        self.tables["copies"].append((mst_key, source.mst_key, source.epoch))
        self._change(mst_key, {"digest": source.digest, "state_version": version})

    def _change(self, mst_key, values):
        self.tables["models"][mst_key] = replace(self.tables["models"][mst_key], **values)

    def delete_state(self, model):
        """Nothing to delete."""

    def search_events(self, run_id):
        """Return the events."""
        return list(self.tables["events"])

    def time_limits_over(self, run_id):
        """Return the limits that were over without the search."""
        return set()

    def add_search_event(self, event):
        """Add an event."""
        self.tables["events"].append(event)

    def add_changes(self, rows):
        """Add changes."""
        self.tables["changes"] += rows
        self._count()

    def metrics(self, run_id):
        """Return the metrics."""
        return list(self.tables["metrics"])

    def add_metrics(self, rows, evaluations):
        """Add metrics."""
        self.tables["metrics"] += rows
        self._count()


class Slots:
    """Slots of states, which are not stored."""

    def add_models(self, n):
        """Do nothing."""

    def begin_write(self, key):
        """Return a slot."""
        return 0

    def end_write(self, slot, key, n_bytes=None):
        """Do nothing."""


class Quiet:
    """Progress without messages; the test controls its clock."""

    elapsed_s = 0.0

    def __getattr__(self, name):
        return lambda *a, **k: None


def loss(digest: tuple) -> float:
    """Return a loss that depends on the whole history of a state."""
    return (hash(digest) % 10_007) / 10_007


class Driver:
    """A minimal hopper: one driver process of a run.

    The clock goes ``task_s`` further with each task, and the start takes ``start_s``.
    """

    def __init__(
        self, record: MemoryRecord, method: str, search=None, recorded=None, fails=(), late=0, stops=(), task_s=0.0,
        start_s=0.0, budget_s=100.0,
    ):  # fmt: skip
        plan = a_plan(tuple(SEGMENTS.items()), search=a_search(method))
        kind, parent = ("automl", None) if recorded is None else ("replay", PARENT)
        run = a_run(plan, kind=kind, parent_run_id=parent)
        self.record, self.fails, self.late, self.stops = record, fails, late, stops
        self.models = RunModels(record, 1)
        self.progress = Quiet()
        search = search or make_search(method, SMALLEST[method], SearchSpace.read([1], *GRIDS), 7)
        self.task_s, self.start_s = task_s, start_s
        budget_s = None if recorded is not None else budget_s
        self.searcher = Searcher(run, search, read_history(record, 1), lambda: self.progress.elapsed_s, budget_s)
        running = RunningModels(record, run, self.models, None, self.progress, self.searcher, recorded, Slots())
        self.scheduler, self.evaluations = running.scheduler, running.evaluations
        self.changes = Changes(running)

    def live(self, stop_after: float = math.inf) -> None:
        """Work until everything is done; the time budget ends after a number of tasks."""
        self.evaluations.add_missing()
        self.changes.make_all(self.searcher.begin(self.models))
        flights, n_done = [], 0
        self.progress.elapsed_s += self.start_s
        while not self.scheduler.done:
            flights += self.scheduler.next_tasks()
            self.progress.elapsed_s += self.task_s
            self.finish(flights.pop(-1 if self.late else 0))
            n_done += 1
            if n_done >= stop_after:
                self.progress.elapsed_s = 1000.0
            self.changes.make_all(self.searcher.tick())
        self.changes.make_all(self.searcher.ended())

    def finish(self, task) -> None:
        """End a task as the hopper does."""
        (key,) = task.unit
        m = self.models[key]
        if not isinstance(task, Visit):
            self.scheduler.finished(task, 1.0)
            member = EvaluatedMember(key, figures_of(10, loss(m.digest or ())))
            answer = Evaluated({}, tuple(evaluated(shard, member) for shard in task.payload.shards))
            complete = self.evaluations.finished(task, answer, 1.0, float(len(self.record.tables["metrics"])))
            for rows in complete.values():
                self.epoch_over(key, task.payload.epoch, rows)
            return
        if (key, task.epoch) in self.fails:
            self.scheduler.failed(task)
            self.models.failed(key, "it failed")
            self.changes.make_all(self.searcher.failed(key))
            return
        digest = (*(m.digest or ()), m.compile_params, m.fit_params, task.epoch, task.segment)
        values = {"digest": digest, "epoch": task.epoch, "position": task.position}
        with self.record.transaction():
            version = self.record.lock_model(1, key).state_version + 1
            state = ModelState.TRAINING if m.is_alive else m.state
            self.record.set_model(1, key, **values, state=state, state_version=version)
            self.record.tables["visits"].append((key, task.epoch, task.segment, task.position))
        self.models.visit_kept(key, digest, task.epoch, task.position)
        if (key, task.epoch) in self.stops:
            self.scheduler.finished(task, 1.0)
            self.scheduler.drop(task.unit)
            self.models.stopped(key, "by a person")
            self.changes.make_all(self.searcher.failed(key))
            return
        done = self.scheduler.finished(task, 1.0)
        if done is not None and not self.evaluations.begin([key], done.epoch):
            self.epoch_over(key, done.epoch, ())

    def epoch_over(self, key: int, epoch: int, metrics) -> None:
        """Report to the searcher a model that is done."""
        if epoch == self.models[key].last_epoch:
            self.models.trained(key)
            self.changes.make_all(self.searcher.reached(key, epoch, metrics))


def history(record: MemoryRecord) -> tuple:
    """Return the decisions, without the events before them, and the models' progress."""
    decided = sorted(str(item) for event in record.tables["events"] for item in event.changes)
    models = [(m.mst_key, m.state, m.epoch, m.digest) for m in record.models(1)]
    return decided, models


def whole(method: str, **options) -> MemoryRecord:
    """Return the record of a search without faults."""
    record = MemoryRecord()
    Driver(record, method, **options).live()
    return record


@pytest.mark.one_case
@pytest.mark.parametrize("method", SMALLEST)
def test_killed_after_any_write_it_goes_on_to_the_same_end(method):
    """Promise 4 for each step; decisions of a method that is not repeatable may depend on it; a replay repeats them."""
    expected = whole(method)
    n_lives = 0
    for n_writes in range(0, 60, 2):
        record = MemoryRecord()
        record.writes_left = n_writes
        try:
            Driver(record, method).live()
        except Killed:
            n_lives += 1
        record.writes_left = math.inf
        Driver(record, method).live()
        assert [e.ordinal for e in record.tables["events"]] == list(range(len(record.tables["events"])))
        if method in SYNCHRONOUS:
            assert history(record) == history(expected)
        again = replayed(record, method)
        assert history(again)[1] == history(record)[1]
    assert n_lives >= 15


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_synchronous_searches_do_not_hang_on_what_is_ready_first(method):
    assert history(whole(method)) == history(whole(method, late=1))


def replayed(record: MemoryRecord, method: str, late: int = 0) -> MemoryRecord:
    """Return the record of a replay."""
    again = MemoryRecord(record)
    search = RecordedSearch(record.search_events(1), record.models(1))
    visits = [Visit((key,), segment, epoch, position) for key, epoch, segment, position in record.tables["visits"]]
    Driver(again, method, search, visits, late=late).live()
    return again


@pytest.mark.parametrize("method", SMALLEST)
@pytest.mark.parametrize("late", [0, 1])
def test_a_replay_decides_the_same_and_copies_the_same_states(method, late):
    record = whole(method, fails={(2, 1), (4, 2)})
    again = replayed(record, method, late)
    assert history(again) == history(record)
    assert sorted(again.tables["copies"]) == sorted(record.tables["copies"])
    assert {m.mst_key for m in again.models(1) if m.state is ModelState.FAILED} >= {2}


@pytest.mark.parametrize("method", SMALLEST)
@pytest.mark.parametrize("n_tasks", range(1, 26, 3))
def test_a_spent_budget_leaves_whole_epochs_with_their_metrics(method, n_tasks):
    record = MemoryRecord()
    Driver(record, method).live(n_tasks)
    known = {(row.mst_key, row.epoch) for row in record.tables["metrics"]}
    budgets = [e for e in record.tables["events"] if e.event == "budget"]
    assert len(budgets) == 1 and budgets[0].changes == [Finish("the time budget was used up", 100.0)]
    for m in record.models(1):
        assert m.state in (ModelState.TRAINED, ModelState.STOPPED)
        if m.state is ModelState.TRAINED:
            assert m.position == len(SEGMENTS) and (m.mst_key, m.epoch) in known
            assert m.last_epoch == m.epoch
        else:
            assert "the time budget was used up before" in m.state_detail
    again = replayed(record, method)
    assert history(again)[1] == history(record)[1]


def epochs_of(record: MemoryRecord) -> list[int]:
    """Return the epochs that the models have made, most first."""
    return sorted((m.epoch for m in record.models(1)), reverse=True)


def times_left(record: MemoryRecord) -> list[int | None]:
    """Return what the search was told about its budget; None is its end."""
    return [event.epoch for event in record.tables["events"] if event.event == "budget"]


@pytest.mark.parametrize(("task_s", "made"), [(6.0, [3, 3]), (8.0, [2, 2]), (10.0, [2, 2]), (12.0, [2, 2])])
def test_asha_near_the_end_of_its_budget_goes_on_with_its_best_models(task_s, made):
    """The first results come after about half of the budget: new models in their place would make one epoch."""
    record = whole("asha", task_s=task_s)
    assert times_left(record)[-1] is None and times_left(record)[0] < 2
    assert epochs_of(record) == made
    assert history(replayed(record, "asha"))[1] == history(record)[1]


def test_asha_with_time_enough_is_not_told_about_its_budget():
    """Its decisions are those of a search without a budget."""
    assert times_left(whole("asha", task_s=0.1)) == []
    assert history(whole("asha", task_s=0.1)) == history(whole("asha", budget_s=None))


def test_a_slow_start_makes_asha_cautious_until_iterations_are_fast():
    """The first results come late; the next ones show that many iterations are left."""
    record = whole("asha", start_s=70.0, task_s=0.1)
    assert times_left(record) == [0, 2]
    assert len(record.models(1)) == 7, "all configurations were tried"


def test_a_configuration_that_was_given_says_nothing_of_the_time_that_others_need():
    """It is fast; after it, asha would expect that there is time for many new models."""
    given = GivenPoint(1, ("loss='mse', optimizer='SGD(learning_rate=0.5)'", "batch_size=4"))
    params = "R=4, eta=2, num_configs=3, budget_s=100, try_first=configs"
    search = make_search("asha", params, SearchSpace.read([1], *GRIDS), 7, given=[given])
    clock = [0.0]
    searcher = Searcher(a_run(a_plan(search=a_search("asha"))), search, SearchHistory(), lambda: clock[0], 100)
    models = defaultdict(lambda: SimpleNamespace(command_id=None, epoch=1))
    (begun,) = searcher.begin(models)
    n_slots = len(begun.changes)
    clock[0] = 4.0
    loss = [SimpleNamespace(ordinal=0, data_set="training", value=1.0)]
    list(searcher.reached(1, 4, loss))
    assert math.isinf(searcher._iteration_s)
    clock[0] = 64.0
    told = [decision.event for decision in searcher.reached(2, 1, loss)]
    assert n_slots == 2 and [(event.event, event.epoch) for event in told] == [("budget", 0), ("result", 1)]


def tries_first():
    """Return an asha that begins with a configuration that is not of its space."""
    given = GivenPoint(1, ("loss='mse', optimizer='SGD(learning_rate=0.5)'", "batch_size=3"))
    return make_search("asha", "R=4, eta=2, num_configs=5, try_first=configs", SearchSpace.read([1], *GRIDS), 7,
                       given=[given])  # fmt: skip


def test_killed_after_any_write_a_search_that_tries_a_configuration_first_goes_on():
    for n_writes in range(0, 60, 3):
        record = MemoryRecord()
        record.writes_left = n_writes
        with suppress(Killed):
            Driver(record, "asha", tries_first()).live()
        record.writes_left = math.inf
        Driver(record, "asha", tries_first()).live()
        first = record.models(1)[0]
        assert (first.fit_params, first.epoch, first.state) == ("batch_size=3", 4, ModelState.TRAINED)
        assert history(replayed(record, "asha"))[1] == history(record)[1]


def test_the_plan_keeps_the_configurations_that_were_given():
    given = (GivenConfiguration(3, "loss='mse', optimizer='sgd'", "batch_size=4"),)
    fields = {"params": "R=4, eta=2, num_configs=3, try_first=configs", "drawing": DRAWING}
    fields |= {"compile_params_grid": GRIDS[0], "fit_params_grid": GRIDS[1]}
    assert "given" not in a_plan(search=a_search("asha", **fields)).as_json()["search"]
    document = json.loads(json.dumps(a_plan(search=a_search("asha", given=given, **fields)).as_json()))
    read = Plan.from_json(document)
    assert read.search.given == given
    (begun,) = make_searcher(MemoryRecord(), a_run(read), lambda: 0.0).begin({})
    first = begun.changes[0].proposal
    assert (first.model_id, first.fit_params, first.last_epoch) == (3, "batch_size=4", 4)


def paced(can_pace: bool = True):
    """Return a hyperband with a time budget."""
    return make_search("hyperband", "R=4, eta=2, budget_s=100", SearchSpace.read([1], *GRIDS), 7, can_pace=can_pace)


@pytest.mark.parametrize(("task_s", "made"), [(9.0, [3, 1]), (6.0, [5, 1]), (4.0, [7, 1, 1])])
def test_hyperband_with_a_short_budget_leaves_time_for_its_rounds(task_s, made):
    """All configurations at once, as an earlier version begins them, spend the budget in their first iteration."""
    assert epochs_of(whole("hyperband", search=paced(can_pace=False), task_s=task_s)) == [1] * 9
    record = whole("hyperband", search=paced(), task_s=task_s)
    assert epochs_of(record) == made
    assert history(replayed(record, "hyperband"))[1] == history(record)[1]


def test_hyperband_with_time_enough_trains_all_configurations_in_all_rounds():
    record = whole("hyperband", search=paced(), task_s=0.1)
    assert epochs_of(record) == epochs_of(whole("hyperband"))
    assert history(replayed(record, "hyperband"))[1] == history(record)[1]


@pytest.mark.parametrize("task_s", [0.1, 6.0])
def test_killed_after_any_write_hyperband_with_a_budget_goes_on(task_s):
    """The decisions before the fault are those of the record, also those by the time, and a replay repeats all."""
    for n_writes in range(0, 40, 2):
        record = MemoryRecord()
        record.writes_left = n_writes
        with suppress(Killed):
            Driver(record, "hyperband", paced(), task_s=task_s).live()
        record.writes_left = math.inf
        before = list(record.tables["events"])
        Driver(record, "hyperband", paced(), task_s=task_s).live()
        assert record.tables["events"][: len(before)] == before
        assert history(replayed(record, "hyperband"))[1] == history(record)[1]


def test_hyperband_with_a_budget_that_an_older_version_began_goes_on_as_it_began():
    """Its plan does not say that it is paced; decisions that differ from the recorded ones would be an error."""
    params = "R=4, eta=2, budget_s=100"
    fields = {"params": params, "compile_params_grid": GRIDS[0], "fit_params_grid": GRIDS[1], "drawing": DRAWING}
    older = a_plan(search=a_search("hyperband", **fields)).as_json()
    assert "is_paced" not in older["search"]
    record = whole("hyperband", search=paced(can_pace=False), task_s=6.0)
    events = [event for event in record.tables["events"] if event.event != "budget"]
    record.tables["events"] = events
    newer = older | {"search": older["search"] | {"is_paced": True}}
    assert Plan.from_json(newer).as_json() == newer
    searcher = make_searcher(record, a_run(Plan.from_json(older)), lambda: 0.0)
    list(searcher.begin(record.tables["models"]))
    with pytest.raises(NotReady, match="differs from the recorded one at event 0"):
        list(make_searcher(record, a_run(Plan.from_json(newer)), lambda: 0.0).begin({}))


def test_the_notices_of_a_search_go_with_its_decision_and_are_not_repeated_after_a_fault():
    record, told = MemoryRecord(), []
    driver = Driver(record, "hyperband", paced(), task_s=9.0)
    driver.progress.tell = told.append
    driver.live()
    short, waits = told
    assert short.startswith("the time budget is too short for all configurations: bracket 2 begins 2 of 4")
    assert waits.startswith("the rest of the time budget is too short for all rounds of bracket 1")
    again = Driver(record, "hyperband", paced(), task_s=9.0)
    again.progress.tell = told.append
    list(again.searcher.begin(again.models))
    assert len(told) == 2 and again.searcher._search.notices == []


@pytest.mark.parametrize("method", SMALLEST)
def test_killed_near_the_end_of_its_budget_a_search_goes_on(method):
    """The decisions before the fault are those of the record, and a replay repeats all of them."""
    for n_writes in range(0, 30, 2):
        record = MemoryRecord()
        record.writes_left = n_writes
        with suppress(Killed):
            Driver(record, method, task_s=6.0).live()
        record.writes_left = math.inf
        before = list(record.tables["events"])
        Driver(record, method, task_s=6.0).live()
        assert record.tables["events"][: len(before)] == before
        assert history(replayed(record, method))[1] == history(record)[1]


@pytest.mark.parametrize("method", SMALLEST)
@pytest.mark.parametrize("n_tasks", [12, 16])
def test_what_is_asked_for_after_a_spent_budget_is_trained(method, n_tasks):
    record = MemoryRecord()
    Driver(record, method).live(n_tasks)
    (m, *_) = [m for m in record.models(1) if m.state is ModelState.TRAINED]
    RunModels(record, 1).extended(m.mst_key, m.last_epoch + 1)
    Driver(record, method).live()
    longer = record.lock_model(1, m.mst_key)
    assert (longer.state, longer.epoch, longer.position) == (ModelState.TRAINED, m.epoch + 1, len(SEGMENTS))


@pytest.mark.parametrize(
    "method, n_tasks", [("hyperband", 11), ("hyperopt", 5), ("asha", 5), ("tpe", 5), ("pbt", 7)]
)
def test_a_replay_extends_models_of_a_search_that_ended_before_its_first_result(method, n_tasks):
    record = MemoryRecord()
    Driver(record, method).live(n_tasks)
    assert [event.event for event in record.tables["events"]] == ["start", "budget"]
    (m, *_) = [m for m in record.models(1) if m.state is ModelState.TRAINED]
    RunModels(record, 1).extended(m.mst_key, m.last_epoch + 1)
    Driver(record, method).live()
    assert record.lock_model(1, m.mst_key).epoch == m.epoch + 1
    assert history(replayed(record, method))[1] == history(record)[1]


@pytest.mark.parametrize("method", SMALLEST)
def test_a_replay_makes_the_iterations_that_were_asked_for_after_the_search(method):
    record = whole(method)
    m = record.lock_model(1, 1)
    RunModels(record, 1).extended(1, m.last_epoch + 2)
    Driver(record, method).live()
    assert record.lock_model(1, 1).epoch == m.last_epoch + 2
    assert history(replayed(record, method))[1] == history(record)[1]


@pytest.mark.parametrize("method", SMALLEST)
def test_a_replay_ends_within_an_epoch_where_a_person_stopped_a_model(method):
    record = whole(method, stops={(1, 1), (3, 2)})
    stopped = [m for m in record.models(1) if m.state is ModelState.STOPPED]
    assert stopped and all(m.position == 1 for m in stopped)
    assert history(replayed(record, method))[1] == history(record)[1]


def test_a_search_that_decides_otherwise_than_recorded_is_not_gone_on_with():
    record = whole("hyperband")
    first, *others = record.tables["events"][0].changes
    other = Add((replace(first.proposal, compile_params="loss='mse'"),))
    record.tables["events"][0] = replace(record.tables["events"][0], changes=[other, *others])
    with pytest.raises(NotReady, match="differs from the recorded one"):
        Driver(record, "hyperband").live()


@pytest.mark.parametrize(
    "began_with, hint",
    [
        ("optuna 4.8.0", f"began with optuna 4.8.0, and now has optuna {optuna.__version__}: install optuna 4.8.0, or"),
        (f"optuna {optuna.__version__}", "restore that version"),
        (None, "restore that version"),  # of a version of ours that did not record it
    ],
)
def test_a_search_whose_sampler_draws_otherwise_names_its_version(began_with, hint):
    record = whole("tpe")
    first, *others = record.tables["events"][0].changes
    other = Add((replace(first.proposal, compile_params="loss='mse'"),))
    record.tables["events"][0] = replace(record.tables["events"][0], changes=[other, *others])
    fields = {"compile_params_grid": GRIDS[0], "fit_params_grid": GRIDS[1], "drawing": DRAWING}
    plan = a_plan(search=a_search("tpe", params=SMALLEST["tpe"], sampler_version=began_with, **fields))
    plan = Plan.from_json(plan.as_json())
    with pytest.raises(NotReady, match="differs from the recorded one") as caught:
        list(make_searcher(record, a_run(plan), lambda: 0.0).begin({}))
    assert hint in caught.value.hint


#: A search of version 1.0.0 over whole numbers from 1 to 4: its first decisions, and those after its first five
#: results. Model 2 drew its batch size anew.
OLDER_GRIDS = ("{'loss': ['mse'], 'optimizer': ['sgd']}", "{'batch_size': [1, 4, 'linear']}")
_TEXTS = {"model_id": 1, "compile_params": "loss='mse',optimizer='sgd'"}
OLDER_START = [
    {"do": "add", "mst_key": n + 1, "fit_params": f"batch_size={size}", "last_epoch": 1, **_TEXTS}
    for n, size in enumerate((3, 4, 2, 1, 2))
]
OLDER_LOSSES = (0.0, 1.0, 0.9, 0.8, 0.7)
OLDER_ROUND = [
    {"do": "exploit", "mst_key": 2, "source": 1, "fit_params": "batch_size=1", "last_epoch": 2, **_TEXTS},
    {"do": "exploit", "mst_key": 3, "source": 5, "fit_params": "batch_size=3", "last_epoch": 2, **_TEXTS},
    *({"do": "extend", "mst_key": key, "last_epoch": 2} for key in (1, 4, 5)),
]


def decisions(written):
    """Return the decisions of an event as version 1.0.0 wrote them."""
    return [read_change(item["do"], {name: item[name] for name in item if name != "do"}) for item in written]


def test_a_search_of_an_older_version_draws_on_as_it_began():
    """Its plan does not say how it draws; decisions that differ from the recorded ones would be an error."""
    plan = a_plan(search=a_search("pbt", params=SMALLEST["pbt"], compile_params_grid=OLDER_GRIDS[0],
                                  fit_params_grid=OLDER_GRIDS[1])).as_json()  # fmt: skip
    assert "drawing" not in plan["search"]
    record = MemoryRecord()
    record.tables["events"] = [SearchEvent(run_id=1, ordinal=0, event="start", changes=decisions(OLDER_START))] + [
        SearchEvent(run_id=1, ordinal=key, event="result", mst_key=key, epoch=1, loss=loss,
                    changes=decisions(OLDER_ROUND) if key == 5 else [])
        for key, loss in enumerate(OLDER_LOSSES, 1)
    ]  # fmt: skip
    searches = {
        drawing: make_searcher(record, a_run(Plan.from_json(plan | {"search": plan["search"] | drawn})), lambda: 0.0)
        for drawing, drawn in (("older", {}), ("new", {"drawing": DRAWING}))
    }
    assert list(searches["older"].begin({})) == []
    assert searches["older"].decides
    with pytest.raises(NotReady, match="differs from the recorded one at event 0"):
        list(searches["new"].begin({}))


def test_decisions_are_recorded_with_their_events():
    """Each is a row, in the order of the decision."""
    record = whole("hyperband")
    for event in record.tables["events"]:
        rows = [row for row in record.tables["changes"] if row.event == event.ordinal]
        assert [row.number for row in sorted(rows, key=lambda row: row.number)] == [*range(1, len(event.changes) + 1)]
        assert [row.read() for row in sorted(rows, key=lambda row: row.number)] == list(event.changes)
        assert all(row.source is ChangeSource.SEARCH for row in rows)
    (start, *_), models = record.tables["events"], record.tables["models"]
    added = [row.mst_keys for row in record.tables["changes"] if row.change == "add"]
    assert added == [[key] for key in models] and len(start.changes) > 1


def test_the_brackets_of_a_search_are_those_of_its_newest_decisions():
    changes = [Add((Proposal(1, 2, "", "", 3, 1, 0),)), Add((Proposal(2, 2, "", "", 3),)), Extend(1, 9, 1)]
    assert brackets([SearchEvent(run_id=1, ordinal=0, event="start", changes=changes)]) == {1: (1, 1)}


def test_validation_data_decide_where_there_are_some():
    place = {"run_id": 1, "mst_key": 1, "epoch": 1, "name": "loss", "elapsed_s": 0.0, "work_s": 0.0}
    metrics = [
        Metric(**place, data_set=data_set, ordinal=ordinal, value=value)
        for data_set, ordinal, value in (("training", 0, 1.0), ("training", 1, 5.0), ("validation", 0, 2.0))
    ]
    assert loss_of(metrics) == 2.0 and loss_of(metrics[:2]) == 1.0
