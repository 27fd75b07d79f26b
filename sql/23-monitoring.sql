-- Views for BI tools and monitoring: metrics over time, one row for each model, and the data of a Gantt chart; and the lines
-- of runs in the server's log.

-- if greenplum
CREATE VIEW madlib_mop.metric_series WITH (security_barrier = true) AS
-- else
-- defence: invoker-of-metric-series = CREATE VIEW madlib_mop.metric_series AS
CREATE VIEW madlib_mop.metric_series WITH (security_invoker = true) AS
-- end
SELECT x.at AS "time", x.run_id, x.mst_key, x.data_set, x.name, x.value, x.epoch,
       (x.epoch - m.first_epoch + 1) * r.n_segments::bigint AS visits, NULL::bigint AS sample_rows
FROM madlib_mop.metric x
JOIN madlib_mop.model m ON m.run_id = x.run_id AND m.mst_key = x.mst_key
JOIN madlib_mop.run r ON r.run_id = x.run_id
-- if greenplum
WHERE madlib_mop_calls.may_see(r.owner)
-- end
UNION ALL
SELECT v.ended_at, x.run_id, x.mst_key, x.data_set, x.name, x.value, x.epoch, x.visits, x.n_rows
FROM madlib_mop.visit_metric x
JOIN madlib_mop.visit v ON v.run_id = x.run_id AND v.mst_key = x.mst_key AND v.epoch = x.epoch AND v.position = x.position
-- if greenplum
JOIN madlib_mop.run r ON r.run_id = x.run_id
WHERE madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.metric_series IS 'The metrics of runs over time: one row for each model, data set and metric after an epoch, or after a visit (metrics_every)';
COMMENT ON COLUMN madlib_mop.metric_series."time" IS 'When the metric was known';
COMMENT ON COLUMN madlib_mop.metric_series.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.metric_series.mst_key IS 'The model';
COMMENT ON COLUMN madlib_mop.metric_series.data_set IS 'training or validation';
COMMENT ON COLUMN madlib_mop.metric_series.name IS 'The metric, by Keras'' name; loss is the loss';
COMMENT ON COLUMN madlib_mop.metric_series.value IS 'Its value';
COMMENT ON COLUMN madlib_mop.metric_series.epoch IS 'The epoch after which, or in which, the model was evaluated';
COMMENT ON COLUMN madlib_mop.metric_series.visits IS 'Number of visits that the model had made';
COMMENT ON COLUMN madlib_mop.metric_series.sample_rows IS 'Number of rows of the sample that was evaluated; NULL: all rows of the data set';

-- if greenplum
CREATE VIEW madlib_mop.visit_gantt WITH (security_barrier = true) AS
-- else
-- defence: invoker-of-visit-gantt = CREATE VIEW madlib_mop.visit_gantt AS
CREATE VIEW madlib_mop.visit_gantt WITH (security_invoker = true) AS
-- end
SELECT g.run_id, g.segment_id, g.mst_key, g.kind, g.started_at, g.ended_at,
       EXTRACT(epoch FROM g.ended_at - g.started_at)::double precision AS seconds, g.epoch, g.n_rows, g.data_set
FROM (
    SELECT v.run_id, coalesce((v.timing ->> 'trainer')::integer, v.segment_id) AS segment_id, v.mst_key, 'visit' AS kind, v.started_at, v.ended_at, v.epoch, v.n_rows, 'training' AS data_set
    FROM madlib_mop.visit v
    UNION ALL
    SELECT e.run_id, e.segment_id, e.mst_key, 'evaluation', e.started_at, e.ended_at, e.epoch, e.n_rows, e.data_set
    FROM madlib_mop.evaluation e) g
-- if greenplum
JOIN madlib_mop.run r ON r.run_id = g.run_id
WHERE madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.visit_gantt IS 'One row for each committed visit and each evaluation of a shard: which segment worked on which model, and when';
COMMENT ON COLUMN madlib_mop.visit_gantt.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.visit_gantt.segment_id IS 'The segment whose trainer worked';
COMMENT ON COLUMN madlib_mop.visit_gantt.mst_key IS 'The model';
COMMENT ON COLUMN madlib_mop.visit_gantt.kind IS 'visit: the model was trained; evaluation: its metrics were computed';
COMMENT ON COLUMN madlib_mop.visit_gantt.started_at IS 'When the work began';
COMMENT ON COLUMN madlib_mop.visit_gantt.ended_at IS 'When it was committed or complete';
COMMENT ON COLUMN madlib_mop.visit_gantt.seconds IS 'Seconds between the two';
COMMENT ON COLUMN madlib_mop.visit_gantt.epoch IS 'The epoch that the visit belongs to, or after which the model was evaluated';
COMMENT ON COLUMN madlib_mop.visit_gantt.n_rows IS 'Number of rows';
COMMENT ON COLUMN madlib_mop.visit_gantt.data_set IS 'Whose rows: training or validation';

-- if greenplum
CREATE VIEW madlib_mop.model_summary WITH (security_barrier = true) AS
-- else
-- defence: invoker-of-model-summary = CREATE VIEW madlib_mop.model_summary AS
CREATE VIEW madlib_mop.model_summary WITH (security_invoker = true) AS
-- end
SELECT m.run_id, m.mst_key, m.model_id, m.state, m.hyper_parameters, f.metric_name,
       f.validation_metric, f.validation_loss, f.training_metric, f.training_loss, f.metric_epoch,
       m.epoch, coalesce(v.visits, 0) AS visits, coalesce(v.seconds, 0) AS seconds, m.state_bytes,
       CASE WHEN m.state = 'failed' THEN m.state_detail END AS failure_reason,
       m.compile_params, m.fit_params, m.state_detail
FROM madlib_mop.model m
-- if greenplum
JOIN madlib_mop.run r ON r.run_id = m.run_id
-- end
LEFT JOIN LATERAL (
    SELECT pg_catalog.count(*) AS visits, pg_catalog.sum(EXTRACT(epoch FROM x.ended_at - x.started_at))::double precision AS seconds
    FROM madlib_mop.visit x WHERE x.run_id = m.run_id AND x.mst_key = m.mst_key) v ON true
LEFT JOIN LATERAL (
    SELECT pg_catalog.max(x.epoch) AS newest FROM madlib_mop.metric x WHERE x.run_id = m.run_id AND x.mst_key = m.mst_key) e ON true
LEFT JOIN LATERAL (
    SELECT pg_catalog.max(x.visits) AS newest FROM madlib_mop.visit_metric x
    WHERE e.newest IS NULL AND x.run_id = m.run_id AND x.mst_key = m.mst_key) s ON true
LEFT JOIN LATERAL (
    SELECT pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'validation' AND x.ordinal = 1) AS validation_metric,
           pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'validation' AND x.ordinal = 0) AS validation_loss,
           pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'training' AND x.ordinal = 1) AS training_metric,
           pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'training' AND x.ordinal = 0) AS training_loss,
           pg_catalog.max(x.name) FILTER (WHERE x.ordinal = 1) AS metric_name, pg_catalog.max(x.epoch) AS metric_epoch
    FROM (
        SELECT a.data_set, a.ordinal, a.name, a.value, a.epoch FROM madlib_mop.metric a
        WHERE a.run_id = m.run_id AND a.mst_key = m.mst_key AND a.epoch = e.newest
        UNION ALL
        SELECT b.data_set, b.ordinal, b.name, b.value, b.epoch FROM madlib_mop.visit_metric b
        WHERE b.run_id = m.run_id AND b.mst_key = m.mst_key AND b.visits = s.newest) x) f ON true
-- if greenplum
WHERE madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.model_summary IS 'One row for each model of each run: its hyper-parameters, its newest metrics, its work so far, and why it failed';
COMMENT ON COLUMN madlib_mop.model_summary.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.model_summary.mst_key IS 'The model';
COMMENT ON COLUMN madlib_mop.model_summary.model_id IS 'Its architecture''s number in the table of architectures';
COMMENT ON COLUMN madlib_mop.model_summary.state IS 'waiting, training, trained, stopped or failed';
COMMENT ON COLUMN madlib_mop.model_summary.hyper_parameters IS 'The configuration in parts: architecture, optimizer, learning_rate, batch_size and others, by Keras'' names; {} for models of version 1.0.0';
COMMENT ON COLUMN madlib_mop.model_summary.metric_name IS 'Keras'' name of its first metric; NULL: it has none, or none is known yet';
COMMENT ON COLUMN madlib_mop.model_summary.validation_metric IS 'Its first metric on the validation data';
COMMENT ON COLUMN madlib_mop.model_summary.validation_loss IS 'Its loss on the validation data';
COMMENT ON COLUMN madlib_mop.model_summary.training_metric IS 'Its first metric on the training data';
COMMENT ON COLUMN madlib_mop.model_summary.training_loss IS 'Its loss on the training data';
COMMENT ON COLUMN madlib_mop.model_summary.metric_epoch IS 'The epoch of these four: the newest with metrics on all rows; while there is none, the newest visit with metrics on a sample';
COMMENT ON COLUMN madlib_mop.model_summary.epoch IS 'The epoch of its newest visit';
COMMENT ON COLUMN madlib_mop.model_summary.visits IS 'Number of its committed visits in this run';
COMMENT ON COLUMN madlib_mop.model_summary.seconds IS 'Seconds of these visits';
COMMENT ON COLUMN madlib_mop.model_summary.state_bytes IS 'Size of its newest training state in bytes';
COMMENT ON COLUMN madlib_mop.model_summary.failure_reason IS 'Why it failed; NULL: it has not';
COMMENT ON COLUMN madlib_mop.model_summary.compile_params IS 'Its compile parameters, as text';
COMMENT ON COLUMN madlib_mop.model_summary.fit_params IS 'Its fit parameters, as text';
COMMENT ON COLUMN madlib_mop.model_summary.state_detail IS 'Why it failed, was stopped or ended early';

-- Without statement and context, the server's log has one line.
CREATE FUNCTION madlib_mop_internal.log_line(line text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET log_error_verbosity = 'terse' SET log_min_error_statement = 'panic' AS $body$
BEGIN
    RAISE LOG USING MESSAGE = line;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.log_line(text) IS 'Writes a line into the server''s log (called by drivers)';
