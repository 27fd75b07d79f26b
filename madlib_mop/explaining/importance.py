"""How much a model's loss grows if the values of a column are exchanged between rows; called by the driver.

This is permutation importance (A. Fisher, C. Rudin and F. Dominici, All Models are Wrong, but Many are Useful, 2019).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.explaining.columns import ColumnElements, Inputs

Floats = npt.NDArray[np.float64]
#: From the inputs of all rows to the losses of each, float64 (n_rows, n_outputs).
Losses = Callable[[Inputs], Floats]


@dataclass(frozen=True, eq=False)
class Importances:
    """The importance of each column.

    Attributes
    ----------
    losses : numpy.ndarray
        float64 (n_outputs,): the mean losses of the rows as they are.
    increases, standard_errors : numpy.ndarray
        float64 (n_columns, n_outputs): the mean increase of the loss if a column is exchanged, and its standard error:
        by how much it would differ for other rows of the same kind, and for other exchanges (W. Hoeffding, A Class of
        Statistics with Asymptotically Normal Distribution, 1948).
    """

    losses: Floats
    increases: Floats
    standard_errors: Floats


def importances(losses: Losses, columns: ColumnElements, rows: Inputs, n_repeats: int, seed: int) -> Importances:
    """Return the importance of each column for the loss of some rows.

    Parameters
    ----------
    losses : callable
    columns : ColumnElements
    rows : sequence of numpy.ndarray
        (n_rows, ...) each, of two rows or more.
    n_repeats : int
        How often the values of a column are exchanged.
    seed : int
        Of the exchanges.
    """
    n_rows, random = len(rows[0]), np.random.default_rng(seed)
    before = losses(rows)
    increases, errors = [], []
    for column in range(len(columns.names)):
        got, gave = np.zeros_like(before), np.zeros_like(before)  # by the row that got a value, and by the one it is of
        for _ in range(n_repeats):
            sources = random.permutation(n_rows)
            increase = losses(columns.exchanged(rows, column, sources)) - before
            got += increase
            gave[sources] += increase
        increases.append(got.mean(axis=0) / n_repeats)
        # each row influences the mean in both ways: the mean is a U-statistic of pairs of rows
        errors.append((got + gave).std(axis=0, ddof=1) / n_repeats / np.sqrt(n_rows))
    return Importances(before.mean(axis=0), np.array(increases), np.array(errors))
