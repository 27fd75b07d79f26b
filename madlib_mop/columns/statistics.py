"""Statistics of one column, exact and the same for rows in any order; the proposal and the preprocessor use them."""

from collections import Counter
from copy import deepcopy

import numpy as np

from madlib_mop.columns.exact import ExactMoments
from madlib_mop.columns.raw import FLOAT4, RawColumn, Vectors, other_width
from madlib_mop.columns.states import ColumnState, NumberState, OrderedState, state_of

#: Maximum number of characters of an example.
MAX_EXAMPLE = 60


class ColumnStatistics:
    """What is known of one column after some of its rows: a state that rows and other states are added to.

    Equal rows give equal bits, in any order and any parts. `of` makes the statistics of a column, `add` adds rows in
    place, `merge` returns those of both.

    Attributes
    ----------
    family : str
        As `raw` names it.
    n_rows, n_missing : int
    width : int or None
        Elements of a vector; None for other families, or if all rows are missing.
    dimensions : tuple of int
        Of arrays of several dimensions, if all rows have the same; else ().
    is_padded : bool
        Whether the arrays were read as padded ones.
    n_absent : int
        Elements that padded arrays do not have.
    special : dict of str to int
        How often NaN, infinities and endless moments occur. They are in no other statistic but ``n_distinct``; rows of
        vectors with one count once.
    is_integral : bool
        Whether there are values, all are numbers or booleans, finite and whole.
    """

    def __init__(self, family: str):
        self.family = family
        self.n_rows = 0
        self.n_missing = 0
        self.width: int | None = None
        self.dimensions: tuple[int, ...] = ()
        self.n_absent = 0
        self.is_padded = False
        self._special: Counter[str] = Counter()
        self._state: ColumnState | None = None

    @staticmethod
    def of(column: RawColumn) -> "ColumnStatistics":
        """Return the statistics of a column's rows."""
        statistics = ColumnStatistics(column.family)
        statistics.add(column)
        return statistics

    def add(self, column: RawColumn) -> None:
        """Add the rows of a column.

        Raises
        ------
        InvalidParameter
            If vectors have another width than those before them.
        """
        if self._state is None:
            self._state = state_of(column)
        if isinstance(column, Vectors) and column.width is not None:
            self._set_width(column.column, column.width, column.dimensions)
            self.n_absent += 0 if column.absent is None else int(np.count_nonzero(column.absent))
            self.is_padded = self.is_padded or column.absent is not None
        self.n_rows += column.n_rows
        self.n_missing += int(np.count_nonzero(column.missing))
        self._state.add(column, self._special)

    def flush(self) -> None:
        """Count the rows that were added but wait to be sorted together; otherwise the next question does it."""
        if self._state is not None:
            self._state.limits()

    def merge(self, other: "ColumnStatistics") -> "ColumnStatistics":
        """Return the statistics of the rows of both; these stay as they are.

        Raises
        ------
        InvalidParameter
            If vectors have different widths.
        """
        both = deepcopy(self)
        if other.width is not None:
            both._set_width("", other.width, other.dimensions)
        both.n_absent += other.n_absent
        both.is_padded = both.is_padded or other.is_padded
        both.n_rows += other.n_rows
        both.n_missing += other.n_missing
        both._special += other._special
        if both._state is None:
            both._state = deepcopy(other._state)
        elif other._state is not None:
            both._state.merge(other._state)
        return both

    def _set_width(self, column: str, width: int, dimensions: tuple[int, ...]) -> None:
        if self.width not in (None, width):
            raise other_width(column, self.width or 0, width)
        self.dimensions = dimensions if self.width is None or dimensions == self.dimensions else ()
        self.width = width

    @property
    def special(self) -> dict[str, int]:
        """Return how often each value that is not finite occurs."""
        return dict(sorted(self._special.items()))

    @property
    def n_present(self) -> int:
        """Return the number of rows that are not missing."""
        return self.n_rows - self.n_missing

    @property
    def n_distinct(self) -> int:
        """Return the number of distinct values; see ``distinct_is_exact``."""
        counted = self._state.n_distinct() if self._state else 0
        n_special = len(self._special) if isinstance(self._state, OrderedState) else 0
        return min(self.n_present, counted + n_special)

    @property
    def distinct_is_exact(self) -> bool:
        """Return whether ``n_distinct`` is exact; otherwise it is an estimate with a standard error of 1.6 %.

        Numbers, moments and texts are counted exactly up to 65,536 distinct ones. Vectors and bytes are counted by
        hashes, so never exactly.
        """
        return self._state.distinct_is_exact() if self._state else True

    @property
    def minimum(self) -> float | None:
        """Return the least finite value or vector element; an int for ``bigint`` and, in microseconds, for moments."""
        return self._state.limits()[0] if self._state else None

    @property
    def maximum(self) -> float | None:
        """Return the greatest finite value or vector element; an int for ``bigint`` and moments, as ``minimum``."""
        return self._state.limits()[1] if self._state else None

    def text(self, value: float) -> str | None:
        """Return a number as SQL prints it in this column; None of columns that are no numbers."""
        return self._state.text(value, self.family) if isinstance(self._state, NumberState) else None

    @property
    def moments(self) -> ExactMoments | None:
        """Return count, sum and sum of squares of finite numbers, moments or vector elements."""
        return self._state.moments() if self._state else None

    @property
    def mean(self) -> float | None:
        """Return the mean of finite numbers, moments or vector elements, rounded once; booleans are 0 and 1."""
        return moments.mean() if (moments := self.moments) else None

    @property
    def std(self) -> float | None:
        """Return the standard deviation of the population, rounded once."""
        return moments.std() if (moments := self.moments) else None

    @property
    def is_integral(self) -> bool:
        """Return whether there are values, and all are whole numbers or booleans."""
        if not isinstance(self._state, NumberState) or self._special:
            return False
        return self._state.is_integral() and self.n_present > 0

    def quantile(self, q: float) -> float | None:
        """Return a quantile of finite numbers or moments, as ``percentile_cont`` does; None without any.

        Up to 65,536 distinct values it is exact. Beyond, values are rounded to at most 65,536 bins, fewer bits wide
        where values lie close together; numbers at worst to a relative error of 2^-11.

        Parameters
        ----------
        q : float
            From 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is from 0 to 1. Received: {q}")
        return self._state.quantile(q) if isinstance(self._state, OrderedState) else None

    def histogram(self, n_bins: int) -> tuple[list[float], list[int]]:
        """Return bins of finite numbers or moments with about equally many rows each; ([], []) for other families.

        Returns
        -------
        list of float
            The upper limits of all bins but the last: increasing; a value that equals a limit belongs to the bin below.
        list of int
            The rows of each bin, exact.
        """
        return self._state.histogram(n_bins) if isinstance(self._state, OrderedState) else ([], [])

    @property
    def level_counts(self) -> dict[str, int] | None:
        """Return how often each text occurs, or each finite number as text; None beyond 65,536 distinct ones.

        Descending by count, then by text. None for moments, vectors and bytes.
        """
        return self._state.level_counts(self.family) if self._state else {}

    @property
    def number_counts(self) -> dict[float, int] | None:
        """Return how often each finite number or boolean occurs; None beyond 65,536 of them, and of other columns."""
        return self._state.number_counts() if isinstance(self._state, NumberState) else None

    @property
    def is_single(self) -> bool:
        """Return whether the column is of type ``real``."""
        return isinstance(self._state, NumberState) and self._state.form == FLOAT4

    @property
    def examples(self) -> list[str]:
        """Return at most 5 values: the most frequent ones, then in their own order.

        Beyond 65,536 distinct values, these are 5 with the smallest hashes: a sample that does not depend on the order.
        """
        found = self._state.examples(self.family) if self._state else []
        return [text if len(text) <= MAX_EXAMPLE else text[: MAX_EXAMPLE - 1] + "…" for text in found]
