"""Reads what people, policies and searches did to a run."""

from madlib_mop.reports.facts import CommandFacts, SearchEventFacts
from madlib_mop.reports.reader import Reader

#: Commands that are listed, the first ones.
MAX_COMMANDS = 500
#: Decisions of a search in its figure and table, evenly chosen.
MAX_DECISIONS = 1500

_COMMANDS = """
SELECT s.command_id, s.command, s.arguments::text AS arguments, s.source, s.issued_by::text AS issued_by,
       EXTRACT(epoch FROM s.issued_at - r.created_at)::float8 AS at_s, s.state, s.detail, s.mst_keys,
       count(*) OVER () AS n
FROM madlib_mop.steering s JOIN madlib_mop.run r ON r.run_id = s.run_id
WHERE s.run_id = $1::bigint ORDER BY s.command_id LIMIT $2::bigint
"""
_SEARCH = """
SELECT x.* FROM (
    SELECT h.ordinal, h.seconds AS at_s, h.event, h.mst_key, h.epoch,
           CASE WHEN h.loss > '-Infinity' AND h.loss < 'Infinity' THEN h.loss END AS loss, h.action,
           h.action_mst_key AS action_key, h.until_epoch, h.source_mst_key AS source_key, h.reason,
           count(*) OVER () AS n, row_number() OVER (ORDER BY h.ordinal, h.action_number) AS number
    FROM madlib_mop.search_history h WHERE h.run_id = $1::bigint) x
WHERE x.number % greatest(1, -(-x.n / $2::bigint)) = 0 OR x.number = 1 OR x.number = x.n
ORDER BY x.number LIMIT $2::bigint + 2
"""


def read_commands(reader: Reader, run_id: int) -> tuple[tuple[CommandFacts, ...], int]:
    """Return the first commands to a run, and how many there are."""
    rows = reader.rows(_COMMANDS, run_id, MAX_COMMANDS)
    commands = []
    for row in rows:
        given = {name: value for name, value in row.items() if name not in ("n", "mst_keys")}
        commands.append(CommandFacts(**given, mst_keys=tuple(row["mst_keys"] or ())))
    return tuple(commands), int(rows[0]["n"]) if rows else 0


def read_search(reader: Reader, run_id: int) -> tuple[tuple[SearchEventFacts, ...], int]:
    """Return the decisions of a run's search, evenly chosen if there are many, and how many there are."""
    rows = reader.rows(_SEARCH, run_id, MAX_DECISIONS)
    names = SearchEventFacts.__dataclass_fields__
    return tuple(SearchEventFacts(**{n: row[n] for n in names}) for row in rows), int(rows[0]["n"]) if rows else 0
