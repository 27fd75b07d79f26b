"""Metrics are computed over all rows, in float64, every metrics_compute_frequency iterations and at the last one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mop_backend.messages import MetricValues

from madlib_mop.driver.evaluation.evaluations import EpochMetrics, is_due
from tests.helpers.unit.sums import evaluated, figures_of, sums_of, values_of


def answer(n_rows: int, loss: float, **metrics):
    """Return a model's figures on a shard."""
    return figures_of(n_rows, loss, sums_of(n_rows, {"loss": loss, **metrics}), a=1)


@pytest.mark.parametrize(
    "first, last, frequency, due",
    [
        (1, 5, 2, [2, 4, 5]),
        (1, 6, 3, [3, 6]),
        (1, 3, 1, [1, 2, 3]),
        (1, 4, 4, [4]),
        (6, 10, 2, [7, 9, 10]),  # a warm start counts its own iterations
    ],
)
def test_metrics_are_due_every_so_many_iterations_and_at_the_last(first, last, frequency, due):
    assert [epoch for epoch in range(first, last + 1) if is_due(epoch, first, last, frequency)] == due


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 10, width=32)), min_size=1, max_size=8), st.randoms())
def test_shards_weigh_as_many_rows_as_they_have(shards, chance):
    places = [("training", number) for number in range(len(shards))]
    metrics = EpochMetrics(1, places)
    order = list(range(len(shards)))
    chance.shuffle(order)
    ends = [metrics.add(i, evaluated(places[i]), answer(*shards[i], accuracy=1.0), 0.5) for i in order]
    assert ends == [False] * (len(shards) - 1) + [True]
    loss, accuracy = metrics.rows(7, 3, 2.0)
    rows = np.array([n for n, _ in shards], np.float64)
    expected = float((rows * [value for _, value in shards]).sum() / rows.sum())
    assert loss.value == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert (loss.name, loss.ordinal, accuracy.name, accuracy.ordinal) == ("loss", 0, "accuracy", 1)
    assert accuracy.value == 1.0 and loss.work_s == pytest.approx(0.5 * len(shards))


def test_a_shard_that_is_evaluated_twice_counts_once():
    """A command stops a model and resumes it while it is evaluated: the first answer may still arrive."""
    places = [("training", number) for number in (0, 1)]
    metrics = EpochMetrics(1, places)
    assert metrics.awaits_shards and not metrics.add(0, evaluated(places[0]), answer(10, 1.0), 0.1)
    assert not metrics.add(0, evaluated(places[0]), answer(10, 1.0), 0.1)
    assert metrics.add(1, evaluated(places[1]), answer(30, 2.0), 0.1) and not metrics.awaits_shards
    assert metrics.rows(1, 1, 0.0)[0].value == pytest.approx(1.75) and len(metrics.evaluations(1, 1)) == 2


def test_data_sets_are_kept_apart():
    metrics = EpochMetrics(2, [("training", 0), ("validation", 0)])
    for data_set, value in (("validation", 2.0), ("training", 1.0)):
        metrics.add(0, evaluated((data_set, 0)), answer(10, value), 0.1)
    assert [(row.data_set, row.value, row.epoch) for row in metrics.rows(1, 1, 0.0)] == [
        ("training", 1.0, 2),
        ("validation", 2.0, 2),
    ]


def test_one_shard_of_nan_makes_the_whole_nan():
    places = [("training", number) for number in (0, 1)]
    metrics = EpochMetrics(1, places)
    for place, loss in zip(places, (0.5, math.nan), strict=True):
        metrics.add(0, evaluated(place), answer(4, loss), 0.1)
    assert math.isnan(metrics.rows(1, 1, 0.0)[0].value)


def test_each_evaluation_is_a_row_with_its_place_and_time():
    metrics = EpochMetrics(2, [("validation", 3)])
    metrics.add(0, evaluated(("validation", 3)), answer(10, 0.25), 2.6)
    (row,) = metrics.evaluations(7, 1)
    assert (row.ended_at - row.started_at).total_seconds() == 2.5 and row.started_at.timestamp() == 5.0
    times = {"started_at": row.started_at, "ended_at": row.ended_at}
    assert row.as_row() == times | {
        "run_id": 7, "mst_key": 1, "epoch": 2, "data_set": "validation", "shard": 3, "segment_id": 0,
        "n_rows": 10, "loss": 0.25, "timing": {"a": 1},
    }  # fmt: skip


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=8), st.randoms())
def test_who_comes_first_does_not_decide_the_last_bit(losses, chance):
    places = [("training", number) for number in range(len(losses))]
    found = set()
    for _ in range(4):
        metrics = EpochMetrics(1, places)
        order = list(range(len(losses)))
        chance.shuffle(order)
        for i in order:
            metrics.add(i, evaluated(places[i]), answer(3 + i, losses[i]), 0.1)
        found.add(metrics.rows(1, 1, 0.0)[0].value)
    assert len(found) == 1


def test_what_is_no_mean_is_added_up_for_a_trainer():
    metrics = EpochMetrics(1, {("training", number) for number in (0, 1)})
    for number, values in enumerate(([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])):
        one = figures_of(5, 0.5, sums_of(5, {"loss": 0.5}, auc=values))
        metrics.add(0, evaluated(("training", number)), one, 0.25)
    assert not metrics.has_values
    (sums,) = metrics.sums().values()
    assert values_of(sums) == [5.0, 10.0, 11.0, 22.0, 33.0]
    metrics.set_results({"training": MetricValues(0.5, {"auc": 0.75})}, 0.5)
    rows = metrics.rows(7, 1, 2.0)
    assert [(row.name, row.value, row.work_s) for row in rows] == [("loss", 0.5, 1.0), ("auc", 0.75, 1.0)]
