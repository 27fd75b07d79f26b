"""Converts class values for writing: arrays of the labels' type; for packing and outputs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # drivers without tables on hosts do not need connections to hosts

    pass


_IS_ENUM = """
SELECT e.typtype = 'e' AS is_enum FROM pg_catalog.pg_type a JOIN pg_catalog.pg_type e ON e.oid = a.typelem
WHERE a.oid = pg_catalog.to_regtype($1)::pg_catalog.oid
"""


def class_parameter(session: Any, type_sql: str, text: str | None) -> tuple[Any, str]:
    """Return class values as a parameter of a statement, which casts it to their type.

    The owner of an enum may have defined a cast from text. So an enum's values are passed as elements of that type,
    read by the type's input function, and the statement's cast has no effect.

    Parameters
    ----------
    session : CallerSession
    type_sql : str
        Type of the array, as ``format_type`` writes it.
    text : str or None
        The array in PostgreSQL's text form.

    Returns
    -------
    tuple of (Any, str)
        The parameter, and its type.
    """
    rows = session.execute(_IS_ENUM, [type_sql])
    if text is None or not rows or not rows[0]["is_enum"]:
        return text, "text"
    (row,) = session.execute("SELECT $1::pg_catalog.text[] AS elements", [text])
    return row["elements"], type_sql
