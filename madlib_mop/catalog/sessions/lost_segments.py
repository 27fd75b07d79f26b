"""Errors of Greenplum that mean that a session has lost its process at a segment.

Called for the driver's own session and for those of workers. The error bypasses PL/Python's frames, and the next call
of a Python function in this session would crash the coordinator: such a session is never used again.
"""

import re

import psycopg2

from madlib_mop.errors import read_server_error

_LOST_SEGMENT = "58M01"
_INTERNAL = "XX000"
#: Source files of the code that sends queries to segments. Some of its errors about a lost process have no SQLSTATE of
#: their own; their texts depend on the version.
_DISPATCHER = re.compile(r"(.*/)?cdb(disp|gang|targeteddispatch)\w*\.c")


def lost_at_segment(error: psycopg2.Error) -> bool:
    """Return whether an error means that its session has lost its process at a segment."""
    found = read_server_error(error)
    if found.sqlstate != _INTERNAL:
        return found.sqlstate == _LOST_SEGMENT
    return _DISPATCHER.fullmatch(found.source_file) is not None
