"""How many segments there are, and which get data: the setting ``madlib_mop.segments`` and distribution_rules."""

import os
from dataclasses import dataclass

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.driver.caller import CallerSession
from madlib_mop.driver.gpus import require_gpus
from madlib_mop.errors import InvalidParameter, UndefinedColumn

SETTING = "madlib_mop.segments"
MAX_SEGMENTS = 1024
_INTEGER_TYPES = ("int2", "int4", "int8")


@dataclass(frozen=True)
class Distribution:
    """Which segments get data.

    Attributes
    ----------
    segments : tuple of int
        Ascending, at least one; 0-based, values of ``__dist_key__``.
    rules, gpu_config : str
        As the summary table shows them.
    """

    segments: tuple[int, ...]
    rules: str
    gpu_config: str


def count_segments(session: CallerSession) -> int:
    """Give the number of segments: the setting, or where it is not set the cores of this host.

    Raises
    ------
    InvalidParameter
        If the setting is not a number from 1 to 1024.
    """
    value = session.caller_setting(SETTING)
    if value is None or not value.strip():
        return len(os.sched_getaffinity(0))
    if not value.strip().isdecimal() or not 1 <= int(value) <= MAX_SEGMENTS:
        raise InvalidParameter(
            f"the setting {SETTING} must be a number from 1 to {MAX_SEGMENTS}. Received: {value!r}",
            hint=f"SET {SETTING} = 2; or RESET it, for as many segments as the server has cores.",
        )
    return int(value)


def choose_segments(session: CallerSession, rules: str | None) -> Distribution:
    """Read distribution_rules.

    Parameters
    ----------
    session : CallerSession
    rules : str or None
        ``all_segments`` (default), ``gpu_segments``, or a table with a column ``dbid``: dbid k is segment k - 1.
    """
    n_segments = count_segments(session)
    everywhere = tuple(range(n_segments))
    text = (rules or "").strip() or "all_segments"
    if text == "all_segments":
        return Distribution(everywhere, text, text)
    if text == "gpu_segments":
        require_gpus("distribution_rules => 'gpu_segments'")
        return Distribution(everywhere, text, _config(everywhere))
    segments = _listed_segments(session, text, n_segments)
    return Distribution(segments, text, _config(segments))


def _listed_segments(session: CallerSession, text: str, n_segments: int) -> tuple[int, ...]:
    table = session.relation(text, "distribution_rules")
    known = {column.name: column for column in session.columns(table)}
    if "dbid" not in known or known["dbid"].type_name not in _INTEGER_TYPES:
        raise UndefinedColumn(
            f"distribution_rules: table {table} has no integer column 'dbid'",
            hint="Give 'all_segments', 'gpu_segments', or a table with one row a segment: dbid 1 is segment 0.",
        )
    query = statement("SELECT DISTINCT t.{dbid} AS dbid FROM {table} t", dbid=Identifier("dbid"), table=table)
    dbids = [row["dbid"] for row in session.execute(query)]
    unknown = [dbid for dbid in dbids if dbid is None or not 1 <= dbid <= n_segments]
    if unknown or not dbids:
        what = f"dbid {'NULL' if unknown[0] is None else unknown[0]} is no segment" if unknown else "has no rows"
        raise InvalidParameter(
            f"distribution_rules: table {table}: {what}. Received: {text!r}",
            hint=f"There are {n_segments} segments ({SETTING}): dbid 1 to {n_segments}.",
        )
    return tuple(sorted(dbid - 1 for dbid in dbids))


def _config(segments: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, segments)) + "}"
