"""The time of the stages of a visit, without what passes are compiled meanwhile."""

import time

from madlib_mop.trainer.process.clock import Clock, Stopwatch

STEP_S = 0.02


def test_compiling_within_a_stage_counts_as_tracing():
    compiling = Stopwatch()
    clock = Clock(compiling.seconds)
    compiling.begin()
    time.sleep(STEP_S)
    compiling.end()
    clock.lap("compute_s")
    time.sleep(STEP_S)
    clock.lap("compute_s")
    assert set(clock.laps) == {"compute_s", "trace_s"}
    assert clock.laps["trace_s"] == compiling.seconds() >= STEP_S
    assert clock.laps["compute_s"] >= STEP_S


def test_a_stage_without_compiling_has_no_tracing():
    clock = Clock(lambda: 7.0)
    clock.lap("state_in_s")
    assert list(clock.laps) == ["state_in_s"]


def test_waiting_before_the_first_stage_counts_too_and_is_in_no_stage():
    """A visit that begins while its rows arrive has waited for the first of them before anything else."""
    waited = [3.0]
    clock = Clock(lambda: 0.0, lambda: waited[0])
    waited[0] += STEP_S
    time.sleep(2 * STEP_S)
    clock.lap("compute_s")
    assert clock.laps["rows_s"] == waited[0] and clock.laps["compute_s"] >= STEP_S


def test_a_stopwatch_counts_nested_pairs_once():
    stopwatch = Stopwatch()
    begun = time.perf_counter()
    stopwatch.begin()
    stopwatch.begin()
    time.sleep(STEP_S)
    stopwatch.end()
    assert stopwatch.seconds() == 0, "the outer pair has not ended"
    stopwatch.end()
    assert STEP_S <= stopwatch.seconds() <= time.perf_counter() - begun
