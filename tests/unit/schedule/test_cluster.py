"""Forecasts: times if only one component is slow, and forecasts for very large clusters."""

import time
from math import inf

import pytest

from madlib_mop.schedule.forecast.cluster import Costs, forecast


def test_where_only_training_costs_a_forecast_is_the_bound():
    made = forecast(16, 8, Costs(10.0), n_iterations=2, noise=0.0)
    assert made.makespan_s == made.lower_bound_s == pytest.approx(2 * 16 * 10.0)
    assert (made.idle_share, made.n_visits, made.n_sessions) == (pytest.approx(0.0), 256, 10)
    assert made.network_bytes == 0 and made.waits_for == "training"


def test_fewer_models_than_segments_leave_segments_idle():
    made = forecast(2, 8, Costs(10.0), noise=0.0)
    assert made.idle_share == pytest.approx(0.75) and made.waits_for == "models"


def test_a_slow_segment_is_the_bound():
    made = forecast(16, 8, Costs(10.0), slow=[3.0], noise=0.0, schedule="longest_first")
    assert made.lower_bound_s == 16 * 30.0 and made.makespan_s == pytest.approx(480.0, rel=0.1)


@pytest.mark.parametrize(
    ("costs", "bottleneck", "makespan_s"),
    [
        (Costs(1.0, driver_s=0.1), "driver", 64 * 64 * 0.1),
        (Costs(1.0, commit_s=0.1), "commits", 64 * 64 * 0.1),
        (Costs(1.0, state_bytes=100, disk_bytes_per_s=1000.0), "commits", 64 * 64 * 0.1),
        (Costs(1.0, state_bytes=100, coordinator_bytes_per_s=1000.0), "network out", 64 * 64 * 0.1),
    ],
)
def test_what_the_coordinator_has_once_bounds_a_run(costs, bottleneck, makespan_s):
    made = forecast(64, 64, costs, n_hosts=8)
    assert made.makespan_s == pytest.approx(makespan_s, rel=0.05)
    assert made.waits_for == bottleneck and made.busy[bottleneck] == pytest.approx(1.0, abs=0.05)
    assert costs.feeds()[bottleneck] < 64


def test_a_coordinator_that_can_feed_the_segments_hardly_delays_them():
    costs = Costs(10.0, overhead_s=0.1, driver_s=0.002, commit_s=0.005, state_bytes=1_000_000, disk_bytes_per_s=3e8,
                  coordinator_bytes_per_s=1.25e9, host_bytes_per_s=1.25e9)  # fmt: skip
    assert min(costs.feeds().values()) > 1000
    made = forecast(200, 100, costs, n_hosts=13)
    assert made.makespan_s < 1.06 * made.lower_bound_s
    assert made.network_bytes == 2 * 1_000_000 * 200 * 100  # to the segment and back, in each visit


def test_a_hosts_link_is_shared_by_its_segments():
    costs = Costs(1.0, state_bytes=1000, host_bytes_per_s=1000.0)
    one_host, a_host_each = (forecast(16, 8, costs, n_hosts=n, noise=0.0).makespan_s for n in (1, 8))
    assert a_host_each == pytest.approx(16 * 3.0) and one_host > 2 * a_host_each


def test_infinitely_many_segments_can_be_fed_where_nothing_is_shared():
    assert set(Costs(1.0).feeds().values()) == {inf}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["rotation", pytest.param("longest_first", marks=pytest.mark.slow)])
def test_forecasts_for_hundreds_of_segments_take_seconds(schedule):
    """120,000 visits; ten million (10,000 models on 1,000 segments) take slightly more than 100 times as long."""
    began = time.process_time()
    rates = [1.3 ** (k / 4) for k in range(16)]
    made = forecast(400, 300, Costs(1.0, driver_s=1e-4), schedule=schedule, rates=rates)
    assert made.n_visits == 120_000 and made.makespan_s < 1.1 * made.lower_bound_s
    assert time.process_time() - began < 30
