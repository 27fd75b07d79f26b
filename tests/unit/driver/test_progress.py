"""The NOTICEs of a run name the same best model as view `leaderboard`; the time of a run is without its pauses."""

import math
import time
from unittest import mock

import pytest

from madlib_mop.catalog.rows.run import Metric
from madlib_mop.driver.session.progress import ProgressReporter
from tests.helpers.unit.rows import a_model, a_plan, a_run

NAN, INF = math.nan, math.inf
CASES = {
    "by the first metric": ({1: ("accuracy", 0.8, 0.1), 2: ("accuracy", 0.9, 0.5)}, "accuracy 0.9000 (mst_key 2)"),
    "ties by loss": ({1: ("accuracy", 0.9, 0.5), 2: ("accuracy", 0.9, 0.1)}, "accuracy 0.9000 (mst_key 2)"),
    "a loss that is NaN comes last of ties": (
        {1: ("accuracy", 0.9, NAN), 2: ("accuracy", 0.9, 0.1)}, "accuracy 0.9000 (mst_key 2)",
    ),
    "other metrics: by loss": ({1: ("accuracy", 0.9, NAN), 2: ("mae", 0.2, 0.5)}, "loss 0.5000 (mst_key 2)"),
    "one metric is NaN: by loss": ({1: ("accuracy", NAN, 0.1), 2: ("mae", 0.2, 0.5)}, "loss 0.1000 (mst_key 1)"),
    "an infinite loss is no figure": ({1: (None, None, -INF), 2: (None, None, 0.5)}, "loss 0.5000 (mst_key 2)"),
    "no figure": ({1: (None, None, NAN), 2: (None, None, NAN)}, None),
}  # fmt: skip


class Caller:
    """Keeps the NOTICEs."""

    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)

    warning = notice


class Ended:
    def seconds_left(self):
        return None


def reported(figures, failed=()):
    caller, models = Caller(), [a_model(key) for key in figures]
    progress = ProgressReporter(caller, a_run(a_plan()), models)
    for key, (name, metric, loss) in figures.items():
        values = [("loss", loss), *([(name, metric)] if name else [])]
        found = [Metric(run_id=1, mst_key=key, epoch=1, data_set="training", ordinal=i, name=n, value=v, elapsed_s=1.0,
                        work_s=1.0) for i, (n, v) in enumerate(values)]  # fmt: skip
        progress.metrics_known(key, 1, found)
    for key in failed:
        progress.model_failed(key, "it failed", Ended())
    for key in figures.keys() - set(failed):
        progress.epoch_over(key, 1, Ended())
    return caller.notices[-1]


@pytest.mark.parametrize(("figures", "best"), CASES.values(), ids=CASES)
def test_the_best_model_is_that_of_the_leaderboard(figures, best):
    text = reported(figures)
    assert "iteration 1 of" in text
    assert ("best" not in text) if best is None else (f"best training {best}," in text)


def test_a_model_that_failed_is_not_the_best():
    figures = {1: ("accuracy", 0.9, 0.1), 2: ("accuracy", 0.8, 0.5)}
    assert "best training accuracy 0.8000 (mst_key 2)" in reported(figures, failed=[1])


def test_pauses_do_not_count():
    """These seconds are the times of metrics, and the budgets of searches and runs end by them."""
    with mock.patch.object(time, "monotonic") as clock:
        clock.return_value = 5.0
        progress = ProgressReporter(Caller(), a_run(a_plan(), training_s=100.0), [])
        clock.return_value = 8.0
        assert (progress.elapsed_s, progress.spent_s) == (103.0, 3.0)
        progress.pause()
        clock.return_value = 500.0
        assert (progress.elapsed_s, progress.spent_s) == (103.0, 3.0)
        progress.resume()
        clock.return_value = 501.0
        assert (progress.elapsed_s, progress.spent_s) == (104.0, 4.0)
