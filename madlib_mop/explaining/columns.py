"""Exchanges columns of encoded rows: which elements of a network's inputs belong to which column of the table.

Each column is encoded by itself. So if all its elements come from another row, the inputs are those of a row of the
table with the other row's value in this column, and nothing is decoded or encoded again.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.preprocessors.preprocessor import Preprocessor

#: The inputs of a network for some rows: one array (n_rows, ...) for each tensor of the preprocessor.
Inputs = Sequence[npt.NDArray[np.generic]]
Mask = npt.NDArray[np.bool_]


class ColumnElements:
    """The columns of the inputs of a network.

    Parameters
    ----------
    preprocessor : Preprocessor

    Attributes
    ----------
    names : tuple of str
        The columns, in the order of the preprocessor.
    """

    def __init__(self, preprocessor: Preprocessor):
        inputs = preprocessor.inputs
        self.names = tuple(column.name for column in inputs)
        units = [number for number, column in enumerate(inputs) for _ in column.units()]
        #: For each tensor the number of the column of each of its units, or that of its only column.
        self._owners: list[npt.NDArray[np.int64] | int] = [
            np.array(units, np.int64) if tensor.kind == "numbers" else self.names.index(tensor.columns[0])
            for tensor in preprocessor.tensors
        ]

    def mixed(self, rows: Inputs, others: Inputs, of_rows: Mask) -> list[npt.NDArray[np.generic]]:
        """Return rows that have some columns of ``rows`` and the others of ``others``.

        Parameters
        ----------
        rows, others : sequence of numpy.ndarray
            (n_rows, ...), or (1, ...) for a row that is used n_rows times.
        of_rows : numpy.ndarray
            bool (n_rows, n_columns): which columns come from ``rows``.
        """
        found = []
        for owner, a, b in zip(self._owners, rows, others, strict=True):
            mask = of_rows[:, owner]
            if isinstance(owner, int):
                mask = mask.reshape(-1, *[1] * (a.ndim - 1))
            found.append(np.where(mask, a, b))
        return found

    def exchanged(
        self, rows: Inputs, column: int, sources: npt.NDArray[np.int64]
    ) -> list[npt.NDArray[np.generic]]:
        """Return the rows with the values that other rows have in one column.

        Parameters
        ----------
        rows : sequence of numpy.ndarray
            (n_rows, ...) each. Tensors without the column are returned as they are.
        column : int
        sources : numpy.ndarray
            int64 (n_rows,): the number of the row whose value each row gets.
        """
        found = []
        for owner, values in zip(self._owners, rows, strict=True):
            if isinstance(owner, int):
                found.append(values[sources] if owner == column else values)
                continue
            units = np.flatnonzero(owner == column)
            if len(units):
                values = values.copy()
                values[:, units] = values[np.ix_(sources, units)]
            found.append(values)
        return found
