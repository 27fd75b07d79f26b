"""How a model's predictions depend on the value of one column: partial dependence; called by the driver.

The partial dependence at a value is the mean prediction of all rows if each of them had this value (J. Friedman, Greedy
Function Approximation: A Gradient Boosting Machine, 2001).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from madlib_mop.explaining.columns import ColumnElements, Inputs
from madlib_mop.explaining.shapley import Predict

Floats = npt.NDArray[np.float64]


class ColumnValue(NamedTuple):
    """The value of a row in the column.

    Attributes
    ----------
    place : float
        By which values are ordered, if they are.
    text : str or None
        None for NULL.
    """

    place: float
    text: str | None


@dataclass(frozen=True, eq=False)
class Dependence:
    """Mean predictions by value.

    Attributes
    ----------
    means, standard_errors : numpy.ndarray
        float64 (n_values, n_outputs): over the rows; NaN errors for a single row.
    """

    means: Floats
    standard_errors: Floats


def chosen_rows(values: Sequence[ColumnValue], n_values: int, by_count: bool) -> list[int]:
    """Return rows whose values are representative, each value once.

    Parameters
    ----------
    values : sequence of ColumnValue
        Of all rows.
    n_values : int
        How many at most; NULL may be one more.
    by_count : bool
        Whether these are the most frequent values, the first one most often; else they are quantiles, ascending, from
        the least value to the greatest, and NULL at the end.
    """
    first: dict[str | None, int] = {}
    for row, value in enumerate(values):
        first.setdefault(value.text, row)
    if by_count:
        counts = Counter(value.text for value in values)
        common = sorted(counts, key=lambda text: (-counts[text], text is None, text or ""))
        return [first[text] for text in common[:n_values]]
    present = [row for row, value in enumerate(values) if value.text is not None]
    present.sort(key=lambda row: values[row].place)
    places = np.linspace(0, len(present) - 1, n_values).round().astype(np.int64).tolist() if present else []
    texts = dict.fromkeys(values[present[place]].text for place in places)
    return [first[text] for text in texts] + ([first[None]] if None in first else [])


def partial_dependence(
    predict: Predict, columns: ColumnElements, rows: Inputs, column: int, sources: Sequence[int]
) -> Dependence:
    """Return the mean prediction of the rows with each of some values in a column.

    Parameters
    ----------
    predict : callable
    columns : ColumnElements
    rows : sequence of numpy.ndarray
        (n_rows, ...) each.
    column : int
    sources : sequence of int
        For each value the number of a row that has it.
    """
    n_rows = len(rows[0])
    means, errors = [], []
    for source in sources:
        predicted = predict(columns.exchanged(rows, column, np.full(n_rows, source)))
        means.append(predicted.mean(axis=0))
        spread = predicted.std(axis=0, ddof=1) if n_rows > 1 else np.full(predicted.shape[1], np.nan)
        errors.append(spread / np.sqrt(n_rows))
    return Dependence(np.array(means), np.array(errors))
