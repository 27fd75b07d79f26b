"""Which rows are for validation, by what they contain, not by where they lie; packing calls it when all are hashed."""

import re
import string
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.raw import Moments, Numbers
from madlib_mop.errors import InvalidParameter, UnreadableText

Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]

BY_HASH, BY_GROUP, BY_COLUMN, BY_TIME = "hash", "group", "column", "time"
_NAME = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_SHARE = r"(\d+(?:\.\d*)?|\.\d+)\s*(%|percent)?"
_LAST = re.compile(rf"last\s+{_SHARE}\s+by\s+{_NAME}\Z", re.IGNORECASE)
_GROUPS = re.compile(rf"{_SHARE}\s+by\s+group\s+{_NAME}\Z", re.IGNORECASE)
_PLAIN = re.compile(rf"{_SHARE}(\s+not\s+stratified)?\Z", re.IGNORECASE)
_COLUMN = re.compile(rf"{_NAME}\Z")
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # as PostgreSQL does in UTF-8
_HINT = (
    "Write 0.2 (stratified by class), '0.2 not stratified', the name of a boolean column,"
    " 'last 20% by created_at', or '20% by group customer_id'."
)


@dataclass(frozen=True)
class SplitRule:
    """How rows are chosen for validation.

    Attributes
    ----------
    by : str
        ``hash``, ``group``, ``column`` or ``time``.
    fraction : float or None
        Share of the rows, above 0 and below 1; None for ``column``.
    column : str or None
        The column that decides; None for ``hash``.
    stratified : bool
        Of ``hash``: whether each class has that share.
    """

    by: str
    fraction: float | None
    column: str | None = None
    stratified: bool = False


def read_split(text: str) -> SplitRule:
    """Return the rule that the argument ``validation`` is.

    Parameters
    ----------
    text : str
        ``0.2`` or ``20%``; ``0.2 not stratified``; a column; ``last 20% by column``; ``20% by group column``. Names
        are folded to lower case unless they are quoted, as in SQL.

    Raises
    ------
    UnreadableText
        If it is none of these.
    InvalidParameter
        If the share is not above 0 and below 1.
    """
    stripped = text.strip()
    if match := _LAST.match(stripped):
        return SplitRule(BY_TIME, _fraction(match[1], match[2], text), _name(match[3]))
    if match := _GROUPS.match(stripped):
        return SplitRule(BY_GROUP, _fraction(match[1], match[2], text), _name(match[3]))
    if match := _PLAIN.match(stripped):
        return SplitRule(BY_HASH, _fraction(match[1], match[2], text), stratified=match[3] is None)
    if match := _COLUMN.match(stripped):
        return SplitRule(BY_COLUMN, None, _name(match[1]))
    raise UnreadableText(f"validation is not understood. Received: {text!r}", hint=_HINT)


def split_by_share(share: float) -> SplitRule:
    """Return the rule that a number is as the argument ``validation``: a share of each class.

    Raises
    ------
    InvalidParameter
        If the share is not above 0 and below 1.
    """
    return SplitRule(BY_HASH, _checked(share, share), stratified=True)


def by_hash(hashes: Hashes, fraction: float) -> Flags:
    """Return which rows are for validation: those with the smallest hashes.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n,), of the seed and the row's content. Equal rows are on the same side.
    fraction : float
        Above 0 and below 1.

    Returns
    -------
    numpy.ndarray
        bool (n,).

    Raises
    ------
    InvalidParameter
        If one side has no rows.
    """
    return _both_sides(_lowest(hashes, np.arange(len(hashes)), fraction))


def stratified(hashes: Hashes, codes: Codes, fraction: float) -> Flags:
    """Return which rows are for validation, with the same share of each class.

    A class of two rows or more has a row on the training side; one of fewer than 1 / ``fraction`` rows may have none
    for validation.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n,), as for `by_hash`.
    codes : numpy.ndarray
        int32 (n,), the class of each row.
    fraction : float

    Raises
    ------
    InvalidParameter
        If one side has no rows.
    """
    chosen = np.zeros(len(hashes), np.bool_)
    fewest_bytes = codes.astype(np.min_scalar_type(int(codes.max(initial=0)))) if codes.min(initial=0) >= 0 else codes
    order = np.argsort(fewest_bytes, kind="stable")  # a radix sort, where the codes fit into 16 bits
    starts = np.flatnonzero(np.diff(codes[order])) + 1
    for rows in np.split(order, starts):
        chosen[rows] = _lowest(hashes, rows, fraction)
    if len(codes) and not chosen.any():
        raise InvalidParameter(
            f"validation would have 0 of {len(codes):,} rows: the share is that of each class, and the target has"
            f" {len(starts) + 1:,} classes",
            hint=f"Write '{fraction:g} not stratified' for a share of all rows, or name another target.",
        )
    return _both_sides(chosen)


def by_group(hashes: Hashes, fraction: float) -> Flags:
    """Return which rows are for validation, whole groups at a time, so that no group is on both sides.

    Groups are taken in the order of their hashes; one that would bring the share of the rows further from the fraction
    is left out. If all or none would be taken, the smallest group alone is on its side.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n,), of the seed and the group of each row.
    fraction : float

    Raises
    ------
    InvalidParameter
        If there are fewer than two groups.
    """
    groups, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    if len(groups) < 2:
        raise InvalidParameter(
            f"validation by group needs two groups or more. Received: {len(groups)}",
            hint="Name another column, or use a share such as 0.2.",
        )
    taken, n_taken, wanted = np.zeros(len(groups), np.bool_), 0, fraction * len(hashes)
    for group, n_rows in enumerate(counts.tolist()):
        if abs(n_taken + n_rows - wanted) < abs(n_taken - wanted):
            taken[group] = True
            n_taken += n_rows
    if not taken.any():
        taken[np.argmin(counts)] = True
    elif taken.all():
        taken[len(counts) - 1 - np.argmin(counts[::-1])] = False
    chosen: Flags = taken[inverse.ravel()]
    return chosen


def not_boolean(name: str) -> InvalidParameter:
    """Return the error for a validation column of another type."""
    return InvalidParameter(
        f"validation column {name!r} is not boolean", hint="Make one in a view: year >= 2024 AS held_out."
    )


def by_column(column: Numbers, name: str) -> Flags:
    """Return which rows are for validation: those where a boolean column is true.

    Raises
    ------
    InvalidParameter
        If the column is not boolean or has NULL, or one side has no rows.
    """
    if column.family != "boolean":
        raise not_boolean(name)
    if column.missing.any():
        raise InvalidParameter(
            f"validation column {name!r} is NULL in {int(column.missing.sum()):,} rows",
            hint="Set it to true for rows of the validation, to false for all others.",
        )
    return _both_sides(column.values != 0)


def by_time(column: Moments, fraction: float, name: str) -> Flags:
    """Return which rows are for validation: the last ones by a date or timestamp; rows of one moment stay together.

    Raises
    ------
    InvalidParameter
        If the column has NULL, or one side has no rows.
    """
    if column.missing.any():
        raise InvalidParameter(
            f"validation is by {name!r}, which is NULL in {int(column.missing.sum()):,} rows",
            hint="Leave such rows out by a view, or split by another column.",
        )
    n_rows = column.n_rows
    if n_rows == 0:
        return _both_sides(np.zeros(0, np.bool_))
    moments, counts = np.unique(column.values, return_counts=True)
    after = n_rows - np.cumsum(counts)  # number of rows later than each moment
    last_of_training = moments[int(np.argmin(np.abs(after - fraction * n_rows)))]
    if last_of_training == moments[-1] and len(moments) > 1:
        last_of_training = moments[-2]
    return _both_sides(column.values > last_of_training)


def _lowest(hashes: Hashes, rows: npt.NDArray[np.int64], fraction: float) -> Flags:
    """Return which of some rows have the lowest hashes; rows with equal hashes are on one side."""
    n_rows = len(rows)
    wanted = int(np.floor(fraction * n_rows + 0.5))
    mine = hashes[rows]
    if wanted <= 0:
        return np.zeros(n_rows, np.bool_)
    ordered = np.sort(mine)
    limit = ordered[wanted - 1]
    chosen: Flags = mine <= limit
    return chosen if not chosen.all() else mine < limit


def _both_sides(chosen: Flags) -> Flags:
    n_chosen = int(np.count_nonzero(chosen))
    if n_chosen == 0 or n_chosen == len(chosen):
        raise InvalidParameter(
            f"validation would have {n_chosen:,} of {len(chosen):,} rows",
            hint="Both sides need rows: use another share or column.",
        )
    return chosen


def _fraction(number: str, percent: str | None, text: str) -> float:
    return _checked(float(number) / (100 if percent else 1), text)


def _checked(fraction: float, received: str | float) -> float:
    if not 0 < fraction < 1:
        raise InvalidParameter(f"validation must be a share above 0 and below 1. Received: {received!r}", hint=_HINT)
    return fraction


def _name(written: str) -> str:
    return written[1:-1].replace('""', '"') if written.startswith('"') else written.translate(_FOLDED)
