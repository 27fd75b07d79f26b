"""What score writes of a row: calibrated probabilities are those that predict returns of the same row."""

import numpy as np
import pytest
from mop_backend.held_out import TEMPERATURE, HeldOut, calibrated

from madlib_mop.driver.inference.scored import ScoreColumns

NAMES = ("predicted", "text"), ("probability", "float8")
HELD_OUT = HeldOut("y", "t", 2, "probability", (1, 2), (0.9, 0.1), TEMPERATURE, 2.0)
UNITS = np.array([[0.3], [1e-3], [0.999]], np.float32)


@pytest.mark.parametrize("of_class", [None, 0, 1])
def test_of_one_unit_calibrated_probabilities_are_those_of_predict(of_class):
    """Both subtract from 1 in float64: in float32 they would differ after seven digits."""
    columns = ScoreColumns(NAMES, ("no", "yes"), of_class, HELD_OUT)
    classes, probabilities = columns.elements(UNITS)
    exact = [calibrated([1.0 - p, p], HELD_OUT) for p in UNITS[:, 0].astype(np.float64).tolist()]
    best = [int(p > 0.5) for p in UNITS[:, 0]] if of_class is None else [of_class] * 3
    assert [float(one) for one in probabilities] == [row[place] for row, place in zip(exact, best, strict=True)]


def test_probabilities_of_the_network_are_written_as_they_are():
    units = np.array([[0.25, 0.75], [np.nan, np.nan], [np.nan, 0.5]], np.float32)
    written = [ScoreColumns(NAMES, ("no", "yes"), of_class).elements(units)[1] for of_class in (None, 0, 1)]
    assert written == [["0.75", "nan", "0.5"], ["0.25", "nan", "nan"], ["0.75", "nan", "0.5"]]
