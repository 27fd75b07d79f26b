"""Calls and queries through a handle, with results as values and data frames; the base of `Database`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from madlib_mop.client.calling.errors import misfit
from madlib_mop.client.calling.sessions import ClientSessions, execute, own_path
from madlib_mop.client.calling.statements import call_of, scalar
from madlib_mop.client.frames.results import frame_of

if TYPE_CHECKING:
    import pandas


class Calls:
    """Calls of SQL functions, each in a transaction of its own. Threads may share a handle.

    Attributes
    ----------
    sessions : ClientSessions
        The client's sessions, for its other modules.
    """

    def __init__(self, sessions: ClientSessions):
        self.sessions = sessions

    def call(self, function: str, **arguments: Any) -> Any:
        """Call an SQL function of the library with arguments by name: those of the manual's page Arguments.

        Returns
        -------
        Any
            The function's value; a DataFrame if the function returns several columns.

        Raises
        ------
        MopError
            Before anything is done, if an argument is unknown, missing, or of another type.

        Examples
        --------
        >>> db.call("make_ensemble", model_table="m", validation_table="v", output_table="e")  # doctest: +SKIP
        """
        statement = call_of(function, arguments)
        with self.sessions.begin() as connection:
            result = execute(connection, statement.text, statement.values)
            if len(result.keys()) > 1:
                return frame_of(result)
            row = result.fetchone()
            return None if row is None or row[0] == "" else row[0]

    def query(self, sql: str, values: Sequence[object] = ()) -> "pandas.DataFrame":
        """Return the rows of your query; parameters are written ``%s``, and a percent sign ``%%`` if there are values.

        Several columns may have the same name. A statement without rows returns an empty frame.

        Raises
        ------
        InvalidParameter
            If the values do not fit the statement, or are of types that no driver converts.
        """
        given = [scalar(value) for value in values]
        with self.sessions.begin() as connection, own_path(connection):
            try:
                result = execute(connection, sql, given)
            except (IndexError, TypeError, ValueError) as error:  # psycopg2's, for parameters and values
                raise misfit(error) from None
            return frame_of(result)


def read_own(sessions: ClientSessions, statement: str, values: Sequence[object] = ()) -> "pandas.DataFrame":
    """Return the rows of a query of the library's own as a data frame."""
    with sessions.begin() as connection:
        return frame_of(execute(connection, statement, values))
