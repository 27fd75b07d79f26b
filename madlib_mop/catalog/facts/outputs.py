"""Reads which output table a run has; called by the client and by trackers."""

from dataclasses import dataclass

from madlib_mop.catalog.facts.shared import Fetch
from madlib_mop.catalog.names import Relation

_OUTPUT = """
SELECT r.plan #>> '{output,schema}', r.plan #>> '{output,name}', c.oid IS NOT NULL,
       EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
               WHERE a.attrelid = c.oid AND a.attname = 'mst_key' AND NOT a.attisdropped),
       pg_catalog.clock_timestamp() < r.ended_at + interval '1 minute'
FROM madlib_mop.run AS r
LEFT JOIN (pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid)
ON n.nspname = r.plan #>> '{output,schema}' AND c.relname = r.plan #>> '{output,name}'
WHERE r.run_id = %s
"""


@dataclass(frozen=True, slots=True)
class RunOutput:
    """The output table of a run.

    Attributes
    ----------
    table : Relation
    is_there : bool
    has_keys : bool
        Whether it has a column ``mst_key``: the table of ``madlib_keras_fit`` has one model and no such column.
    just_ended : bool or None
        Whether the run has ended within the last minute; None if it has not ended.
    """

    table: Relation
    is_there: bool
    has_keys: bool
    just_ended: bool | None


def read_output(fetch: Fetch, run_id: int) -> RunOutput | None:
    """Return the output table of a run; None if there is no such run for the role."""
    for schema, name, is_there, has_keys, just_ended in fetch(_OUTPUT, [run_id]):
        return RunOutput(Relation(schema, name), is_there, has_keys, just_ended)
    return None
