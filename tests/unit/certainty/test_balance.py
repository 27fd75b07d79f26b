"""Unbalanced classes: from which counts on, how it is said, and the shares that networks begin with."""

import numpy as np
import pytest

from madlib_mop.certainty.balance import MOST_TIMES, imbalance, label_of, log_shares, rarest_class


@pytest.mark.parametrize(
    ("counts", "rarest"),
    [
        ((98, 2), 1),
        ((MOST_TIMES * 10, 10), None),
        ((MOST_TIMES * 10 + 1, 10), 1),
        ((5, 500, 5), 0),
        ((0, 50, 50), None),
        ((0, 50, 5), 2),
        ((0, 0), None),
        ((), None),
        ((7,), None),
    ],
)
def test_classes_are_unbalanced_if_one_has_more_than_four_times_the_rows_of_another(counts, rarest):
    assert rarest_class(counts) == rarest


def test_what_is_said_has_both_shares():
    text = imbalance("left_us", ["no", "yes"], (1960, 40))
    assert text.startswith("left_us has unbalanced classes: 'yes' has 40 of 2,000 training rows (2 %)")
    assert "always 'no' is right for 98 %" in text
    assert imbalance("left_us", ["no", "yes"], (60, 40)) is None
    assert imbalance("left_us", ["no"], (60, 4)) is None, "counts that are not those of the classes"
    assert len(imbalance("y", ["no", "x" * 10_000], (1960, 40))) < 400 and label_of(None) == "NULL"


def test_the_softmax_of_the_logarithms_are_the_shares():
    powers = np.exp(log_shares((1960, 40)))
    assert powers / powers.sum() == pytest.approx([0.98, 0.02], rel=1e-3)
    assert np.isfinite(log_shares((5, 0))).all() and np.isfinite(log_shares((0, 0))).all()
