"""The dialects of SQL that the extension is built in: one entry a kind of server; called by build_extension.py.

Lines of ``sql/`` between ``-- if NAME`` and ``-- end`` are for the dialects that ``takes`` has NAME. So a server made
from another one takes that one's lines, and has lines of its own only where it differs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """What a kind of server understands.

    Attributes
    ----------
    takes : frozenset of str
        Names of the marks whose lines are for it.
    not_in_control : tuple of str
        Parameters of our control file that its PostgreSQL does not know, and rejects.
    predictions : str
        The schema of the functions that predict for a model of a table. On Greenplum, users call others, which call
        these (`_planned` in ``madlib_mop/calls/predictions.py``).
    """

    takes: frozenset[str]
    not_in_control: tuple[str, ...] = ()
    predictions: str = "madlib_mop"


DIALECTS = {
    "postgres": Dialect(frozenset({"postgres"})),
    # PostgreSQL 12; PostgreSQL 13 added `trusted`, whose value false is the behaviour of 12
    "greenplum": Dialect(frozenset({"greenplum"}), not_in_control=("trusted",), predictions="madlib_mop_calls"),
    # PostgreSQL 14
    "cloudberry": Dialect(frozenset({"cloudberry", "greenplum"}), predictions="madlib_mop_calls"),
}
