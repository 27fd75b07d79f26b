"""Proposes what is done with each column of a table, with a sentence that says why; the start of ``pack_columns``."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from madlib_mop.columns.families import FAMILIES, families_of_kind
from madlib_mop.columns.proposals.guesses import ImageForm, guess_images
from madlib_mop.columns.proposals.kinds import (
    BOOLEAN,
    CATEGORY,
    CLASSIFICATION,
    NUMBER,
    REGRESSION,
    TARGET,
    TASKS,
    VECTOR,
    ColumnSpec,
    TableColumn,
)
from madlib_mop.columns.proposals.names import sql_name
from madlib_mop.columns.proposals.specification import default_input, ignored, missing_column
from madlib_mop.columns.proposals.statistics import Statistics
from madlib_mop.columns.records import reader_of
from madlib_mop.errors import InvalidParameter

_N_EXAMPLES = 5
_MAX_EXAMPLE = 60
#: An integer target with at most this number of distinct values is a classification target.
_CLASSES = 10
#: Bits of a positive integer.
_MOST_BITS = 31
_EXPRESSIONS = {
    "json": "({name}->>'key')::float8",
    "jsonb": "({name}->>'key')::float8",
    "xml": "(xpath('/path/text()', {name}))[1]::text::float8",
    "hstore": "({name}->'key')::float8",
    "point": "{name}[0]",
    "int4range": "upper({name}) - lower({name})",
    "daterange": "upper({name}) - lower({name})",
    "money": "{name}::numeric",
    "bit": "{name}::int",
    "tsvector": "length({name})",
}


@dataclass(frozen=True)
class CountedColumn:
    """A column of the source table and what was counted in it.

    Attributes
    ----------
    name, sql_type : str
        As the catalog has them.
    family : str or None
        How its values are read; None for a type that is not read, such as jsonb.
    statistics : Statistics or None
        None where ``family`` is None, and of a column whose values were not read.
    labels : tuple of str or None
        Of an enum: its labels, in their order.
    images : ImageForm or None
        Of bytea: the form of its images; None if the values are no images (`form_of_images`).
    reader : str or None
        What `reader_of` gives for its type, or for the base type of its domain; None: what it gives for ``sql_type``.
    unusable : str or None
        Why its values could not be read, with a row: the text after the column's name.
    """

    name: str
    sql_type: str
    family: str | None
    statistics: Statistics | None
    labels: tuple[str, ...] | None = None
    images: ImageForm | None = None
    reader: str | None = None
    unusable: str | None = None


def propose(
    columns: Sequence[CountedColumn],
    dependent: Sequence[str],
    exclude: Sequence[str] = (),
    counted: str = "rows",
    classes: Collection[str] | None = None,
) -> list[ColumnSpec]:
    """Return a proposal for each column of a table, in their order.

    Parameters
    ----------
    columns : sequence of CountedColumn
    dependent : sequence of str
        The targets.
    exclude : sequence of str
        Columns to ignore, by the caller's wish.
    counted : str
        Which rows were counted, for errors: ``rows`` or ``training rows``.
    classes : collection of str or None
        The targets whose values are classes: what `targets_of_classes` found, maybe in more rows. None: it decides.

    Raises
    ------
    UndefinedColumn
        If ``dependent`` or ``exclude`` has a name that the table has not.
    InvalidParameter
        If no target is named, one is named twice or excluded, or a target cannot be trained.
    """
    check_targets([TableColumn(c.name, c.sql_type, c.family) for c in columns], dependent, exclude)
    known = targets_of_classes(columns, dependent) if classes is None else classes
    return [
        _target(column, counted, column.name in known)
        if column.name in dependent
        else _input(column, column.name in exclude)
        for column in columns
    ]


def targets_of_classes(
    columns: Sequence[CountedColumn], dependent: Sequence[str], task: str | None = None
) -> frozenset[str]:
    """Return the targets whose values are classes; the others are numbers, the targets of a regression.

    This is the only place that decides it. Without a task, texts and booleans are classes, so are integers with at most
    10 distinct values, and other numbers if they have at most 2 distinct values, which are whole.

    Parameters
    ----------
    columns : sequence of CountedColumn
        At least the targets, counted in all rows.
    dependent : sequence of str
        The targets.
    task : str or None
        One of `TASKS`, which `check_task` has checked: what all targets are.
    """
    return frozenset(c.name for c in columns if c.name in dependent and _has_classes(c, task))


def _has_classes(column: CountedColumn, task: str | None) -> bool:
    if task is not None:
        return task == CLASSIFICATION
    if column.family is not None and FAMILIES[column.family].has_classes:
        return True
    statistics = column.statistics
    if column.family != "number" or statistics is None or not statistics.distinct_is_exact:
        return False
    return statistics.is_integral and statistics.n_distinct <= (_CLASSES if _is_integer(column) else 2)


def check_task(columns: Sequence[TableColumn], dependent: Sequence[str], task: str | None) -> None:
    """Raise InvalidParameter if a target's type cannot be what the argument ``task`` says."""
    kinds = {CLASSIFICATION: CATEGORY, REGRESSION: NUMBER}
    for column in columns:
        if task is None or column.name not in dependent or column.family in families_of_kind(kinds[task]):
            continue
        other = next(other for other in TASKS if other != task)
        raise InvalidParameter(
            f"task is {task!r}, but dependent column {column.name!r} is of type {column.sql_type}",
            hint=f"Use task => '{other}', leave task out, or cast the column in a view.",
        )


def check_targets(columns: Sequence[TableColumn], dependent: Sequence[str], exclude: Sequence[str] = ()) -> None:
    """Check the names of a proposal and the types of its targets. Raises as `propose` does."""
    names = [column.name for column in columns]
    for name in [*dependent, *exclude]:
        if name not in names:
            raise missing_column(name, names, is_folded=name in dependent)
    if not dependent:
        raise InvalidParameter("dependent is missing", hint="Name the column to be predicted.")
    for name in dependent:
        if list(dependent).count(name) > 1:
            raise InvalidParameter(f"column {name!r} is twice in dependent", hint="Name each column once.")
        if name in exclude:
            raise InvalidParameter(
                f"column {name!r} is in dependent and in exclude", hint="Remove it from one of the two."
            )
    for column in columns:
        if column.name in dependent and (column.family is None or FAMILIES[column.family].targets is None):
            *some, last = (family.targets for family in FAMILIES.values() if family.targets is not None)
            raise InvalidParameter(
                f"dependent column {column.name!r} is of type {column.sql_type}, which cannot be predicted",
                hint=f"Targets are {', '.join(some)} and {last}. Cast the column in a view.",
            )


def _input(column: CountedColumn, excluded: bool) -> ColumnSpec:
    guess = _guess(column)
    reason = "Named in exclude." if excluded else _why_ignored(column)
    return guess if reason is None else ignored(guess, reason)


def _guess(column: CountedColumn) -> ColumnSpec:
    """Return the proposal of an input; where its values were not read, the defaults of its type."""
    spec, statistics = _counted(column), column.statistics
    if column.family is None:
        return spec
    if statistics is None:
        return default_input(column.name, column.sql_type, column.family)
    if column.images is not None:
        return guess_images(spec, statistics, column.images)
    guess = FAMILIES[column.family].guess
    return guess(replace(spec, levels=column.labels), statistics) if statistics.n_rows else spec


def _why_ignored(column: CountedColumn) -> str | None:
    """Return the sentence why nothing can be learned from a column; None if something can."""
    statistics = column.statistics
    if column.unusable is not None:
        return f"Cannot be read: it {column.unusable}. Correct such rows in a view."
    if column.family is None or statistics is None:
        return f"Type {column.sql_type} is not read. " + _expression(column)
    if statistics.n_rows == 0:
        return "The table has no rows."
    if statistics.n_rows == statistics.n_missing:
        return "All values are NULL."
    if statistics.special:
        return f"Not finite: {_special(statistics)}. Replace such values by NULL in a view."
    if statistics.width == 0:
        return "All arrays are empty."
    n_elements = (statistics.width or 0) * (statistics.n_rows - statistics.n_missing)
    if 2 * statistics.n_absent > n_elements:
        return (
            f"Arrays of up to {statistics.width} numbers, most of which are absent. Set role to input to use them with"
            " zeros in their place."
        )
    is_counted = statistics.distinct_is_exact or column.family == VECTOR  # few distinct vectors are counted by hashes
    if statistics.n_distinct == 1 and is_counted and not statistics.n_missing:
        return f"Constant: all rows have {_shown(statistics)}."
    if column.family == "blob" and column.images is None:
        return "Bytes that are no JPEG or PNG image. Decode them in a view."
    key_reason = FAMILIES[column.family].key_reason
    return None if key_reason is None else key_reason(column.name, statistics)


def _target(column: CountedColumn, counted: str, has_classes: bool) -> ColumnSpec:
    """Return the proposal of a target: classes, or a number for regression."""
    statistics, family = column.statistics, column.family
    assert statistics is not None, "columns of these types are counted"
    spec = replace(
        _counted(column), role=TARGET, impute="error", indicator=False, encode="one_hot", scale="none"
    )
    if statistics.n_rows == statistics.n_missing:
        raise InvalidParameter(
            f"dependent column {column.name!r} has no values in {statistics.n_rows:,} {counted}",
            hint="Name a column that has values.",
        )
    n_distinct = statistics.n_distinct
    if has_classes:
        if family == "boolean":
            return replace(spec, kind=BOOLEAN, reason="Target with two classes: it is boolean.")
        why = f"Target with {_many(n_distinct, statistics)} classes"
        if family == "number":
            why += (
                ": each number is one. For a regression use task => 'regression', or set kind to number,"
                " encode to identity and scale to standard"
            )
        return replace(spec, kind=CATEGORY, levels=column.labels, reason=f"{why}.")
    return replace(
        spec,
        kind=NUMBER,
        encode="identity",
        scale="standard",
        reason=f"Target of a regression: {_many(n_distinct, statistics)} distinct numbers. They are standardised, and"
        " predictions are brought back.",
    )


def _is_integer(column: CountedColumn) -> bool:
    return (column.reader or reader_of(column.sql_type)) in ("int2", "int4", "int8")


def _counted(column: CountedColumn) -> ColumnSpec:
    """Return a row with a column's name, type and counts."""
    statistics = column.statistics
    spec = ColumnSpec(column.name, column.sql_type, kind=NUMBER)
    if statistics is None:
        return spec
    return replace(
        spec,
        n_rows=statistics.n_rows,
        n_null=statistics.n_missing,
        n_distinct=statistics.n_distinct,
        minimum=None if statistics.minimum is None else statistics.text(statistics.minimum),
        maximum=None if statistics.maximum is None else statistics.text(statistics.maximum),
        examples=tuple(_short(str(example)) for example in list(statistics.examples)[:_N_EXAMPLES]),
    )


def _expression(column: CountedColumn) -> str:
    matched = re.fullmatch(r"([\w ]+)(?:\((\d+)\))?", column.sql_type)
    base, width = matched.groups(default="1") if matched else ("", "1")
    is_wide = base == "bit" and int(width) > _MOST_BITS
    pattern = "{name}::text" if is_wide else _EXPRESSIONS.get(base, "{name}::text")
    return f"Take what you need from it in a view, for example {pattern.format(name=sql_name(column.name))}."


def _special(statistics: Statistics) -> str:
    """Return how many rows have which value that is not finite; large numerics are infinities as float64."""
    counts = ", ".join(
        f"{n_rows:,} row{' has' if n_rows == 1 else 's have'} {text}" for text, n_rows in statistics.special.items()
    )
    is_numeric = statistics.family in ("number", "vector")
    return f"as {'double precision' if statistics.family == 'number' else 'real'}, {counts}" if is_numeric else counts


def _shown(statistics: Statistics) -> str:
    return repr(_short(str(statistics.examples[0]))) if statistics.examples else "the same value"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_EXAMPLE else text[: _MAX_EXAMPLE - 3] + "..."


def _many(number: int, statistics: Statistics) -> str:
    return f"{number:,}" if statistics.distinct_is_exact else f"about {number:,}"
