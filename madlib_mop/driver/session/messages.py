"""Errors about the caller's tables and session that modules of several folders raise."""

from dataclasses import replace

from madlib_mop.catalog.names import Relation
from madlib_mop.errors import InvalidParameter, MopError, NotReady, UndefinedColumn, read_server_error


def no_column(what: str, table: str, column: str, name: str | None, hint: str | None = None) -> UndefinedColumn:
    """Return the error for a table without a column; ``name`` is what the caller wrote for the table."""
    return UndefinedColumn(f"{what}: {table} has no column {column!r}. Received: {name!r}", hint=hint)


def wrong_type(
    what: str, relation: Relation, column: str, wanted: str, received: str, hint: str | None = None
) -> InvalidParameter:
    """Return the error for a column of another type than the wanted one."""
    return InvalidParameter(
        f"{what}: column {column!r} of {relation} must be of type {wanted}. Received: {received}", hint=hint
    )


def not_one_row(
    what: str, summary: Relation, n_rows: int, name: str | None, hint: str | None = None
) -> InvalidParameter:
    """Return the error for a summary that has no row, or several."""
    return InvalidParameter(f"{what}: {summary} must have one row; it has {n_rows}. Received: {name!r}", hint=hint)


def no_rows(name: str, what: str = "source_table") -> InvalidParameter:
    """Return the error for a table without rows; ``what`` is the argument that named it."""
    return InvalidParameter(f"{what} has no rows. Received: {name!r}")


def no_architecture(what: str, label: str) -> InvalidParameter:
    """Return the error for a row whose architecture is NULL."""
    return InvalidParameter(f"{what}: {label} has no architecture: model_arch is NULL")


def was_changed(what: object) -> NotReady:
    """Return the error for a table or a model that another session has changed between two queries."""
    return NotReady(f"{what} was changed while it was being read", hint="Call again.")


def record_failed(error: Exception) -> MopError:
    """Return the error for a statement of the catalog session that failed, or for the loss of this session.

    Parameters
    ----------
    error : psycopg2.Error or sqlalchemy.exc.SQLAlchemyError
    """
    found = read_server_error(getattr(error, "orig", error))
    if found.sqlstate is None or found.sqlstate.startswith("57P"):
        return NotReady(
            f"the driver has lost its session with the server: {found.first_line}",
            hint="The server's log has the reason.",
        )
    return replace(found, message=f"the server refuses a statement of the driver: {found.message}").as_error()


def session_lost(detail: str | None = None) -> NotReady:
    """Return the error for a caller's session that has ended."""
    return NotReady("the caller's session was lost", detail=detail, hint="See the server's log.")


def not_committed(what: str, relation: Relation) -> NotReady:
    """Return the error for a packed table that the caller's own transaction created."""
    return NotReady(
        f"{what}: {relation} was created in this transaction, which is not committed. Received: {relation.name!r}",
        hint="COMMIT first: the segments' workers are separate sessions and can only read committed tables.",
    )
