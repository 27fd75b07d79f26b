"""Reads what people, policies and searches did to a run."""

from madlib_mop.catalog.facts import CommandFacts, SearchEventFacts
from madlib_mop.catalog.facts.reading.shared import FactsReader

#: Commands that are listed, the first ones.
MAX_COMMANDS = 500
#: Decisions of a search in its figure and table, evenly chosen.
MAX_DECISIONS = 1500

_COMMANDS = """
SELECT s.command_id, s.command, s.arguments::pg_catalog.text AS arguments, s.source,
    s.issued_by::pg_catalog.text AS issued_by,
       EXTRACT(epoch FROM s.issued_at - r.created_at)::pg_catalog.float8 AS at_s, s.state, s.detail, s.mst_keys,
       count(*) OVER () AS n
FROM madlib_mop.steering s JOIN madlib_mop.run r ON r.run_id = s.run_id
WHERE s.run_id = $1::pg_catalog.int8 ORDER BY s.command_id LIMIT $2::pg_catalog.int8
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


def read_commands(reader: FactsReader, run_id: int) -> tuple[tuple[CommandFacts, ...], int]:
    """Return the first commands to a run, and how many there are."""
    rows = reader.rows(_COMMANDS, run_id, MAX_COMMANDS)
    commands = []
    for row in rows:
        given = {name: value for name, value in row.items() if name not in ("n", "mst_keys")}
        commands.append(CommandFacts(**given, mst_keys=tuple(row["mst_keys"] or ())))
    return tuple(commands), int(rows[0]["n"]) if rows else 0


def read_search(reader: FactsReader, run_id: int) -> tuple[tuple[SearchEventFacts, ...], int, int]:
    """Return the decisions of a run's search, evenly chosen if there are many, and how many there are.

    The last number is that of results: events with a loss, whatever the search decided on them.
    """
    rows = reader.rows(_SEARCH, run_id, MAX_DECISIONS)
    names = SearchEventFacts.__dataclass_fields__
    events = tuple(SearchEventFacts(**{n: row[n] for n in names}) for row in rows)
    return (events, int(rows[0]["n"]), int(rows[0]["n_results"])) if rows else ((), 0, 0)
