"""What a proposal and a fit need to know of a column; `madlib_mop.columns.statistics` counts it."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Statistics(Protocol):
    """Statistics of one column over some rows.

    Attributes
    ----------
    family : str
        One of `madlib_mop.columns.families`.
    n_rows, n_missing : int
    n_distinct : int
        Distinct values that are not NULL; within about 5 % unless ``distinct_is_exact``.
    minimum, maximum, mean, std : float or None
        Moments in microseconds; of vectors over all elements; ``std`` of the population. None without values.
    level_counts : mapping of str to int or None
        Rows of each value, as text; None if there are too many.
    examples : sequence of str
        Some distinct values, as text.
    width : int or None
        Elements of a vector.
    dimensions : tuple of int
        Of arrays of several dimensions, if all rows have the same; else ().
    is_padded : bool
        Whether arrays were read as padded ones.
    n_absent : int
        Elements that padded arrays do not have.
    is_integral : bool
        Whether all numbers are whole.
    is_single : bool
        Whether the column is of type ``real``, whose numbers are float32.
    special : mapping of str to int
        Rows of NaN, infinities and endless moments; they are in no other statistic but ``n_distinct``.
    """

    @property
    def family(self) -> str: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_missing(self) -> int: ...
    @property
    def n_distinct(self) -> int: ...
    @property
    def distinct_is_exact(self) -> bool: ...
    @property
    def minimum(self) -> float | None: ...
    @property
    def maximum(self) -> float | None: ...
    @property
    def mean(self) -> float | None: ...
    @property
    def std(self) -> float | None: ...
    @property
    def level_counts(self) -> Mapping[str, int] | None: ...
    @property
    def examples(self) -> Sequence[str]: ...
    @property
    def width(self) -> int | None: ...
    @property
    def dimensions(self) -> tuple[int, ...]: ...
    @property
    def is_padded(self) -> bool: ...
    @property
    def n_absent(self) -> int: ...
    @property
    def is_integral(self) -> bool: ...
    @property
    def is_single(self) -> bool: ...
    @property
    def special(self) -> Mapping[str, int]: ...

    def quantile(self, q: float) -> float | None:
        """Return the value at a share of the rows, 0 to 1; None without values."""
        ...

    def text(self, value: float) -> str | None:
        """Return a number, date or time of this column as text; None of other columns."""
        ...
