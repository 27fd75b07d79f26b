"""Which rows are held out, for validation or for a test, by what they contain, not by where they lie.

Packing calls it when all rows are hashed. Test rows are chosen among those that validation leaves (``free``), from the
other end of the order of hashes, so a test does not change which rows are for validation. Only a split by time takes
the last rows for the test, and those before them for validation.
"""

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


def checked_test(share: float, rule: SplitRule | None) -> float:
    """Return the argument ``test``: the share of the rows that are held out besides those of the rule.

    Raises
    ------
    InvalidParameter
        If it is not above 0 and below 1, or leaves no rows for training.
    """
    _checked(share, share, "test", "For instance test => 0.1.")
    for_validation = rule.fraction if rule is not None and rule.fraction is not None else 0.0
    if for_validation + share >= 1:
        raise InvalidParameter(
            f"validation and test leave no rows for training. Received: shares {for_validation:g} and {share:g}",
            hint="Both shares together must be below 1.",
        )
    return share


def by_hash(hashes: Hashes, fraction: float, free: Flags | None = None) -> Flags:
    """Return which rows are held out: those with the smallest hashes, or of the free ones those with the largest.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n,), of the seed and the row's content. Equal rows are on the same side.
    fraction : float
        Above 0 and below 1; of all rows.
    free : numpy.ndarray or None
        For test rows, bool (n,): the rows among which they are chosen. None: validation rows are chosen among all.

    Returns
    -------
    numpy.ndarray
        bool (n,).

    Raises
    ------
    InvalidParameter
        If one side has no rows.
    """
    return _both_sides(_held_out(hashes, np.arange(len(hashes)), fraction, free), free)


def stratified(hashes: Hashes, codes: Codes, fraction: float, free: Flags | None = None) -> Flags:
    """Return which rows are held out, with the same share of each class.

    A class of two rows or more has a row on the training side; one of fewer than 1 / ``fraction`` rows may have none
    that is held out.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n,), as for `by_hash`.
    codes : numpy.ndarray
        int32 (n,), the class of each row.
    fraction : float
        Of all rows of a class.
    free : numpy.ndarray or None
        As for `by_hash`.

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
        chosen[rows] = _held_out(hashes, rows, fraction, free)
    if len(codes) and not chosen.any():
        plainly = f"Write '{fraction:g} not stratified' for a share of all rows"
        raise InvalidParameter(
            f"{_part(free)} would have 0 of {len(codes):,} rows: the share is that of each class, and the target has"
            f" {len(starts) + 1:,} classes",
            hint=f"{plainly if free is None else 'Use a larger share'}, or name another target.",
        )
    return _both_sides(chosen, free)


def by_group(hashes: Hashes, fraction: float, free: Flags | None = None) -> Flags:
    """Return which rows are held out, whole groups at a time, so that no group is on both sides.

    Groups are taken in the order of their hashes; one that would bring the share of the rows further from the fraction
    is left out. If all or none would be taken, the smallest group alone is on its side.

    Parameters
    ----------
    hashes : numpy.ndarray
        uint64 (n,), of the seed and the group of each row.
    fraction : float
        Of all rows.
    free : numpy.ndarray or None
        As for `by_hash`. It has whole groups.

    Raises
    ------
    InvalidParameter
        If there are fewer than two groups to choose from.
    """
    among = hashes if free is None else ~hashes[free]
    groups, inverse, counts = np.unique(among, return_inverse=True, return_counts=True)
    if len(groups) < 2:
        besides = "" if free is None else " besides those for validation"
        raise InvalidParameter(
            f"{_part(free)} by group needs two groups or more{besides}. Received: {len(groups)}",
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
    if free is None:
        return chosen
    of_all = np.zeros(len(hashes), np.bool_)
    of_all[free] = chosen
    return of_all


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


def by_time(
    column: Moments, fraction: float, name: str, free: Flags | None = None, what: str = "validation"
) -> Flags:
    """Return which rows are held out: the last ones by a date or timestamp; rows of one moment stay together.

    Parameters
    ----------
    column : Moments
    fraction : float
        Of all rows.
    name : str
    free : numpy.ndarray or None
        bool (n,): the rows among which they are chosen; None: all. Test rows are chosen first, for they are the last.
    what : str
        The argument that has the share.

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
        return _both_sides(np.zeros(0, np.bool_), None, what)
    moments, counts = np.unique(column.values if free is None else column.values[free], return_counts=True)
    after = int(counts.sum()) - np.cumsum(counts)  # number of rows later than each moment
    last_of_training = moments[int(np.argmin(np.abs(after - fraction * n_rows)))]
    if last_of_training == moments[-1] and len(moments) > 1:
        last_of_training = moments[-2]
    later: Flags = column.values > last_of_training
    return _both_sides(later if free is None else later & free, free, what)


def _held_out(hashes: Hashes, rows: npt.NDArray[np.int64], fraction: float, free: Flags | None) -> Flags:
    """Return which of some rows are held out; rows with equal hashes are on one side.

    Those with the smallest hashes, or of the free ones those with the largest. Not all of them are.
    """
    among = np.ones(len(rows), np.bool_) if free is None else free[rows]
    wanted = min(int(np.floor(fraction * len(rows) + 0.5)), int(np.count_nonzero(among)))
    chosen = np.zeros(len(rows), np.bool_)
    if wanted <= 0:
        return chosen
    mine = hashes[rows[among]] if free is None else ~hashes[rows[among]]
    limit = np.sort(mine)[wanted - 1]
    first: Flags = mine <= limit
    chosen[among] = first if not first.all() else mine < limit
    return chosen


def _both_sides(chosen: Flags, free: Flags | None = None, what: str | None = None) -> Flags:
    n_chosen = int(np.count_nonzero(chosen))
    if n_chosen == 0 or n_chosen == (len(chosen) if free is None else int(np.count_nonzero(free))):
        raise InvalidParameter(
            f"{what or _part(free)} would have {n_chosen:,} of {len(chosen):,} rows",
            hint="All parts need rows: use another share or column.",
        )
    return chosen


def _part(free: Flags | None) -> str:
    """Return the argument whose rows are chosen."""
    return "validation" if free is None else "test"


def _fraction(number: str, percent: str | None, text: str) -> float:
    return _checked(float(number) / (100 if percent else 1), text)


def _checked(fraction: float, received: str | float, what: str = "validation", hint: str = _HINT) -> float:
    if not 0 < fraction < 1:
        raise InvalidParameter(f"{what} must be a share above 0 and below 1. Received: {received!r}", hint=hint)
    return fraction


def _name(written: str) -> str:
    return written[1:-1].replace('""', '"') if written.startswith('"') else written.translate(_FOLDED)
