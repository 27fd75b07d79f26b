"""Which rows of a table are kept for validation, as the argument ``validation`` says."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.hashing import RowHasher
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


def choose_validation(rule: SplitRule, rows: SourceRows, classes: Codes | None, seed: int) -> Flags:
    """Return which rows are for validation: bool (n_rows,).

    Parameters
    ----------
    rule : SplitRule
    rows : SourceRows
    classes : numpy.ndarray or None
        The class of each row, int32; None for a regression.
    seed : int
        Of the hashes of groups.
    """
    fraction = rule.fraction if rule.fraction is not None else 0.0
    if rule.column is None:
        hashes = rows.hashes[:, 0]
        if rule.stratified and classes is not None:
            return stratified(hashes, classes, fraction)
        return by_hash(hashes, fraction)
    column = rows.columns[rule.column]
    if rule.by == BY_GROUP:
        folded = (0,) if rule.column in rows.folded else ()
        return by_group(RowHasher(seed).of([column], folded)[:, 0], fraction)  # NULL is a value of its own
    if rule.by == BY_TIME:
        if not isinstance(column, Moments) or column.family != "moment":
            raise InvalidParameter(
                f"validation is by {rule.column!r}, which is no date or timestamp",
                hint="Name a date or timestamp column, or split by a boolean column of a view.",
            )
        return by_time(column, fraction, rule.column)
    assert rule.by == BY_COLUMN, "there is no other rule with a column"
    if not isinstance(column, Numbers):
        raise not_boolean(rule.column)
    return by_column(column, rule.column)


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
