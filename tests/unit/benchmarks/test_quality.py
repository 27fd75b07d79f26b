"""The section "quality": random configurations, means over seeds, and the sentences of the acceptance."""

import numpy as np
import pytest
from quality.compare import Size, compare_quality
from quality.draws import boosting, perceptrons
from quality.scores import (
    BOOSTING,
    ENSEMBLE,
    LIGHTGBM,
    PERCEPTRON,
    SINGLE,
    Score,
    auc,
    read_scores,
    report,
    write_score,
)


def test_the_area_under_the_curve_is_the_share_of_ordered_pairs():
    assert auc(np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])) == pytest.approx(0.75)
    assert auc(np.array([0, 1, 1, 0]), np.array([0.5, 0.5, 0.5, 0.5])) == pytest.approx(0.5), "ties count half"
    assert auc(np.array([False, True]), np.array([0.9, 0.1])) == 0


@pytest.mark.parametrize("draw", [boosting, perceptrons])
def test_configurations_differ_by_seed_and_begin_with_the_default(draw):
    first, again, other = draw(5, 1), draw(5, 1), draw(5, 2)
    assert first == again and first[0] == other[0] and first[1:] != other[1:]
    assert len({str(one) for one in first}) == 5


def scores(**values):
    return [
        Score("small", "AUC", seed, contestant, value + seed / 1000, 1.0)
        for contestant, value in values.items()
        for seed in (1, 2)
    ]


def test_the_table_has_means_differences_and_both_sentences():
    text = report(scores(**{ENSEMBLE: 0.90, SINGLE: 0.85, BOOSTING: 0.89, PERCEPTRON: 0.86, LIGHTGBM: 0.88}))
    (row,) = [line for line in text.splitlines() if line.startswith("small")]
    assert "AUC" in row and "90.15" in row and "89.15" in row and "+1.00" in row
    assert "ensemble - gradient boosting: on average +1.00 points: holds" in text
    assert "worst table: small, +1.00 points: holds" in text
    assert "best network - MLP of scikit-learn: on average -1.00 points: FAILS" in text


def test_a_table_two_points_worse_fails():
    text = report(scores(**{ENSEMBLE: 0.86, SINGLE: 0.85, BOOSTING: 0.89, PERCEPTRON: 0.80}))
    assert "worst table: small, -3.00 points: FAILS" in text


def test_the_sentences_need_both_contestants():
    text = report(scores(**{ENSEMBLE: 0.86}))
    assert "small" in text and "holds" not in text and "FAILS" not in text


def test_differences_are_of_the_seeds_that_both_have():
    found = [
        Score("small", "R2", 1, ENSEMBLE, 0.5, 1.0),
        Score("small", "R2", 1, BOOSTING, 0.5, 1.0),
        Score("small", "R2", 2, BOOSTING, 0.9, 1.0),
    ]
    assert "on average +0.00 points: holds" in report(found)


def test_scores_are_kept_in_a_file(tmp_path):
    path = tmp_path / "new" / "quality.csv"
    assert read_scores(path) == []
    found = scores(**{ENSEMBLE: 0.9})
    for score in found:
        write_score(path, score)
    assert read_scores(path) == found


def test_a_run_that_continues_without_scores_begins_with_the_recorded_ones(tmp_path):
    compare_quality("", Size((), 5, 16), tmp_path, go_on=True)
    found = read_scores(tmp_path / "quality_16.csv")
    assert {score.seed for score in found if score.table == "weather"} == {1, 2, 3, 4, 5}
    compare_quality("", Size((), 5, 16), tmp_path, go_on=False)
    assert read_scores(tmp_path / "quality_16.csv") == []
