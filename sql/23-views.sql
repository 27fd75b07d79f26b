-- Views for monitoring a run, for \watch and BI tools.

-- if greenplum
CREATE VIEW madlib_mop.progress WITH (security_barrier = true) AS
-- else
CREATE VIEW madlib_mop.progress WITH (security_invoker = true) AS
-- end
SELECT r.run_id, r.kind, r.state, pg_catalog.pg_get_userbyid(r.owner) AS owner, r.model_output_table, r.schedule,
       m.n_models, m.n_trained, m.n_failed,
       m.visits_done, m.visits_total,
       pg_catalog.round(100.0 * m.visits_done / greatest(m.visits_total, 1), 1) AS percent_done,
       r.n_segments,
       pg_catalog.date_trunc('second', coalesce(r.ended_at, pg_catalog.clock_timestamp()) - r.created_at) AS elapsed,
       CASE WHEN r.state = 'running' AND r.paused_by IS NULL AND v.n_visits > 0 THEN pg_catalog.make_interval(secs => pg_catalog.round(
           (((v.steady_s + coalesce(e.steady_s, 0)) / v.n_visits * greatest(0, m.visits_total - m.visits_done)
             + v.building_s / v.n_built * greatest(0, m.n_networks * CASE WHEN r.plan ? 'any_trainer' THEN 1 ELSE r.n_segments END - v.n_built))
            / greatest(1, least(r.n_segments, m.n_unfinished)))::numeric)::double precision)
       END AS time_left,
       v.last_visit_at, r.state_detail
FROM madlib_mop.run r
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(*) AS n_models,
           pg_catalog.count(*) FILTER (WHERE state = 'trained') AS n_trained,
           pg_catalog.count(*) FILTER (WHERE state = 'failed') AS n_failed,
           coalesce(pg_catalog.sum(CASE WHEN epoch >= first_epoch THEN (epoch - first_epoch) * r.n_segments + position ELSE 0 END)
               FILTER (WHERE state NOT IN ('failed', 'stopped')), 0)::bigint AS visits_done,
           coalesce(pg_catalog.sum((last_epoch - first_epoch + 1) * r.n_segments) FILTER (WHERE state NOT IN ('failed', 'stopped')), 0)::bigint AS visits_total,
           pg_catalog.count(*) FILTER (WHERE state IN ('waiting', 'training')) AS n_unfinished,
           pg_catalog.count(DISTINCT model_id) FILTER (WHERE state NOT IN ('failed', 'stopped')) AS n_networks
    FROM madlib_mop.model WHERE run_id = r.run_id) m
-- A segment's trainer builds the graphs of a network in the first visits of the network, which are therefore longer. Fused
-- visits begin and end together, and the seconds of their parts are divided among them.
CROSS JOIN LATERAL (
    SELECT pg_catalog.max(c.ended_at) AS last_visit_at, pg_catalog.count(*) AS n_visits,
           pg_catalog.sum(least(c.seconds, coalesce(nullif(c.steady_s, 0), c.seconds))) AS steady_s,
           pg_catalog.sum(greatest(0, c.seconds - coalesce(nullif(c.steady_s, 0), c.seconds))) AS building_s,
           pg_catalog.count(DISTINCT pg_catalog.concat(c.trainer, ' ', c.model_id)) AS n_built
    FROM (SELECT x.ended_at, coalesce(x.timing ->> 'trainer', x.segment_id::text) AS trainer, o.model_id,
                 pg_catalog.date_part('epoch', x.ended_at - x.started_at)
                     / coalesce((x.timing ->> 'fused')::double precision, 1) AS seconds,
                 coalesce((x.timing ->> 'state_in_s')::double precision, 0) + coalesce((x.timing ->> 'compute_s')::double precision, 0)
                     + coalesce((x.timing ->> 'state_out_s')::double precision, 0) AS steady_s
          FROM madlib_mop.visit x JOIN madlib_mop.model o ON o.run_id = x.run_id AND o.mst_key = x.mst_key
          WHERE x.run_id = r.run_id) c) v
CROSS JOIN LATERAL (
    SELECT pg_catalog.sum(least(c.seconds, coalesce(nullif(c.steady_s, 0), c.seconds))) AS steady_s
    FROM (SELECT pg_catalog.date_part('epoch', x.ended_at - x.started_at)
                     / coalesce((x.timing ->> 'fused')::double precision, 1) AS seconds,
                 coalesce((x.timing ->> 'state_in_s')::double precision, 0) + coalesce((x.timing ->> 'compute_s')::double precision, 0) AS steady_s
          FROM madlib_mop.evaluation x WHERE x.run_id = r.run_id) c) e
-- if greenplum
WHERE madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.progress IS 'One row for each run: its progress and the estimated remaining time';
COMMENT ON COLUMN madlib_mop.progress.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.progress.kind IS 'Which function trains: fit_multiple_model, fit (model averaging), automl or replay';
COMMENT ON COLUMN madlib_mop.progress.state IS 'running, trained, finished, interrupted, cancelled or failed';
COMMENT ON COLUMN madlib_mop.progress.owner IS 'The role that owns the run';
COMMENT ON COLUMN madlib_mop.progress.model_output_table IS 'Its output table';
COMMENT ON COLUMN madlib_mop.progress.schedule IS 'The order in which models visit segments';
COMMENT ON COLUMN madlib_mop.progress.n_models IS 'Number of its models';
COMMENT ON COLUMN madlib_mop.progress.n_trained IS 'Number of models that have made all their epochs';
COMMENT ON COLUMN madlib_mop.progress.n_failed IS 'Number of models that have failed';
COMMENT ON COLUMN madlib_mop.progress.visits_done IS 'Number of committed visits of the models that have not failed and were not stopped';
COMMENT ON COLUMN madlib_mop.progress.visits_total IS 'Number of visits of these models until its end, as far as they are planned';
COMMENT ON COLUMN madlib_mop.progress.percent_done IS 'visits_done as a percentage of visits_total';
COMMENT ON COLUMN madlib_mop.progress.n_segments IS 'Number of segments';
COMMENT ON COLUMN madlib_mop.progress.elapsed IS 'Time since its start, until its end';
COMMENT ON COLUMN madlib_mop.progress.time_left IS 'Estimate of the time until its end, by the mean duration of its visits and evaluations, and of the building of graphs; NULL: it does not train, or has no visit yet';
COMMENT ON COLUMN madlib_mop.progress.last_visit_at IS 'When its newest visit was committed';
COMMENT ON COLUMN madlib_mop.progress.state_detail IS 'Why it waits, was interrupted or cancelled, failed, or ended early';

CREATE FUNCTION madlib_mop.higher_is_better(metric_name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
SELECT lower(metric_name COLLATE "C") ~ '@HIGHER_IS_BETTER@'
$body$;
COMMENT ON FUNCTION madlib_mop.higher_is_better(text)
IS 'Whether higher values of a metric of this name are better: true for accuracies, AUC, F1 and similar ones of Keras, and for names that end in such a word after _; false for all others';

-- if greenplum
CREATE VIEW madlib_mop.leaderboard WITH (security_barrier = true) AS
-- else
CREATE VIEW madlib_mop.leaderboard WITH (security_invoker = true) AS
-- end
SELECT run_id,
       pg_catalog.rank() OVER (PARTITION BY run_id ORDER BY state = 'failed',
           CASE WHEN of_one_metric THEN CASE WHEN madlib_mop.higher_is_better(metric_name) THEN -metric ELSE metric END
           END NULLS LAST, loss NULLS LAST, mst_key) AS rank,
       mst_key, model_id, state, epoch, metric_epoch,
       CASE WHEN sample_visits IS NULL
            THEN metric_epoch = coalesce(reached, pg_catalog.max(metric_epoch) FILTER (WHERE sample_visits IS NULL)
                OVER (PARTITION BY run_id, state = 'failed'))
            ELSE sample_visits = coalesce(reached_visits, 0) END AS comparable,
       validation_metric, validation_loss, training_metric, training_loss,
       metric_name, compile_params, fit_params, state_detail,
       coalesce(sample_visits, (metric_epoch - first_epoch + 1) * n_segments::bigint) AS metric_visits, metric_rows,
       coalesce(CASE WHEN of_one_metric THEN run_metric END, 'loss') AS ranked_by, baseline
FROM (
    SELECT figures.*, pg_catalog.min(metric_name) OVER run AS run_metric,
           pg_catalog.min(metric_name) OVER run = pg_catalog.max(metric_name) OVER run
               AND pg_catalog.count(metric_name) OVER run = pg_catalog.count(coalesce(validation_loss, training_loss)) OVER run
               AS of_one_metric,
           nullif(CASE WHEN validation_loss IS NULL THEN training_metric ELSE validation_metric END, 'NaN') AS metric,
           nullif(coalesce(validation_loss, training_loss), 'NaN') AS loss
    FROM (
        SELECT m.run_id, m.mst_key, m.model_id, m.state, m.epoch, m.first_epoch, m.n_segments, m.reached, m.reached_visits,
               m.sample_visits, m.compile_params, m.fit_params, m.state_detail, m.baseline,
               CASE WHEN m.sample_visits IS NULL THEN m.metric_epoch ELSE f.sample_epoch END AS metric_epoch,
               f.validation_metric, f.validation_loss, f.training_metric, f.training_loss, f.metric_name, f.metric_rows
        FROM (
            SELECT p.*, n.metric_epoch,
                   CASE WHEN n.metric_epoch IS NULL OR p.reached_visits > p.reached_by_all_rows THEN v.visits END
                       AS sample_visits
            FROM (
                SELECT o.run_id, o.mst_key, o.model_id, o.state, o.epoch, o.first_epoch, r.n_segments, o.compile_params, o.fit_params,
                       o.state_detail, e.newest, s.newest_visits,
                       pg_catalog.jsonb_path_query_first(r.baselines, '$[*] ? (@.mst_key == $key).name',
                           pg_catalog.jsonb_build_object('key', o.mst_key)) #>> '{}' AS baseline,
                       CASE WHEN (o.best_state ->> 'version')::bigint = o.state_version
                           THEN (o.best_state ->> 'epoch')::integer END AS restored,
                       pg_catalog.min(e.newest) FILTER (WHERE o.state IN ('waiting', 'training'))
                           OVER (PARTITION BY o.run_id) AS reached,
                       pg_catalog.min(coalesce((e.newest - o.first_epoch + 1) * r.n_segments::bigint, 0 * s.newest_visits))
                           FILTER (WHERE o.state IN ('waiting', 'training')) OVER (PARTITION BY o.run_id) AS reached_by_all_rows,
                       pg_catalog.min(coalesce(s.newest_visits, 0 * e.newest)) FILTER (WHERE o.state IN ('waiting', 'training'))
                           OVER (PARTITION BY o.run_id) AS reached_visits
                FROM madlib_mop.model o
                JOIN madlib_mop.run r ON r.run_id = o.run_id
                LEFT JOIN LATERAL (SELECT pg_catalog.max(x.epoch) AS newest FROM madlib_mop.metric x
                    WHERE x.run_id = o.run_id AND x.mst_key = o.mst_key) e ON true
                LEFT JOIN LATERAL (SELECT pg_catalog.max(x.visits) AS newest_visits FROM madlib_mop.visit_metric x
                    WHERE x.run_id = o.run_id AND x.mst_key = o.mst_key) s ON true
                -- if greenplum
                WHERE madlib_mop_calls.may_see(r.owner)
                -- end
                ) p
            CROSS JOIN LATERAL (SELECT pg_catalog.max(x.epoch) AS newest_reached FROM madlib_mop.metric x
                WHERE x.run_id = p.run_id AND x.mst_key = p.mst_key AND x.epoch <= p.reached) u
            CROSS JOIN LATERAL (SELECT CASE WHEN p.reached IS NULL THEN coalesce(p.restored, p.newest)
                                            ELSE coalesce(u.newest_reached, p.newest) END AS metric_epoch) n
            CROSS JOIN LATERAL (SELECT pg_catalog.max(x.visits) AS visits FROM madlib_mop.visit_metric x
                WHERE x.run_id = p.run_id AND x.mst_key = p.mst_key
                      AND x.visits <= coalesce(nullif(p.reached_visits, 0), p.newest_visits)) v) m
        CROSS JOIN LATERAL (
            SELECT pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'validation' AND x.ordinal = 1) AS validation_metric,
                   pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'validation' AND x.ordinal = 0) AS validation_loss,
                   pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'training' AND x.ordinal = 1) AS training_metric,
                   pg_catalog.max(x.value) FILTER (WHERE x.data_set = 'training' AND x.ordinal = 0) AS training_loss,
                   coalesce(pg_catalog.max(x.name) FILTER (WHERE x.data_set = 'validation' AND x.ordinal = 1),
                            pg_catalog.max(x.name) FILTER (WHERE x.data_set = 'training' AND x.ordinal = 1)) AS metric_name,
                   pg_catalog.max(x.epoch) AS sample_epoch, pg_catalog.max(x.n_rows) AS metric_rows
            FROM (
                SELECT a.data_set, a.ordinal, a.name, a.value, a.epoch, NULL::bigint AS n_rows FROM madlib_mop.metric a
                WHERE m.sample_visits IS NULL AND a.run_id = m.run_id AND a.mst_key = m.mst_key AND a.epoch = m.metric_epoch
                UNION ALL
                SELECT b.data_set, b.ordinal, b.name, b.value, b.epoch, b.n_rows FROM madlib_mop.visit_metric b
                WHERE b.run_id = m.run_id AND b.mst_key = m.mst_key AND b.visits = m.sample_visits) x) f
        ) figures
    WINDOW run AS (PARTITION BY run_id)) ranked
UNION ALL
SELECT r.run_id, NULL, NULL, NULL, 'baseline', NULL, NULL, NULL, b.validation_metric, b.validation_loss, NULL, NULL,
       b.metric_name, NULL, NULL, b.note, NULL, NULL, NULL, b.name
FROM madlib_mop.run r
CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(r.baselines) AS b (
    name text, mst_key integer, metric_name text, validation_metric double precision, validation_loss double precision, note text)
WHERE b.mst_key IS NULL
-- if greenplum
      AND madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.leaderboard
IS 'The models of each run, best first: by their first metric if all have the same one, else by their loss; ties by loss, then by mst_key. While models train, all are ranked by their figures after the same number of visits, metric_visits: the greatest of which all that train have figures. Without metrics_every, these are whole epochs. When none trains any more, each is ranked by the figures of its final weights. comparable tells whether a model''s are of that number of visits, or then of the greatest metric_epoch of the run. metric_rows is the number of rows of the sample that was evaluated, NULL if it was all rows. What counts is the validation data where there are some, else the training data. higher_is_better tells which way a metric goes. Failed models come last. Then come baselines that are no models of the run (state baseline): they have figures to compare with, and neither a rank nor an mst_key, because they cannot predict.';
COMMENT ON COLUMN madlib_mop.leaderboard.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.leaderboard.rank IS 'Rank of the model in the run, from 1; NULL: a baseline that is no model';
COMMENT ON COLUMN madlib_mop.leaderboard.mst_key IS 'The model; NULL: a baseline that is no model, and cannot predict';
COMMENT ON COLUMN madlib_mop.leaderboard.model_id IS 'Its architecture''s number in the table of architectures';
COMMENT ON COLUMN madlib_mop.leaderboard.state IS 'waiting, training, trained, stopped or failed; baseline: no model';
COMMENT ON COLUMN madlib_mop.leaderboard.epoch IS 'The epoch of its newest visit';
COMMENT ON COLUMN madlib_mop.leaderboard.metric_epoch IS 'The epoch of the figures in this row';
COMMENT ON COLUMN madlib_mop.leaderboard.comparable IS 'Whether the figures are of the same number of visits as those of the other models';
COMMENT ON COLUMN madlib_mop.leaderboard.validation_metric IS 'Its first metric on the validation data';
COMMENT ON COLUMN madlib_mop.leaderboard.validation_loss IS 'Its loss on the validation data';
COMMENT ON COLUMN madlib_mop.leaderboard.training_metric IS 'Its first metric on the training data';
COMMENT ON COLUMN madlib_mop.leaderboard.training_loss IS 'Its loss on the training data';
COMMENT ON COLUMN madlib_mop.leaderboard.metric_name IS 'Keras'' name of its first metric';
COMMENT ON COLUMN madlib_mop.leaderboard.compile_params IS 'Its compile parameters, as text';
COMMENT ON COLUMN madlib_mop.leaderboard.fit_params IS 'Its fit parameters, as text';
COMMENT ON COLUMN madlib_mop.leaderboard.state_detail IS 'Why it failed, was stopped or ended early; of a baseline that is no model: what it is';
COMMENT ON COLUMN madlib_mop.leaderboard.metric_visits IS 'Number of visits after which the figures were computed';
COMMENT ON COLUMN madlib_mop.leaderboard.metric_rows IS 'Number of rows of the sample that was evaluated; NULL: all rows';
COMMENT ON COLUMN madlib_mop.leaderboard.ranked_by IS 'What the models of the run are ranked by: their first metric if all have the same one, else loss. The first one is the best model of the run';
COMMENT ON COLUMN madlib_mop.leaderboard.baseline IS 'The name of what the models are compared with: linear model, which is a model of the run, or gradient boosting, which is none; NULL: no baseline';

-- if greenplum
CREATE VIEW madlib_mop.pareto WITH (security_barrier = true) AS
-- else
CREATE VIEW madlib_mop.pareto WITH (security_invoker = true) AS
-- end
SELECT run_id, mst_key, model_id, rank, state, metric_epoch, comparable, ranked_by, score, multiplications, size_bytes,
       compile_params, fit_params
FROM (
    SELECT scored.*, pg_catalog.array_agg(badness) OVER run AS badnesses, pg_catalog.array_agg(work) OVER run AS works,
           pg_catalog.array_agg(size_bytes) OVER run AS sizes
    FROM (
        -- of networks of one size, only the best one: the others need not be compared
        SELECT figures.*, pg_catalog.row_number() OVER (PARTITION BY run_id, work, size_bytes ORDER BY badness, rank) AS place
        FROM (
            SELECT l.run_id, l.mst_key, l.model_id, l.rank, l.state, l.metric_epoch, l.comparable, l.ranked_by, s.score,
                   m.multiplications, m.model_bytes AS size_bytes, l.compile_params, l.fit_params,
                   CASE WHEN pg_catalog.bool_and(m.multiplications IS NOT NULL) OVER (PARTITION BY l.run_id)
                        THEN m.multiplications ELSE 0 END AS work,
                   CASE WHEN l.ranked_by <> 'loss' AND madlib_mop.higher_is_better(l.ranked_by) THEN -s.score ELSE s.score END
                       AS badness
            FROM madlib_mop.leaderboard l
            JOIN madlib_mop.model m ON m.run_id = l.run_id AND m.mst_key = l.mst_key
            CROSS JOIN LATERAL (SELECT CASE WHEN l.ranked_by = 'loss' THEN coalesce(l.validation_loss, l.training_loss)
                                            WHEN l.validation_loss IS NULL THEN l.training_metric
                                            ELSE l.validation_metric END AS score) s
            WHERE l.state <> 'failed' AND s.score NOT IN ('NaN', 'Infinity', '-Infinity') AND m.model_bytes IS NOT NULL
            ) figures
        ) scored
    WHERE place = 1
    WINDOW run AS (PARTITION BY run_id)
    ) compared
WHERE NOT EXISTS (
    SELECT FROM ROWS FROM (pg_catalog.unnest(badnesses), pg_catalog.unnest(works), pg_catalog.unnest(sizes))
        AS other (badness, work, size_bytes)
    WHERE other.badness <= compared.badness AND other.work <= compared.work AND other.size_bytes <= compared.size_bytes
          AND (other.work < compared.work OR other.size_bytes < compared.size_bytes));
COMMENT ON VIEW madlib_mop.pareto IS 'The models of each run that no other model of the run surpasses: none has a score that is as good, as few multiplications and as small a size, and is better in one of them. Of equal models, it has the one that is first on the leaderboard';
COMMENT ON COLUMN madlib_mop.pareto.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.pareto.mst_key IS 'The model';
COMMENT ON COLUMN madlib_mop.pareto.model_id IS 'Its architecture''s number in the table of architectures';
COMMENT ON COLUMN madlib_mop.pareto.rank IS 'Its rank on the leaderboard';
COMMENT ON COLUMN madlib_mop.pareto.state IS 'waiting, training, trained or stopped';
COMMENT ON COLUMN madlib_mop.pareto.metric_epoch IS 'The epoch of the score';
COMMENT ON COLUMN madlib_mop.pareto.comparable IS 'As on the leaderboard: whether the score is of the same number of visits as those of the other models';
COMMENT ON COLUMN madlib_mop.pareto.ranked_by IS 'What the score is: the first metric of the models if all have the same one, else loss';
COMMENT ON COLUMN madlib_mop.pareto.score IS 'Its first metric or its loss, on the validation data if there are some, else on the training data';
COMMENT ON COLUMN madlib_mop.pareto.multiplications IS 'Number of multiplications of a prediction of one row, by its architecture; NULL: not known, for example of attention, or of a model of version 1.0.0. If it is NULL for a model of the run, models are compared by score and size only';
COMMENT ON COLUMN madlib_mop.pareto.size_bytes IS 'Size of its weights in bytes';
COMMENT ON COLUMN madlib_mop.pareto.compile_params IS 'Its compile parameters, as text';
COMMENT ON COLUMN madlib_mop.pareto.fit_params IS 'Its fit parameters, as text';

-- if greenplum
CREATE VIEW madlib_mop.timeline WITH (security_barrier = true) AS
-- else
CREATE VIEW madlib_mop.timeline WITH (security_invoker = true) AS
-- end
SELECT v.run_id, v.segment_id, v.visit_id, v.mst_key, v.epoch, v.position, v.attempt,
       EXTRACT(epoch FROM v.started_at - r.created_at)::double precision AS start_s,
       EXTRACT(epoch FROM v.ended_at - r.created_at)::double precision AS end_s,
       EXTRACT(epoch FROM v.ended_at - v.started_at)::double precision AS seconds,
       v.n_rows, v.state_bytes, v.loss, coalesce((v.timing ->> 'trainer')::integer, v.segment_id) AS trainer
FROM madlib_mop.visit v JOIN madlib_mop.run r USING (run_id)
-- if greenplum
WHERE madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.timeline IS 'One row for each committed visit, in seconds since the start of the run: the data of a Gantt chart';
COMMENT ON COLUMN madlib_mop.timeline.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.timeline.segment_id IS 'The segment whose rows the model was trained on';
COMMENT ON COLUMN madlib_mop.timeline.visit_id IS 'The number of the visit, unique in the database';
COMMENT ON COLUMN madlib_mop.timeline.mst_key IS 'The model';
COMMENT ON COLUMN madlib_mop.timeline.epoch IS 'The epoch that the visit belongs to';
COMMENT ON COLUMN madlib_mop.timeline.position IS 'Position of the visit in its epoch, from 1';
COMMENT ON COLUMN madlib_mop.timeline.attempt IS 'Number of attempts; above 1 after a fault';
COMMENT ON COLUMN madlib_mop.timeline.start_s IS 'Seconds from the start of the run to the start of the visit';
COMMENT ON COLUMN madlib_mop.timeline.end_s IS 'Seconds from the start of the run to the commit of the visit';
COMMENT ON COLUMN madlib_mop.timeline.seconds IS 'Seconds between the two';
COMMENT ON COLUMN madlib_mop.timeline.n_rows IS 'Number of rows';
COMMENT ON COLUMN madlib_mop.timeline.state_bytes IS 'Size of the new training state in bytes';
COMMENT ON COLUMN madlib_mop.timeline.loss IS 'The loss that Keras reported for the visit';
COMMENT ON COLUMN madlib_mop.timeline.trainer IS 'The segment whose trainer trained the model: the row of the segment in a Gantt chart';

-- if greenplum
CREATE VIEW madlib_mop.search_history WITH (security_barrier = true) AS
-- else
CREATE VIEW madlib_mop.search_history WITH (security_invoker = true) AS
-- end
SELECT e.run_id, e.ordinal, e.event, e.mst_key, e.epoch, e.loss,
       c.number::bigint AS action_number, c.change AS action,
       (c.work ->> 'mst_key')::integer AS action_mst_key, (c.work ->> 'last_epoch')::integer AS until_epoch,
       (c.work ->> 'source')::integer AS source_mst_key, c.work ->> 'reason' AS reason,
       c.work ->> 'compile_params' AS compile_params, c.work ->> 'fit_params' AS fit_params,
       EXTRACT(epoch FROM e.at - r.created_at)::double precision AS seconds
FROM madlib_mop.search_event e JOIN madlib_mop.run r USING (run_id)
LEFT JOIN madlib_mop.change c ON c.run_id = e.run_id AND c.event = e.ordinal
-- if greenplum
WHERE madlib_mop_calls.may_see(r.owner)
-- end
;
COMMENT ON VIEW madlib_mop.search_history IS 'The events that a search received and its decisions: one row for each decision, and for each event without one';
COMMENT ON COLUMN madlib_mop.search_history.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.search_history.ordinal IS 'Number of the event in the run, from 0';
COMMENT ON COLUMN madlib_mop.search_history.event IS 'start, result, failed or budget';
COMMENT ON COLUMN madlib_mop.search_history.mst_key IS 'The model that the event is about';
COMMENT ON COLUMN madlib_mop.search_history.epoch IS 'The epoch that it had reached; with budget: the number of iterations that a new model could make before its end, NULL at its end';
COMMENT ON COLUMN madlib_mop.search_history.loss IS 'The loss that the search received';
COMMENT ON COLUMN madlib_mop.search_history.action_number IS 'Number of the decision among those on this event, from 1';
COMMENT ON COLUMN madlib_mop.search_history.action IS 'add, extend, stop, exploit or finish; NULL: no decision';
COMMENT ON COLUMN madlib_mop.search_history.action_mst_key IS 'The model that the decision is about';
COMMENT ON COLUMN madlib_mop.search_history.until_epoch IS 'The last epoch that it trains';
COMMENT ON COLUMN madlib_mop.search_history.source_mst_key IS 'With exploit: the model whose state it continues';
COMMENT ON COLUMN madlib_mop.search_history.reason IS 'Why it was stopped';
COMMENT ON COLUMN madlib_mop.search_history.compile_params IS 'With add and exploit: the compile parameters';
COMMENT ON COLUMN madlib_mop.search_history.fit_params IS 'With add and exploit: the fit parameters';
COMMENT ON COLUMN madlib_mop.search_history.seconds IS 'Seconds from the start of the run to the event';
