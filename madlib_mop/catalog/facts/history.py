"""What people, policies and searches did to a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from madlib_mop.catalog.facts.shared import FactsReader, Fetch, moment


@dataclass(frozen=True, slots=True)
class SearchEventFacts:
    """One decision of a search, or an event without one.

    Attributes
    ----------
    ordinal : int
    at_s : float
    event : str
    mst_key, epoch : int or None
        Of the event.
    loss : float or None
    action : str or None
        ``add``, ``extend``, ``stop``, ``exploit`` or ``finish``.
    action_key, until_epoch, source_key : int or None
    reason : str or None
    """

    ordinal: int
    at_s: float
    event: str
    mst_key: int | None
    epoch: int | None
    loss: float | None
    action: str | None
    action_key: int | None
    until_epoch: int | None
    source_key: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """One command to the run, and what became of it.

    Attributes
    ----------
    command_id : int
    command : str
    arguments : mapping
    source : str
        ``person`` or ``policy``.
    issued_by : str
    issued_at : datetime
    state : str
    detail : str or None
    mst_keys : tuple of int
    """

    command_id: int
    command: str
    arguments: Mapping[str, Any]
    source: str
    issued_by: str
    issued_at: datetime
    state: str
    detail: str | None
    mst_keys: tuple[int, ...] = ()


#: Commands of a report.
MAX_COMMANDS = 500
#: Decisions of a search in its figure and table, evenly chosen.
MAX_DECISIONS = 1500

_COMMANDS = """
SELECT command_id, command, arguments::pg_catalog.text AS arguments, source, issued_by::pg_catalog.text AS issued_by,
       EXTRACT(epoch FROM issued_at)::pg_catalog.float8 AS issued_at, state, detail, mst_keys,
       pg_catalog.count(*) OVER () AS n
FROM madlib_mop.steering WHERE run_id = %s ORDER BY command_id DESC LIMIT %s
"""
# The first and the last decision and the lowest loss are always chosen.
_SEARCH = """
SELECT y.* FROM (
    SELECT x.*, count(*) OVER () AS n, row_number() OVER (ORDER BY x.ordinal, x.action_number) AS number,
           row_number() OVER (ORDER BY x.event <> 'result', x.loss NULLS LAST, x.ordinal, x.action_number) AS place,
           (sum(x.is_result) OVER ())::pg_catalog.int8 AS n_results
    FROM (SELECT h.ordinal, h.seconds AS at_s, h.event, h.mst_key, h.epoch,
                 CASE WHEN h.loss > '-Infinity' AND h.loss < 'Infinity' THEN h.loss END AS loss, h.action,
                 h.action_mst_key AS action_key, h.until_epoch, h.source_mst_key AS source_key, h.reason,
                 h.action_number,
                 CASE WHEN h.event = 'result' AND h.loss > '-Infinity' AND h.loss < 'Infinity'
                           AND coalesce(h.action_number, 1) = 1 THEN 1 ELSE 0 END AS is_result
          FROM madlib_mop.search_history h WHERE h.run_id = $1::pg_catalog.int8) x) y
WHERE y.number % ((y.n + $2::pg_catalog.int8 - 1) / $2::pg_catalog.int8) = 0 OR y.number = 1 OR y.number = y.n
    OR y.place = 1
ORDER BY y.number
"""


def read_commands(fetch: Fetch, run_id: int, limit: int) -> tuple[tuple[CommandFacts, ...], int]:
    """Return the newest commands to a run, the newest first, and how many there are."""
    rows = fetch(_COMMANDS, [run_id, limit])
    commands = tuple(
        CommandFacts(number, command, json.loads(given), source, by, moment(at), state, detail, tuple(keys or ()))
        for number, command, given, source, by, at, state, detail, keys, _ in rows
    )
    return commands, rows[0][-1] if rows else 0


def read_search(reader: FactsReader, run_id: int) -> tuple[tuple[SearchEventFacts, ...], int, int]:
    """Return the decisions of a run's search, evenly chosen if there are many, and how many there are.

    The last number is that of results: events with a loss, whatever the search decided on them.
    """
    rows = reader.rows(_SEARCH, run_id, MAX_DECISIONS)
    names = SearchEventFacts.__dataclass_fields__
    events = tuple(SearchEventFacts(**{n: row[n] for n in names}) for row in rows)
    return (events, int(rows[0]["n"]), int(rows[0]["n_results"])) if rows else ((), 0, 0)
