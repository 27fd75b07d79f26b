"""An interrupted comparison keeps its measurements and continues, or explains why it cannot."""

import comparison
import pytest
from comparison import Plan, compare_ways
from report.measurement import Failure

from tests.helpers.unit import benchmarks as synthetic

PLANS = [Plan("tabular", ("hopper", "plain", "ray_tune"), runs=((1, 1), (2, 1)))]


class Ways:
    """Ways with invented measurements. Ray Tune fails; the comparison is interrupted after ``lasts`` of them."""

    def __init__(self, lasts=99):
        self.made = []
        self.lasts = lasts

    def __call__(self, plan, way, seed, repetition, rows, place):
        if len(self.made) == self.lasts:
            raise KeyboardInterrupt
        self.made.append((way, seed))
        if way == "ray_tune":
            return Failure(plan.workload, way, "it fails")
        return synthetic.measurement(plan.workload, way, repetition, seed, n_configurations=2, n_epochs=1)


@pytest.fixture
def measure(monkeypatch, tmp_path):
    monkeypatch.setattr(comparison, "report", lambda directory: directory)

    def compare(lasts=99, plans=PLANS, **options):
        ways = Ways(lasts)
        monkeypatch.setattr(comparison, "_measure", ways)
        try:
            ratios = compare_ways(plans, tmp_path, **options)
        except KeyboardInterrupt:
            ratios = None
        return ways.made, ratios

    return compare


@pytest.mark.slow
def test_every_way_is_measured_in_turn_and_one_that_fails_not_again(measure):
    made, (ratio, cost) = measure()
    assert made == [("hopper", 1), ("plain", 1), ("ray_tune", 1), ("hopper", 2), ("plain", 2)]
    assert (ratio.name, ratio.limit) == ("tabular: hopper / plain", 0.35) and 0.4 < ratio.value < 0.9
    assert cost.name == "tabular: not computing, after the first epoch" and cost.value == pytest.approx(0.14 / 0.97)


@pytest.mark.slow
def test_one_that_was_broken_off_goes_on(measure):
    made, _ = measure(lasts=4)
    rest, ratios = measure(go_on=True)
    assert rest == [("plain", 2)]
    assert [ratio.value for ratio in ratios] == [ratio.value for ratio in measure()[1]]
    assert measure(go_on=True)[0] == []


def test_nothing_to_go_on_with_is_a_beginning(measure):
    assert len(measure(go_on=True)[0]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("change", [pytest.param("plan", marks=pytest.mark.slow), "commit"])
def test_it_does_not_go_on_with_another_comparison(measure, monkeypatch, change):
    measure(lasts=4)
    plans = PLANS
    if change == "plan":
        plans = [PLANS[0].shrunk(0.5)]
    else:
        monkeypatch.setattr(comparison.Machine, "here", lambda: synthetic.MACHINE)
    with pytest.raises(SystemExit, match="another comparison.*--continue to start from the beginning"):
        measure(plans=plans, go_on=True)
    assert measure(plans=plans)[0] == [("hopper", 1), ("plain", 1), ("ray_tune", 1), ("hopper", 2), ("plain", 2)]
