"""Makespan, lower bound and idle fraction of spans, computed by hand."""

import pytest

from madlib_mop.schedule import Span, efficiency
from madlib_mop.schedule.bounds import SpanSums


def test_busiest_segment_bounds():
    result = efficiency([Span(0, 0, 1, 0, 4), Span(1, 0, 1, 4, 7), Span(1, 1, 1, 0, 2), Span(0, 1, 1, 5, 8)])
    assert (result.busiest_segment_s, result.longest_chain_s) == (7, 7)
    assert (result.makespan_s, result.lower_bound_s, result.work_s) == (8, 7, 12)
    assert result.ratio == pytest.approx(8 / 7)
    assert result.idle_share == pytest.approx(4 / 16)


def test_an_equal_share_of_all_work_bounds_where_each_trainer_can_do_all():
    account = SpanSums()
    for span in (Span(0, 0, 1, 0, 4), Span(1, 0, 1, 4, 8), Span(2, 1, 1, 0, 2)):
        account.add(span)
    assert account.efficiency(2, any_trainer=True).lower_bound_s == 5
    assert account.efficiency(2).lower_bound_s == 8


def test_longest_model_bounds():
    result = efficiency([Span(0, 0, 1, 100, 105), Span(0, 1, 1, 106, 111), Span(1, 1, 1, 100, 101)])
    assert (result.busiest_segment_s, result.longest_chain_s, result.makespan_s) == (6, 10, 11)
    assert result.ratio == pytest.approx(1.1)


def test_evaluations_side_by_side_count_once_in_a_models_chain_and_each_on_its_segment():
    visits = [Span(0, 0, 1, 0, 1), Span(0, 1, 1, 1, 2)]
    evaluations = [Span(0, 0, 1, 2, 4, evaluation=True), Span(0, 1, 1, 2, 5, evaluation=True)]
    result = efficiency(visits + evaluations)
    assert (result.longest_chain_s, result.busiest_segment_s, result.makespan_s) == (5, 4, 5)
    assert efficiency(evaluations + visits) == result, "the order of the spans does not matter"


def test_segments_without_a_span_are_idle_where_they_are_counted():
    assert efficiency([Span(0, 0, 1, 0, 2)], n_segments=4).idle_share == pytest.approx(0.75)
    assert efficiency([Span(0, 0, 1, 0, 2)]).idle_share == 0


def test_no_spans_at_all():
    result = efficiency([])
    assert (result.makespan_s, result.ratio, result.idle_share) == (0, 1, 0)
