"""Where a model comes from: the run that trained its weights, copied into the registry; called by registering.py.

The copy stays if the run is dropped.
"""

import json
from typing import Any

from madlib_mop.catalog.facts.now import read_trained
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.weights import present_digest
from madlib_mop.driver.inference.trained_by import TrainedBy, find_run
from madlib_mop.driver.session.caller import CallerSession

# Greenplum does not support a subquery that refers to a query two levels further out; so these refer to the parameters.
_LINEAGE = """
SELECT pg_catalog.jsonb_build_object(
    'source_table', r.source_table, 'validation_table', r.validation_table, 'kind', r.kind, 'seed', r.seed,
    'parent_run_id', r.parent_run_id, 'cloned_from', m.cloned_from, 'versions', r.versions)::pg_catalog.text AS lineage,
    coalesce((
        SELECT pg_catalog.jsonb_object_agg(x.data_set || '_' || x.name, x.value)
        FROM madlib_mop.metric x
        WHERE x.run_id = $1 AND x.mst_key = $2 AND x.epoch = (
            SELECT pg_catalog.max(y.epoch) FROM madlib_mop.metric y
            WHERE y.run_id = $1 AND y.mst_key = $2 AND y.epoch <= $3)), '{}')::pg_catalog.text AS metrics,
    m.digest
FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
WHERE m.run_id = $1 AND m.mst_key = $2
"""
# The newest visit that ended with a training state, before another visit; one of this model, if there are several.
_ENDED_WITH = """
SELECT v.mst_key, v.epoch, v.position FROM madlib_mop.visit v
WHERE v.run_id = $1 AND v.digest_out = $2 AND ($4 IS NULL OR v.visit_id < $4)
ORDER BY v.mst_key = $3 DESC, v.visit_id DESC LIMIT 1
"""
_ENDED_WITH_TYPES = ["bigint", "text", "integer", "bigint"]
# The visits of a model up to one of them, the newest first.
_VISITS = """
SELECT v.visit_id, v.digest_in, v.digest_out, pg_catalog.jsonb_build_object(
    'mst_key', v.mst_key, 'epoch', v.epoch, 'position', v.position, 'segment_id', v.segment_id,
    'ended_at', v.ended_at, 'n_rows', v.n_rows, 'rows_digest', s.fingerprint, 'digest_in', v.digest_in,
    'digest_out', v.digest_out)::pg_catalog.text AS facts
FROM madlib_mop.visit v LEFT JOIN madlib_mop.segment s
    ON s.run_id = v.run_id AND s.data_set = 'training' AND s.segment_id = v.segment_id
WHERE v.run_id = $1 AND v.mst_key = $2 AND (v.epoch < $3 OR v.epoch = $3 AND ($4 IS NULL OR v.position <= $4))
ORDER BY v.epoch DESC, v.position DESC
"""
_VISITS_TYPES = ["bigint", "integer", "integer", "integer"]
_MOST_TRIED = 20  # models whose weights are read; somebody may have changed those of some


def best_key(session: CallerSession, relation: Relation, keys: list[int]) -> int | None:
    """Return the first of these models in the leaderboard of the run that wrote a table; None without such a run.

    The run is found by the weights. A newer run with the same output table may not have written it.
    """
    from madlib_mop.catalog.facts.reader import SessionReader  # brings psycopg 3 along

    digest = present_digest(session.columns(relation))
    query = statement(f"SELECT {digest} AS digest FROM {{t}} WHERE mst_key = $1", t=relation)
    for key in keys[:_MOST_TRIED]:
        for row in session.execute(query, [key], ["integer"]):
            run = find_run(session, relation, key, row["digest"])
            if run is not None:
                trained = read_trained(SessionReader(session).fetch, run.run_id)
                return next((key for key in trained if key in keys), None)
    return None


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
    visits = _visits_to(session, run, found["digest"])
    if not visits:  # an average of states is the state after no visit
        rows = session.execute(_VISITS, [run.run_id, run.mst_key, run.epoch, None], _VISITS_TYPES)
        visits = [json.loads(row["facts"]) for row in rows]
    return {
        "run_id": run.run_id,
        "epoch": run.epoch,
        "metrics": json.loads(found["metrics"]),
        "lineage": {**json.loads(found["lineage"]), "visits": visits[::-1]},
    }


def _visits_to(session: CallerSession, run: TrainedBy, digest: str | None) -> list[dict[str, Any]]:
    """Return the visits of a run that trained a state, the newest first; none if no visit ended with it.

    Each began with the state that the one before it ended with. That may be a visit of another model, if a search let
    the model continue with a copy of its state. Visits after the best state, which was restored, are not among them.

    Parameters
    ----------
    session : CallerSession
    run : TrainedBy
    digest : str or None
        SHA-256 of the training state.
    """
    visits: list[dict[str, Any]] = []
    key, oldest = run.mst_key, None
    while last := session.execute(_ENDED_WITH, [run.run_id, digest, key, oldest], _ENDED_WITH_TYPES):
        key = last[0]["mst_key"]
        place = [run.run_id, key, last[0]["epoch"], last[0]["position"]]
        for row in session.execute(_VISITS, place, _VISITS_TYPES):
            if row["digest_out"] != digest:
                break
            visits.append(json.loads(row["facts"]))
            digest, oldest = row["digest_in"], row["visit_id"]
    return visits
