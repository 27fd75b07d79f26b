"""Which rows of a table are held out, as the arguments ``validation`` and ``test`` say."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.hashing import Hashes, RowHasher
from madlib_mop.columns.proposals.specification import other_names
from madlib_mop.columns.raw import Codes, Levels, Moments, Numbers
from madlib_mop.columns.splits import (
    BY_COLUMN,
    BY_GROUP,
    BY_TIME,
    SplitRule,
    by_column,
    by_group,
    by_hash,
    by_time,
    checked_test,
    not_boolean,
    read_split,
    split_by_share,
    stratified,
)
from madlib_mop.driver.columns.rows import SourceRows
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.errors import InvalidParameter, UndefinedColumn

Flags = npt.NDArray[np.bool_]
#: What JSON, in which arguments arrive, has for numbers that are not finite.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def split_rule(validation: float | str | None, source: SourceTable) -> SplitRule | None:
    """Return the rule of the argument; None where nothing is kept for validation.

    Raises
    ------
    UnreadableText, InvalidParameter
        If it is no rule.
    UndefinedColumn
        If it names a column that cannot be read.
    """
    if validation is None:
        return None
    names = [field.name for field in source.fields]
    if isinstance(validation, str) and validation in _NOT_FINITE and validation.lower() not in names:
        validation = float(validation)
    rule = read_split(validation) if isinstance(validation, str) else split_by_share(validation)
    if rule.column is not None and rule.column not in names:
        raise UndefinedColumn(
            f"validation: {source.relation} has no column {rule.column!r} that can be read. Received: {validation!r}",
            hint=other_names(rule.column, names, is_folded=True),
        )
    return rule


def share_of_test(test: float | str | None, rule: SplitRule | None) -> float | None:
    """Return the share of the argument ``test``; None where nothing is kept for a test.

    Raises
    ------
    InvalidParameter
        If it is no share, or leaves no rows for training beside those of the rule for validation.
    """
    return None if test is None else checked_test(float(test), rule)


def choose_held_out(
    rule: SplitRule | None, test: float | None, rows: SourceRows, classes: Codes | None, seed: int
) -> tuple[Flags | None, Flags | None]:
    """Return which rows are for validation, and which are for a test: bool (n_rows,); None for what is not asked for.

    No row is in both, and rows that stay together for validation (equal rows, groups, moments) do for the test too.

    Parameters
    ----------
    rule : SplitRule or None
        For validation.
    test : float or None
        Share for the test.
    rows : SourceRows
    classes : numpy.ndarray or None
        The class of each row, int32; None for a regression.
    seed : int
        Of the hashes of groups.
    """
    if test is None:
        return (None if rule is None else _validation(rule, rows, classes, seed)), None
    if rule is not None and rule.by == BY_TIME:
        last = by_time(_moments(rows, rule), test, str(rule.column), what="test")
        return _validation(rule, rows, classes, seed, ~last), last
    validation = None if rule is None else _validation(rule, rows, classes, seed)
    free = np.ones(rows.n_rows, np.bool_) if validation is None else ~validation
    if rule is not None and rule.by == BY_GROUP:
        return validation, by_group(_groups(rows, rule, seed), test, free)
    hashes, is_stratified = rows.hashes[:, 0], rule is None or rule.by == BY_COLUMN or rule.stratified
    if is_stratified and classes is not None:
        return validation, stratified(hashes, classes, test, free)
    return validation, by_hash(hashes, test, free)


def _validation(
    rule: SplitRule, rows: SourceRows, classes: Codes | None, seed: int, before_test: Flags | None = None
) -> Flags:
    """Return which rows are for validation; with ``before_test``, those of a split by time are among these."""
    fraction = rule.fraction if rule.fraction is not None else 0.0
    if rule.column is None:
        hashes = rows.hashes[:, 0]
        if rule.stratified and classes is not None:
            return stratified(hashes, classes, fraction)
        return by_hash(hashes, fraction)
    column = rows.columns[rule.column]
    if rule.by == BY_GROUP:
        return by_group(_groups(rows, rule, seed), fraction)
    if rule.by == BY_TIME:
        return by_time(_moments(rows, rule), fraction, rule.column, before_test)
    assert rule.by == BY_COLUMN, "there is no other rule with a column"
    if not isinstance(column, Numbers):
        raise not_boolean(rule.column)
    return by_column(column, rule.column)


def _groups(rows: SourceRows, rule: SplitRule, seed: int) -> Hashes:
    """Return a hash of each row's group: uint64 (n_rows,). NULL is a group of its own."""
    folded = (0,) if rule.column in rows.folded else ()
    return RowHasher(seed).of([rows.columns[str(rule.column)]], folded)[:, 0]


def _moments(rows: SourceRows, rule: SplitRule) -> Moments:
    """Return the column by which the rows are split by time. Raises InvalidParameter if it has no moments."""
    column = rows.columns[str(rule.column)]
    if not isinstance(column, Moments) or column.family != "moment":
        raise InvalidParameter(
            f"validation is by {rule.column!r}, which is no date or timestamp",
            hint="Name a date or timestamp column, or split by a boolean column of a view.",
        )
    return column


def class_codes(rows: SourceRows, targets: Sequence[str]) -> Codes:
    """Return one code for each combination of the values of these targets, which are classes, int32."""
    codes: npt.NDArray[np.int64] | None = None
    for name in targets:
        column = rows.columns[name]
        if isinstance(column, Levels):
            values, n_values = column.codes.astype(np.int64) + 1, len(column.levels) + 1
        else:
            assert isinstance(column, Numbers), "other columns have no classes"
            distinct, values = np.unique(np.where(column.missing, np.nan, column.values), return_inverse=True)
            n_values = len(distinct)
        codes = values if codes is None else np.unique(codes * n_values + values, return_inverse=True)[1]
    assert codes is not None, "there is a target"
    return codes.astype(np.int32)
