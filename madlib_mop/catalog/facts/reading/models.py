"""Reads the models of a run: the leaderboard, failures, architectures, and where weights came from."""

import json
from typing import Any

from madlib_mop.catalog.facts import Architecture, FailureGroup, Lineage, ModelFacts
from madlib_mop.catalog.facts.hyper_parameters import hyper_parameters
from madlib_mop.catalog.facts.layers import layers_in_words
from madlib_mop.catalog.facts.reading.shared import BOARD, SECONDS_OF_VISITS, FactsReader

#: Models of the leaderboard that are listed.
MAX_LISTED = 500
#: Models in figures of hyper-parameters.
MAX_SAMPLE = 500
_MAX_LINEAGE = 500
_MAX_REASONS = 100
_MAX_KEYS = 20

_MODELS = f"""
SELECT {BOARD}, m.first_epoch, m.hyper_parameters::pg_catalog.text, m.ordinal, m.state_bytes, m.weights_digest,
       v.started_at, v.ended_at, coalesce(v.seconds, 0) AS seconds
FROM madlib_mop.leaderboard l
JOIN madlib_mop.model m ON m.run_id = l.run_id AND m.mst_key = l.mst_key
LEFT JOIN (SELECT x.mst_key, EXTRACT(epoch FROM min(x.started_at))::pg_catalog.float8 AS started_at,
                  EXTRACT(epoch FROM max(x.ended_at))::pg_catalog.float8 AS ended_at, {SECONDS_OF_VISITS} AS seconds
           FROM madlib_mop.visit x WHERE x.run_id = $1::pg_catalog.int8 GROUP BY x.mst_key) v ON v.mst_key = l.mst_key
WHERE l.run_id = $1::pg_catalog.int8 AND ($2::pg_catalog.int8 IS NULL OR l.rank <= $2::pg_catalog.int8
    OR l.rank % $3::pg_catalog.int8 = 0)
ORDER BY l.rank, l.mst_key
"""
_FAILURES = """
SELECT x.state, x.reason, count(*) AS n, (array_agg(x.mst_key ORDER BY x.mst_key))[1:$2::pg_catalog.int4] AS keys
FROM (SELECT m.state, m.mst_key, coalesce(m.state_detail, 'No reason was recorded.') AS reason FROM madlib_mop.model m
      WHERE m.run_id = $1::pg_catalog.int8 AND m.state IN ('failed', 'stopped')) x
GROUP BY x.state, x.reason ORDER BY x.state, count(*) DESC, min(x.mst_key) LIMIT $3::pg_catalog.int8
"""
_ARCHITECTURES = """
SELECT a.model_id, a.n, (SELECT m.model_arch::pg_catalog.text FROM madlib_mop.model m
                         WHERE m.run_id = $1::pg_catalog.int8 AND m.mst_key = a.mst_key) AS arch
FROM (SELECT m.model_id, min(m.mst_key) AS mst_key, count(*) AS n FROM madlib_mop.model m
      WHERE m.run_id = $1::pg_catalog.int8 GROUP BY m.model_id ORDER BY m.model_id LIMIT 100) a ORDER BY a.model_id
"""
_LINEAGE = """
SELECT x.*, count(*) OVER () AS n FROM (
    SELECT 'clone' AS kind, m.mst_key, (m.cloned_from ->> 'mst_key')::pg_catalog.int4 AS from_key,
           (m.cloned_from ->> 'epoch')::pg_catalog.int4 AS epoch,
           (m.cloned_from ->> 'position')::pg_catalog.int4 AS position,
           NULL::pg_catalog.text AS origin,
           EXTRACT(epoch FROM c.settled_at - r.created_at)::pg_catalog.float8 AS at_s, 0 AS place
    FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
    LEFT JOIN madlib_mop.change c ON c.run_id = m.run_id AND c.change_id = m.command_id
    WHERE m.run_id = $1::pg_catalog.int8 AND m.cloned_from IS NOT NULL
    UNION ALL
    SELECT 'exploit', (c.work ->> 'mst_key')::pg_catalog.int4, (c.work ->> 'source')::pg_catalog.int4,
           s.epoch, NULL, NULL,
           EXTRACT(epoch FROM e.at - r.created_at)::pg_catalog.float8, 1
    FROM madlib_mop.change c JOIN madlib_mop.run r ON r.run_id = c.run_id
    JOIN madlib_mop.search_event e ON e.run_id = c.run_id AND e.ordinal = c.event
    LEFT JOIN LATERAL (SELECT max(b.epoch) AS epoch FROM madlib_mop.search_event b
                       WHERE b.run_id = e.run_id AND b.ordinal <= e.ordinal AND b.event = 'result'
                             AND b.mst_key = (c.work ->> 'source')::pg_catalog.int4) s ON true
    WHERE c.run_id = $1::pg_catalog.int8 AND c.change = 'exploit'
    UNION ALL
    SELECT 'warm start', m.mst_key, NULL, m.first_epoch - 1, NULL, 'run ' || r.parent_run_id, NULL, 2
    FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
    WHERE m.run_id = $1::pg_catalog.int8 AND r.warm_start AND m.first_epoch > 1 AND m.cloned_from IS NULL
    UNION ALL
    SELECT 'start weights', m.mst_key, NULL, NULL, NULL, m.start_weights, NULL, 3
    FROM madlib_mop.model m WHERE m.run_id = $1::pg_catalog.int8 AND m.start_weights IS NOT NULL
) x ORDER BY x.place, x.at_s NULLS FIRST, x.mst_key LIMIT $2::pg_catalog.int8
"""


def read_all_models(reader: FactsReader, run_id: int) -> tuple[ModelFacts, ...]:
    """Return all models of a run, in the order in which the run got them."""
    found = map(_model, reader.rows(_MODELS, run_id, None, None))
    return tuple(sorted(found, key=lambda model: (model.ordinal, model.mst_key)))


def read_models(
    reader: FactsReader, run_id: int, n_models: int
) -> tuple[tuple[ModelFacts, ...], tuple[ModelFacts, ...]]:
    """Return the first models of the leaderboard, and an even choice over all ranks for figures.

    Both are all models if there are few.
    """
    step = max(1, -(-n_models // MAX_SAMPLE))
    found = [_model(row) for row in reader.rows(_MODELS, run_id, MAX_LISTED, step)]
    listed = tuple(model for model in found if model.rank <= MAX_LISTED)
    return listed, tuple(model for model in found if model.rank % step == 0 or model.rank == 1)


def _model(row: dict[str, Any]) -> ModelFacts:
    recorded = json.loads(row["hyper_parameters"])
    found = hyper_parameters(recorded, row["model_id"], row["compile_params"], row["fit_params"])
    return ModelFacts(**{**row, "hyper_parameters": found})


def read_failures(reader: FactsReader, run_id: int) -> tuple[FailureGroup, ...]:
    """Return why models failed or were stopped, the most frequent reason first."""
    rows = reader.rows(_FAILURES, run_id, _MAX_KEYS, _MAX_REASONS)
    return tuple(FailureGroup(r["state"], r["reason"], int(r["n"]), tuple(r["keys"])) for r in rows)


def read_architectures(reader: FactsReader, run_id: int) -> tuple[Architecture, ...]:
    """Return the networks of a run, at most 100."""
    rows = reader.rows(_ARCHITECTURES, run_id)
    return tuple(Architecture(r["model_id"], layers_in_words(json.loads(r["arch"])), int(r["n"])) for r in rows)


def read_lineage(reader: FactsReader, run_id: int) -> tuple[tuple[Lineage, ...], int]:
    """Return where weights came from, at most 500 origins, and how many there are."""
    rows = reader.rows(_LINEAGE, run_id, _MAX_LINEAGE)
    names = ("kind", "mst_key", "from_key", "epoch", "position", "origin", "at_s")
    return tuple(Lineage(**{n: row[n] for n in names}) for row in rows), int(rows[0]["n"]) if rows else 0
