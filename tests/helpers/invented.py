"""Rows of the record that no training wrote: runs of many models, and runs with hostile names."""

HOSTILE = "<script>alert(1)</script>[red]\x1b[31m\"'&"

_RUN = """
INSERT INTO madlib_mop.run (kind, state, state_detail, owner, source_table, validation_table, model_output_table,
    model_selection_table, model_arch_table, num_iterations, metrics_compute_frequency, seed, schedule, n_models,
    n_segments, arguments, plan, created_at, ended_at, versions)
VALUES ('fit_multiple_model', %(state)s, %(detail)s, %(owner)s::regrole, %(source)s, 'public.valid', %(output)s,
    'public.mst', 'public.arch', %(epochs)s, 1, 7, 'rotation', %(models)s, %(segments)s, '{}', '{}',
    clock_timestamp() - interval '1 hour', CASE WHEN %(state)s <> 'running' THEN clock_timestamp() END,
    '{"keras": "3.15.1"}')
RETURNING run_id
"""
_MODELS = """
INSERT INTO madlib_mop.model (run_id, mst_key, ordinal, model_id, compile_params, fit_params, model_arch, state,
    state_detail, last_epoch, epoch, position, metrics_type)
SELECT %(run)s, k, k, 1, format('loss=''mse'', optimizer=''Adam(lr=%%s)'', metrics=[''accuracy'']', 0.001 * k),
    format('batch_size=%%s', 8 * (k %% 8 + 1)), '{}',
    CASE WHEN k %% 50 = 0 THEN 'failed' WHEN %(state)s = 'running' THEN 'training' ELSE 'trained' END,
    CASE WHEN k %% 50 = 0 THEN %(detail)s END, %(epochs)s, %(epochs)s, %(segments)s, '{accuracy}'
FROM generate_series(1, %(models)s) AS k
"""
_SEGMENTS = """
INSERT INTO madlib_mop.segment (run_id, data_set, segment_id, n_rows, n_bytes, fingerprint)
SELECT %(run)s, d, s, 1000, 64000, md5(s::text)
FROM unnest(ARRAY['training', 'validation']) AS d, generate_series(0, %(segments)s - 1) AS s
"""
_VISITS = """
INSERT INTO madlib_mop.visit (run_id, mst_key, epoch, position, segment_id, started_at, ended_at, n_rows, state_bytes,
    digest_in, digest_out, attempt, loss)
SELECT %(run)s, k, e, p, (k + p) %% %(segments)s, at, at + interval '20 ms', 1000, 4096, md5('a'), md5('b'), 1,
    1.0 / (e + p)
FROM generate_series(1, %(models)s) AS k, generate_series(1, %(epochs)s) AS e, generate_series(1, %(segments)s) AS p,
LATERAL (SELECT clock_timestamp() - interval '1 hour'
         + ((e * %(segments)s + p) * %(models)s + k) * interval '20 ms' / %(segments)s AS at) AS times
"""
_METRICS = """
INSERT INTO madlib_mop.metric (run_id, mst_key, epoch, data_set, ordinal, name, value, elapsed_s)
SELECT %(run)s, k, e, d, o, CASE o WHEN 0 THEN 'loss' ELSE 'accuracy' END,
    CASE o WHEN 0 THEN 1.0 / e + 0.001 * (k %% 97) ELSE 1 - 0.5 / e - 0.001 * (k %% 89) END, e * 60 + 0.001 * k
FROM generate_series(1, %(models)s) AS k, generate_series(1, %(epochs)s) AS e,
    unnest(ARRAY['training', 'validation']) AS d, generate_series(0, 1) AS o
"""


def invent_run(
    db, n_models: int = 4, n_segments: int = 2, n_epochs: int = 2, owner: str = "postgres", state: str = "finished",
    output: str = "public.invented", source: str = "public.train", detail: str = "its loss is NaN",
) -> int:  # fmt: skip
    """Write a run with models, visits and metrics; one model in 50 has failed. Return its number."""
    values = {
        "models": n_models, "segments": n_segments, "epochs": n_epochs, "owner": f'"{owner}"', "state": state,
        "output": output, "source": source, "detail": detail,
    }  # fmt: skip
    connection = db.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '120s'")  # a lock that a failed test has left would stop the tests
            cursor.execute(_RUN, values)
            (run_id,) = cursor.fetchone()
            for statement in (_MODELS, _SEGMENTS, _VISITS, _METRICS):
                cursor.execute(statement, {**values, "run": run_id})
            cursor.execute("ANALYZE madlib_mop.model, madlib_mop.visit, madlib_mop.metric")
    finally:
        connection.close()
    return run_id
