"""Shapley values of one prediction, by source column; called by the trainer.

The value of a column is its mean contribution over all orders in which the columns of a row of the background can be
replaced by those of the explained row (E. Strumbelj and I. Kononenko, Explaining prediction models and individual
predictions with feature contributions, 2014). Orders are drawn in pairs, an order and its reverse (R. Mitchell et al.,
Sampling permutations for Shapley value estimation, 2022).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.explaining.columns import ColumnElements, Inputs

Floats = npt.NDArray[np.float64]
#: From the inputs of n rows to what is explained, float64 (n, n_outputs).
Predict = Callable[[Inputs], Floats]

#: Rows of one call of the network, and the bytes of their inputs.
_CHUNK_ROWS = 8192
_CHUNK_BYTES = 32 << 20
#: Rows that are predicted where the caller does not say how many orders are drawn, and the most orders then.
_USUAL_ROWS = 50_000
_USUAL_ORDERS = 10


@dataclass(frozen=True, eq=False)
class Explanation:
    """The contributions of the columns to a prediction.

    Attributes
    ----------
    contributions : numpy.ndarray
        float64 (n_columns, n_outputs); they add up to ``prediction - base``.
    standard_errors : numpy.ndarray
        float64 (n_columns, n_outputs), of the contributions as estimates of those with all rows from which the
        background was drawn; NaN for a background of one row. They cover the orders that were drawn too.
    base : numpy.ndarray
        float64 (n_outputs,): the mean prediction of the background.
    prediction : numpy.ndarray
        float64 (n_outputs,): that of the row.
    """

    contributions: Floats
    standard_errors: Floats
    base: Floats
    prediction: Floats

    @property
    def table(self) -> Floats:
        """All in one array, float64 (n_outputs, n_columns + 1, 2).

        For each output the contribution and the standard error of each column, then base and prediction.
        """
        columns = np.stack([self.contributions, self.standard_errors], axis=-1)
        last = np.stack([self.base, self.prediction], axis=-1)
        return np.ascontiguousarray(np.concatenate([columns, last[np.newaxis]]).swapaxes(0, 1))


def usual_orders(n_background: int, n_columns: int) -> int:
    """Return how many pairs of orders are drawn for each row of the background, by default."""
    rows_of_a_pair = 2 * max(n_columns - 1, 1) * n_background
    return max(1, min(_USUAL_ORDERS, _USUAL_ROWS // rows_of_a_pair))


def shapley_values(
    predict: Predict, columns: ColumnElements, row: Inputs, background: Inputs, n_orders: int, seed: int
) -> Explanation:
    """Return the Shapley values of a row's prediction.

    Parameters
    ----------
    predict : callable
    columns : ColumnElements
    row : sequence of numpy.ndarray
        The inputs of the row, (1, ...) each.
    background : sequence of numpy.ndarray
        Those of other rows, (n_background, ...) each.
    n_orders : int
        Pairs of orders for each row of the background.
    seed : int
        Of the orders; the same seed gives the same bits.
    """
    n_columns, n_background = len(columns.names), len(background[0])
    n_pairs, random = n_background * n_orders, np.random.default_rng(seed)
    first, last = predict(background), predict(row)[0]
    sums = np.zeros((n_background, n_columns, len(last)))
    n_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(sum(values[:1].nbytes for values in row), 1)))
    n_at_once = max(1, n_rows // (2 * max(n_columns - 1, 1)))
    for start in range(0, n_pairs, n_at_once):
        pairs = np.arange(start, min(start + n_at_once, n_pairs))
        chunk = _orders(len(pairs), n_columns, random)
        of = np.repeat(pairs // n_orders, 2)  # the row of the background with which each walk begins
        walks = np.empty((len(chunk), n_columns + 1, len(last)))
        walks[:, 0], walks[:, -1] = first[of], last
        if n_columns > 1:
            ranks = np.argsort(chunk, axis=1)  # the inverse: the step at which a column is replaced
            replaced = ranks[:, np.newaxis] < np.arange(1, n_columns)[:, np.newaxis]
            replaced, repeated = replaced.reshape(-1, n_columns), np.repeat(of, n_columns - 1)
            predicted = []
            for part in (slice(i, i + n_rows) for i in range(0, len(repeated), n_rows)):  # a walk alone may be large
                others = [values[repeated[part]] for values in background]
                predicted.append(predict(columns.mixed(row, others, replaced[part])))
            walks[:, 1:-1] = np.concatenate(predicted).reshape(len(chunk), n_columns - 1, -1)
        steps = np.diff(walks, axis=1)
        np.add.at(sums, (of[:, np.newaxis], chunk), steps)
    each = sums / (2 * n_orders)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviations = each.std(axis=0, ddof=1) if n_background > 1 else np.full(each.shape[1:], np.nan)
    return Explanation(each.mean(axis=0), deviations / np.sqrt(n_background), first.mean(axis=0), last)


def _orders(n_pairs: int, n_columns: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw orders of the columns, int64 (2 n_pairs, n_columns): each is followed by its reverse."""
    drawn = random.permuted(np.tile(np.arange(n_columns), (n_pairs, 1)), axis=1)
    return np.stack([drawn, drawn[:, ::-1]], axis=1).reshape(2 * n_pairs, n_columns)
