"""Evaluations: which are started, for one model or for several together, and the use of their results."""

from dataclasses import replace

import pytest
from mop_backend.messages import Evaluate, Evaluated, EvaluatedMember, MetricsComputed, MetricValues, ShardName

from madlib_mop.catalog.rows.run import Metric
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.driver.evaluation.evaluations import Evaluations, EvaluationTask
from madlib_mop.schedule import Evaluation
from tests.helpers.unit.rows import a_model, a_plan, a_run, packed
from tests.helpers.unit.sums import evaluated, figures_of, sums_of, values_of

GROUP = (1, 2)
#: The shards that have rows.
BOTH = ("training", 0), ("validation", 0)


class _Record:
    def __init__(self):
        self.model, self.metric, self.evaluation = [], [], []
        self.trained = []

    def models(self, run_id):
        return self.model

    def metrics(self, run_id):
        return self.metric

    def add_metrics(self, rows, evaluations):
        self.metric += rows
        self.evaluation += evaluations

    def set_model(self, run_id, mst_key, waits=True, **values):
        self.trained.append((mst_key, values))


class _Scheduler:
    def __init__(self):
        self.asked = []

    def add_evaluation(self, unit, segment, payload):
        self.asked.append(Evaluation(unit, segment, payload))


class Run:
    """A run on two segments, with models 1 and 2 in a group and model 3 alone, evaluated every second iteration."""

    def __init__(self, **model):
        shards = ((0, 10), (1, 0))
        run = a_run(a_plan(shards, validation=packed(shards)), run_id=7, metrics_compute_frequency=2)
        self.record, self.scheduler = _Record(), _Scheduler()
        columns = {"last_epoch": 4, "state": ModelState.TRAINING, **model}
        self.record.model = [a_model(key, **columns) for key in (1, 2, 3)]
        self.models = RunModels(self.record, 7)
        units = {1: GROUP, 2: GROUP, 3: (3,)}
        self.evaluations = Evaluations(self.record, run, self.scheduler, self.models, units.__getitem__)

    def finish(self, task: Evaluation, n_shards: int | None = None, more: dict | None = None, **losses) -> dict:
        """Answer a task with each model's losses, one for each of the task's first ``n_shards`` shards, and ``more``
        sums of a metric that is not a mean, for each shard."""
        shards = []
        for number, (data_set, segment_id) in enumerate(task.payload.shards[:n_shards]):
            metric = {name: values[number] for name, values in (more or {}).items()}
            members = []
            for key, of_model in losses.items():
                loss = of_model[number]
                figures = figures_of(10, loss, sums_of(10, {"loss": loss}, **metric))
                members.append(EvaluatedMember(int(key[1:]), figures))
            shards.append(evaluated((data_set, segment_id), *members))
        return self.evaluations.finished(task, Evaluated({}, tuple(shards)), 2.0, 5.0)


@pytest.fixture
def run():
    return Run()


def test_a_group_is_evaluated_together_where_there_are_rows(run):
    assert not run.evaluations.begin([1, 2], 1) and not run.scheduler.asked, "not due"
    assert run.evaluations.begin([1, 2], 2)
    assert run.scheduler.asked == [Evaluation(GROUP, 0, EvaluationTask((1, 2), BOTH, 2))]
    shards = tuple(ShardName(*shard) for shard in BOTH)
    assert run.evaluations.order(run.scheduler.asked[0], (1, 2, None)) == Evaluate((1, 2, None), shards)
    complete = run.finish(run.scheduler.asked[0], m1=[0.5, 0.75], m2=[0.25, 1.0])
    assert {key: [row.value for row in rows] for key, rows in complete.items()} == {1: [0.5, 0.75], 2: [0.25, 1.0]}
    assert [(row.mst_key, row.data_set, row.work_s) for row in run.record.metric] == [
        (1, "training", 1.0), (1, "validation", 1.0), (2, "training", 1.0), (2, "validation", 1.0),
    ]  # fmt: skip
    losses = [(row.mst_key, row.loss) for row in run.record.evaluation]
    assert losses == [(1, 0.5), (1, 0.75), (2, 0.25), (2, 1.0)]
    assert not run.evaluations.under_way(1) and len(run.scheduler.asked) == 1


@pytest.mark.parametrize("n_at_work", [3, 2])
def test_one_task_has_all_shards_if_each_trainer_holds_them_and_others_are_at_work(n_at_work):
    shards = ((0, 10), (1, 10))
    plan = replace(a_plan(shards, validation=packed(shards)), any_trainer=True)
    record, scheduler = _Record(), _Scheduler()
    states = [ModelState.TRAINING] * n_at_work + [ModelState.TRAINED] * 2
    record.model = [a_model(key, last_epoch=4, state=state) for key, state in enumerate(states, 1)]
    evaluations = Evaluations(record, a_run(plan, run_id=7), scheduler, RunModels(record, 7))
    assert evaluations.begin([1], 4)
    asked = [(task.segment, task.payload.shards) for task in scheduler.asked]
    of_places = [(number, (("training", number), ("validation", number))) for number in (0, 1)]
    assert asked == ([(0, of_places[0][1] + of_places[1][1])] if n_at_work > 2 else of_places)


def test_models_at_work_are_counted_only_where_a_trainer_holds_all_rows(run, monkeypatch):
    """An evaluation begins after each iteration of each model, so to count all models takes a run of many very long."""
    monkeypatch.setattr(RunModels, "items", lambda models: pytest.fail("all models were looked at"))
    assert run.evaluations.begin([1, 2], 2)


def test_shards_that_are_not_in_memory_together_take_a_task_each(run):
    run.evaluations.begin([1, 2], 2)
    assert run.finish(run.scheduler.asked[0], 1, m1=[0.5], m2=[0.25]) == {} and not run.record.metric
    rest = run.scheduler.asked[1]
    assert run.scheduler.asked[1:] == [Evaluation(GROUP, 0, EvaluationTask((1, 2), BOTH[1:], 2))]
    assert set(run.finish(rest, m1=[0.75], m2=[1.0])) == {1, 2} and len(run.scheduler.asked) == 2
    assert [row.value for row in run.record.metric] == [0.5, 0.75, 0.25, 1.0]


def test_a_group_that_cannot_be_is_evaluated_apart(run):
    run.evaluations.begin([1, 2], 2)
    run.evaluations.split(run.scheduler.asked[0])
    alone = run.scheduler.asked[1:]
    assert alone == [Evaluation(GROUP, 0, EvaluationTask((key,), BOTH, 2)) for key in (1, 2)]
    assert run.evaluations.order(alone[1], (1, 2, None)).members == (2,)
    assert list(run.finish(alone[0], m1=[0.5, 0.75])) == [1]
    assert list(run.finish(alone[1], m2=[0.25, 1.0])) == [2]
    assert [row.value for row in run.record.metric] == [0.5, 0.75, 0.25, 1.0]


def test_a_member_that_fails_meanwhile_is_left_out(run):
    run.evaluations.begin([1, 2], 2)
    run.evaluations.forget(1)
    assert list(run.finish(run.scheduler.asked[0], m1=[0.5, 0.75], m2=[0.25, 1.0])) == [2]
    assert {row.mst_key for row in run.record.metric} == {row.mst_key for row in run.record.evaluation} == {2}


def test_a_model_that_fails_meanwhile_is_evaluated_no_further(run):
    """The scheduler refuses evaluations of a model that was dropped."""
    run.evaluations.begin([3], 4)
    run.evaluations.forget(3)
    assert run.finish(run.scheduler.asked[0], 1, m3=[0.5]) == {}
    assert len(run.scheduler.asked) == 1


def test_what_a_resumed_run_lacks_is_asked_for_in_the_same_way():
    run = Run(epoch=4, position=2)
    place = {"run_id": 7, "mst_key": 3, "epoch": 4, "data_set": "training", "ordinal": 0}
    run.record.metric.append(Metric(**place, name="loss", value=0.5, elapsed_s=1.0, work_s=1.0))
    run.evaluations.add_missing()
    assert [task.payload.mst_keys for task in run.scheduler.asked] == [(1, 2)]
    assert run.record.trained == [(3, {"state": ModelState.TRAINED})], "its metrics were there"


def test_a_resumed_run_lacks_nothing_in_the_middle_of_an_epoch():
    run = Run(epoch=4, position=1)
    run.evaluations.add_missing()
    assert not run.scheduler.asked and not run.record.trained


def test_a_metric_that_is_no_mean_takes_one_task_more_of_the_sums(run):
    run.evaluations.begin([3], 4)
    sums = {"auc": [[1.0, 2.0], [3.0, 4.0]]}
    assert run.finish(run.scheduler.asked[0], more=sums, m3=[0.5, 0.25]) == {} and run.evaluations.under_way(3)
    (compute,) = run.scheduler.asked[1:]
    assert compute.payload == EvaluationTask((3,), BOTH[1:], 4, computes_results=True)
    order = run.evaluations.order(compute, [3])
    assert (order.mst_key, order.shard) == (3, ShardName("validation", 0))
    assert {name: values_of(sums) for name, sums in order.sums.items()} == {
        "training": [5.0, 10.0, 1.0, 2.0], "validation": [2.5, 10.0, 3.0, 4.0],
    }  # fmt: skip
    results = {name: MetricValues(loss, {"auc": 1 - loss}) for name, loss in
               (("training", 0.5), ("validation", 0.25))}  # fmt: skip
    complete = run.evaluations.finished(compute, MetricsComputed({}, results), 1.0, 5.0)
    assert [(row.data_set, row.name, row.value) for row in complete[3]] == [
        ("training", "loss", 0.5), ("training", "auc", 0.5), ("validation", "loss", 0.25), ("validation", "auc", 0.75),
    ]  # fmt: skip
    assert len(run.record.evaluation) == 2 and not run.evaluations.under_way(3)


def test_a_model_that_fails_before_its_sums_are_computed_has_no_metrics(run):
    run.evaluations.begin([3], 4)
    run.finish(run.scheduler.asked[0], more={"auc": [[1.0, 2.0]] * 2}, m3=[0.5, 0.5])
    run.evaluations.forget(3)
    results = {name: MetricValues(0.0, {}) for name in ("training", "validation")}
    assert run.evaluations.finished(run.scheduler.asked[-1], MetricsComputed({}, results), 1.0, 5.0) == {}
    assert not run.record.metric
