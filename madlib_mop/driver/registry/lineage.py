"""Where a model comes from: the run that trained its weights, copied into the registry; called by registering.py.

The copy stays if the run is dropped.
"""

import json
from typing import Any

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.inference.trained_by import find_run
from madlib_mop.driver.session.caller import CallerSession

_LINEAGE = """
SELECT pg_catalog.jsonb_build_object(
    'source_table', r.source_table, 'validation_table', r.validation_table, 'kind', r.kind, 'seed', r.seed,
    'parent_run_id', r.parent_run_id, 'cloned_from', m.cloned_from, 'versions', r.versions,
    'visits', coalesce((
        SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'epoch', v.epoch, 'position', v.position, 'segment_id', v.segment_id, 'ended_at', v.ended_at,
            'n_rows', v.n_rows, 'rows_digest', s.fingerprint, 'digest_in', v.digest_in, 'digest_out', v.digest_out)
            ORDER BY v.epoch, v.position)
        FROM madlib_mop.visit v LEFT JOIN madlib_mop.segment s
            ON s.run_id = v.run_id AND s.data_set = 'training' AND s.segment_id = v.segment_id
        WHERE v.run_id = m.run_id AND v.mst_key = m.mst_key AND v.epoch <= $3), '[]'))::pg_catalog.text AS lineage,
    coalesce((
        SELECT pg_catalog.jsonb_object_agg(x.data_set || '_' || x.name, x.value)
        FROM madlib_mop.metric x
        WHERE x.run_id = m.run_id AND x.mst_key = m.mst_key AND x.epoch = (
            SELECT pg_catalog.max(y.epoch) FROM madlib_mop.metric y
            WHERE y.run_id = m.run_id AND y.mst_key = m.mst_key AND y.epoch <= $3)), '{}')::pg_catalog.text AS metrics
FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
WHERE m.run_id = $1 AND m.mst_key = $2
"""
_NEWEST_RUN = "SELECT pg_catalog.max(run_id) AS run_id FROM madlib_mop.run WHERE model_output_table = $1"
_RANKED = "SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = $1 AND state <> 'failed' ORDER BY rank"


def best_key(session: CallerSession, relation: Relation, keys: list[int]) -> int | None:
    """Return the first of these models in the leaderboard of the run that wrote a table; None without such a run."""
    (row,) = session.execute(_NEWEST_RUN, [str(relation)])
    if row["run_id"] is None:
        return None
    ranked = [row["mst_key"] for row in session.execute(_RANKED, [row["run_id"]], ["bigint"])]
    return next((key for key in ranked if key in keys), None)


def lineage_of(session: CallerSession, relation: Relation, mst_key: int | None, digest: str) -> dict[str, Any]:
    """Return the columns ``run_id``, ``epoch``, ``metrics`` and ``lineage`` of a version; empty without a known run.

    Parameters
    ----------
    session : CallerSession
        Sees the runs that the caller may see.
    relation : Relation
        The output table.
    mst_key : int or None
    digest : str
        SHA-256 of the weights.
    """
    run = find_run(session, relation, mst_key, digest)
    if run is None:
        return {}
    (found,) = session.execute(_LINEAGE, [run.run_id, run.mst_key, run.epoch], ["bigint", "integer", "integer"])
    return {
        "run_id": run.run_id,
        "epoch": run.epoch,
        "metrics": json.loads(found["metrics"]),
        "lineage": json.loads(found["lineage"]),
    }
