"""Reads a large value through COPY in its binary format: psycopg2 reads the results of queries as text, which takes
about three times as long. Called by `madlib_mop.catalog.record`."""

import io
import struct
from collections.abc import Sequence

from psycopg2.extensions import connection

_HEADER = struct.Struct(">11s i i")  # of the format: signature, flags, length of an extension, which no server sends
_ROW = struct.Struct(">h i")  # number of fields, length of the first; or -1 after the last row


def read_value(session: connection, query: str, params: Sequence[int | None]) -> bytes | None:
    """Return the value of a query.

    Parameters
    ----------
    session : psycopg2 connection
    query : str
        A SELECT of one column of type bytea, which is never NULL, with ``%s`` for parameters; it returns at most one
        row.
    params : sequence of int or None

    Returns
    -------
    bytes or None
        None if there is no row.
    """
    copied = io.BytesIO()
    with session.cursor() as cursor:
        statement = cursor.mogrify(f"COPY ({query}) TO STDOUT (FORMAT binary)", params)
        cursor.copy_expert(statement, copied)
    content = copied.getbuffer()
    start = _HEADER.size
    if struct.unpack_from(">h", content, start) == (-1,):
        return None
    _, n_bytes = _ROW.unpack_from(content, start)
    start += _ROW.size
    return bytes(content[start : start + n_bytes])
