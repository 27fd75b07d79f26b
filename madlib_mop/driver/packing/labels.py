"""The argument labels of the preprocessors (one-hot or class index), and the NOTICE about classes."""

from dataclasses import replace

from madlib_mop.driver.packing.columns import ColumnToPack
from madlib_mop.driver.packing.tables import Classes, DistinctValues
from madlib_mop.errors import InvalidParameter

ONE_HOT, INDEX = "one-hot", "index"
_N_SHOWN = 20
_MANY_NUMBERS = 30
_FLOATS = ("float4", "float8", "numeric")
_INTEGERS = ("int2", "int4", "int8")


def read_labels(text: str | None, y_names: list[str]) -> list[bool]:
    """Return for each dependent column whether rows get their class index.

    Parameters
    ----------
    text : str or None
        ``one-hot`` or ``index``: one for all columns, or a comma-separated list.
    y_names : list of str

    Raises
    ------
    InvalidParameter
    """
    words = [word.strip().lower().replace("_", "-") for word in (text or ONE_HOT).split(",")]
    if any(word not in (ONE_HOT, INDEX) for word in words) or len(words) not in (1, len(y_names)):
        raise InvalidParameter(
            f"labels must be 'one-hot' or 'index', once for all or once for each of the {len(y_names)} dependent "
            f"columns."
            f" Received: {text!r}",
            hint="'index' packs the number of the class: use it with sparse losses, or with one unit for two classes.",
        )
    return [word == INDEX for word in (words * len(y_names) if len(words) == 1 else words)]


def in_form(classes: Classes, as_index: bool, column: ColumnToPack) -> Classes:
    """Return classes in the requested form. Raises InvalidParameter if there is only one class."""
    if as_index and classes.width < 2:
        raise InvalidParameter(
            f"labels => 'index' needs two classes or more; column {column.name!r} has {classes.width}",
            hint="num_classes => '{2}' reserves a class that has no rows.",
        )
    return replace(classes, as_index=as_index)


def not_classes(column: ColumnToPack) -> InvalidParameter:
    """Return the error for a column without classes."""
    return InvalidParameter(
        f"labels => 'index' is for label columns; {column.name!r} is packed unchanged ({column.column.type_sql})",
        hint="Omit labels; num_classes => '{}' packs numbers unchanged.",
    )


def classes_notice(column: ColumnToPack, found: DistinctValues) -> str:
    """Return the NOTICE about a column's classes: their rows, and likely mistakes."""
    n = len(found.texts)
    shown = [
        f"{'NULL' if value is None else value} ({count})"
        for value, count in zip(found.texts[:_N_SHOWN], found.counts, strict=False)
    ]
    text = f"column {column.name!r} has {n} class{'' if n == 1 else 'es'} (rows): {', '.join(shown)}"
    if n > _N_SHOWN:
        text += ", ..."
    if found.texts[0] is None:
        text += (
            f"; NULL is a class of its own, with {found.counts[0]} rows: if NULL means a missing label, exclude these"
            " rows with a view"
        )
    kind = column.column.type_name
    if (kind in _FLOATS and n > 2) or (kind in _INTEGERS and n > _MANY_NUMBERS):
        text += f"; {n} numbers became {n} classes: for regression, use num_classes => '{{}}'"
    return text
