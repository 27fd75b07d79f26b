-- The registry: functions and views for users. A change is one row inserted into registry_change (29-registry-changes.sql).

CREATE FUNCTION madlib_mop_calls._registry_name(function text, what text, given text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    folded text := lower(given COLLATE "C");
BEGIN
    IF folded IS NULL OR folded !~ (CASE what WHEN 'alias' THEN '^[a-z_][a-z0-9_.-]{0,62}$' ELSE '^[a-z0-9_][a-z0-9_.-]{0,62}$' END) THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('%s: %s must have 1 to 63 letters (a to z), digits, _, . or -, and begin with a letter%s or _. Received: %s',
                             function, what, CASE what WHEN 'alias' THEN '' ELSE ', a digit' END, coalesce(quote_literal(given), 'NULL')),
            HINT = CASE what WHEN 'alias' THEN 'For example champion.' ELSE 'For example churn.' END;
    END IF;
    RETURN folded;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._registry_name(text, text, text) IS 'The name of a registered model or an alias in lower case; raises an error if it cannot be one';

CREATE FUNCTION madlib_mop_calls._registry_version(function text, given integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF given IS NULL OR given < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'SELECT name, version FROM madlib_mop.registry;',
            MESSAGE = format('%s: version must be at least 1. Received: %s', function, coalesce(given::text, 'NULL'));
    END IF;
    RETURN given;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._registry_version(text, integer) IS 'The number of a version; raises an error if it cannot be one';

CREATE FUNCTION madlib_mop.set_alias(name text, alias text, version integer, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('set_alias');
    -- end
    INSERT INTO madlib_mop.registry_change (change, name, alias, version, reason)
    VALUES ('set_alias', madlib_mop_calls._registry_name('set_alias', 'name', set_alias.name),
            madlib_mop_calls._registry_name('set_alias', 'alias', set_alias.alias),
            madlib_mop_calls._registry_version('set_alias', set_alias.version), set_alias.reason);
END
$body$;
COMMENT ON FUNCTION madlib_mop.set_alias(text, text, integer, text) IS 'Gives an alias of a registered model a version; the next statement that predicts with it uses this version';

CREATE FUNCTION madlib_mop.drop_alias(name text, alias text, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('drop_alias');
    -- end
    INSERT INTO madlib_mop.registry_change (change, name, alias, reason)
    VALUES ('drop_alias', madlib_mop_calls._registry_name('drop_alias', 'name', drop_alias.name),
            madlib_mop_calls._registry_name('drop_alias', 'alias', drop_alias.alias), drop_alias.reason);
END
$body$;
COMMENT ON FUNCTION madlib_mop.drop_alias(text, text, text) IS 'Drops an alias of a registered model, with its challenger; its history stays';

CREATE FUNCTION madlib_mop.rollback(name text, alias text, steps integer DEFAULT 1, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    model text := madlib_mop_calls._registry_name('rollback', 'name', rollback.name);
    of_model text := madlib_mop_calls._registry_name('rollback', 'alias', rollback.alias);
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('rollback');
    -- end
    IF steps IS NULL OR steps < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('rollback: steps must be at least 1. Received: %s', coalesce(steps::text, 'NULL'));
    END IF;
    INSERT INTO madlib_mop.registry_change (change, name, alias, steps, reason)
    VALUES ('rollback', model, of_model, rollback.steps, rollback.reason);
    RETURN (SELECT a.version FROM madlib_mop.model_alias a WHERE a.name = model AND a.alias = of_model);
END
$body$;
COMMENT ON FUNCTION madlib_mop.rollback(text, text, integer, text) IS
    'Returns an alias to the version that it had before; a second call goes one version further back. Returns the version';

CREATE FUNCTION madlib_mop.set_challenger(
    name text, alias text, version integer, share double precision DEFAULT 0.1, max_rows bigint DEFAULT 100000) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('set_challenger');
    -- end
    IF share IS NULL OR NOT (share > 0 AND share <= 1) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = '0.1 is a tenth of the calls.',
            MESSAGE = format('set_challenger: share must be above 0 and at most 1. Received: %s', coalesce(share::text, 'NULL'));
    ELSIF max_rows IS NULL OR max_rows < 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('set_challenger: max_rows must be at least 1. Received: %s', coalesce(max_rows::text, 'NULL'));
    END IF;
    INSERT INTO madlib_mop.registry_change (change, name, alias, version, details)
    VALUES ('set_challenger', madlib_mop_calls._registry_name('set_challenger', 'name', set_challenger.name),
            madlib_mop_calls._registry_name('set_challenger', 'alias', set_challenger.alias),
            madlib_mop_calls._registry_version('set_challenger', set_challenger.version),
            jsonb_build_object('share', set_challenger.share, 'max_rows', set_challenger.max_rows));
END
$body$;
COMMENT ON FUNCTION madlib_mop.set_challenger(text, text, integer, double precision, bigint) IS
    'Lets a version predict beside the version of an alias, for a share of the calls; both outputs are recorded';

CREATE FUNCTION madlib_mop.drop_challenger(name text, alias text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('drop_challenger');
    -- end
    INSERT INTO madlib_mop.registry_change (change, name, alias)
    VALUES ('drop_challenger', madlib_mop_calls._registry_name('drop_challenger', 'name', drop_challenger.name),
            madlib_mop_calls._registry_name('drop_challenger', 'alias', drop_challenger.alias));
END
$body$;
COMMENT ON FUNCTION madlib_mop.drop_challenger(text, text) IS 'Ends the challenger of an alias; what was recorded stays';

CREATE FUNCTION madlib_mop.allow_recording(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('allow_recording');
    -- end
    INSERT INTO madlib_mop.recording_change (name, agrees)
    VALUES (madlib_mop_calls._registry_name('allow_recording', 'name', allow_recording.name), true);
END
$body$;
COMMENT ON FUNCTION madlib_mop.allow_recording(text) IS
    'Agrees for the current role that challengers of a registered model predict what it predicts, and that both outputs are recorded for the owner';

CREATE FUNCTION madlib_mop.forbid_recording(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('forbid_recording');
    -- end
    INSERT INTO madlib_mop.recording_change (name, agrees)
    VALUES (madlib_mop_calls._registry_name('forbid_recording', 'name', forbid_recording.name), false);
END
$body$;
COMMENT ON FUNCTION madlib_mop.forbid_recording(text) IS 'Undoes allow_recording for the current role; what was recorded stays';

CREATE FUNCTION madlib_mop.drop_version(name text, version integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('drop_version');
    -- end
    INSERT INTO madlib_mop.registry_change (change, name, version)
    VALUES ('drop_version', madlib_mop_calls._registry_name('drop_version', 'name', drop_version.name),
            madlib_mop_calls._registry_version('drop_version', drop_version.version));
END
$body$;
COMMENT ON FUNCTION madlib_mop.drop_version(text, integer) IS 'Drops a version of a registered model; an error if it has an alias';

CREATE FUNCTION madlib_mop.drop_registered(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('drop_registered');
    -- end
    INSERT INTO madlib_mop.registry_change (change, name)
    VALUES ('drop_registered', madlib_mop_calls._registry_name('drop_registered', 'name', drop_registered.name));
END
$body$;
COMMENT ON FUNCTION madlib_mop.drop_registered(text) IS
    'Drops a registered model: all versions, the history and the rights; an error if it has an alias';

CREATE FUNCTION madlib_mop_calls._version_of(model text) RETURNS integer
LANGUAGE plpython3u STABLE COST 1000 SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_version
return predict_version.version_of(model, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._version_of(text) IS 'The version that answers for a registered model now; NULL after an error';

CREATE FUNCTION madlib_mop.predict_version(model_table text) RETURNS integer
LANGUAGE plpgsql STABLE COST 1000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer integer;
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('predict_version');
    -- end
    answer := madlib_mop_calls._version_of(model_table);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_version(text) IS
    'The version with which predict and its variants answer in the same statement, for a name such as churn@champion';

-- if greenplum
CREATE VIEW madlib_mop.registry AS
SELECT NULL::text AS name, NULL::integer AS version, NULL::text[] AS aliases, NULL::name AS owner,
       NULL::name AS registered_by, NULL::timestamptz AS registered_at, NULL::text AS note,
       NULL::text AS model_table, NULL::integer AS mst_key, NULL::bigint AS run_id, NULL::integer AS epoch,
       NULL::jsonb AS metrics, NULL::text AS digest, NULL::bigint AS n_bytes
WHERE madlib_mop_calls._absent('madlib_mop.registry') OFFSET 0;
COMMENT ON VIEW madlib_mop.registry IS 'Raises an error that says that this view is not on this server';

CREATE VIEW madlib_mop.alias_history AS
SELECT NULL::text AS name, NULL::text AS alias, NULL::bigint AS change_id, NULL::text AS change,
       NULL::integer AS from_version, NULL::integer AS to_version, NULL::name AS changed_by,
       NULL::timestamptz AS changed_at, NULL::text AS reason, NULL::jsonb AS evidence,
       NULL::boolean AS is_current
WHERE madlib_mop_calls._absent('madlib_mop.alias_history') OFFSET 0;
COMMENT ON VIEW madlib_mop.alias_history IS 'Raises an error that says that this view is not on this server';

CREATE VIEW madlib_mop.version_lineage AS
SELECT NULL::text AS name, NULL::integer AS version, NULL::bigint AS run_id, NULL::integer AS mst_key,
       NULL::text AS source_table, NULL::integer AS epoch, NULL::integer AS "position",
       NULL::integer AS segment_id, NULL::timestamptz AS ended_at, NULL::bigint AS n_rows,
       NULL::text AS rows_digest, NULL::text AS digest_in, NULL::text AS digest_out
WHERE madlib_mop_calls._absent('madlib_mop.version_lineage') OFFSET 0;
COMMENT ON VIEW madlib_mop.version_lineage IS 'Raises an error that says that this view is not on this server';

CREATE VIEW madlib_mop.challenger_comparison AS
SELECT NULL::text AS name, NULL::text AS alias, NULL::bigint AS challenger_id, NULL::integer AS version,
       NULL::integer AS challenger_version, NULL::bigint AS n_rows, NULL::double precision AS same_best_share,
       NULL::double precision AS mean_difference, NULL::double precision AS max_difference,
       NULL::timestamptz AS first_at, NULL::timestamptz AS last_at
WHERE madlib_mop_calls._absent('madlib_mop.challenger_comparison') OFFSET 0;
COMMENT ON VIEW madlib_mop.challenger_comparison IS 'Raises an error that says that this view is not on this server';
-- else
-- The rights of the calling role are checked by the caller of this function, in Python; called from SQL, it does nothing.
CREATE FUNCTION madlib_mop_calls._read_version() RETURNS void
LANGUAGE plpython3u STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import registered
registered.read_wanted()
$body$;
COMMENT ON FUNCTION madlib_mop_calls._read_version() IS
    'Reads the content of a version into the memory of the prediction that asked for it; does nothing and returns nothing if called from SQL';

CREATE FUNCTION madlib_mop_calls._record_challenger() RETURNS void
LANGUAGE plpython3u VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import challenger
challenger.write_pending()
$body$;
COMMENT ON FUNCTION madlib_mop_calls._record_challenger() IS
    'Records predictions of a challenger from the memory of the prediction that asked for it; does nothing if called from SQL';

CREATE VIEW madlib_mop.registry WITH (security_invoker = true) AS
SELECT v.name, v.version,
       coalesce((SELECT pg_catalog.array_agg(a.alias ORDER BY a.alias) FROM madlib_mop.model_alias a
                 WHERE a.version_id = v.version_id), '{}') AS aliases,
       pg_catalog.pg_get_userbyid(r.owner) AS owner, v.registered_by, v.registered_at,
       d.note, d.model_table, d.mst_key, d.run_id, d.epoch, d.metrics, d.digest, d.n_bytes
FROM madlib_mop.model_version v JOIN madlib_mop.registered_model r ON r.name = v.name
LEFT JOIN madlib_mop.version_detail d ON d.version_id = v.version_id;
COMMENT ON VIEW madlib_mop.registry IS 'The versions of the registered models that you may use; columns from note on are NULL without the right to see the model';
COMMENT ON COLUMN madlib_mop.registry.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.registry.version IS 'The number of the version';
COMMENT ON COLUMN madlib_mop.registry.aliases IS 'The aliases that stand for this version now';
COMMENT ON COLUMN madlib_mop.registry.owner IS 'The role that owns the name';
COMMENT ON COLUMN madlib_mop.registry.registered_by IS 'The role that registered the version';
COMMENT ON COLUMN madlib_mop.registry.registered_at IS 'When it was registered';
COMMENT ON COLUMN madlib_mop.registry.note IS 'The note given to register()';
COMMENT ON COLUMN madlib_mop.registry.model_table IS 'The output table that it was copied from; NULL: it was imported from a file';
COMMENT ON COLUMN madlib_mop.registry.mst_key IS 'Its key there';
COMMENT ON COLUMN madlib_mop.registry.run_id IS 'The run that trained it';
COMMENT ON COLUMN madlib_mop.registry.epoch IS 'The epoch of its weights';
COMMENT ON COLUMN madlib_mop.registry.metrics IS 'Its newest metrics in that run, by data set and name';
COMMENT ON COLUMN madlib_mop.registry.digest IS 'SHA-256 of its weights';
COMMENT ON COLUMN madlib_mop.registry.n_bytes IS 'Size of its weights';

CREATE VIEW madlib_mop.alias_history WITH (security_invoker = true) AS
SELECT h.name, h.alias, h.change_id, h.change, h.from_version, h.to_version, h.changed_by, h.changed_at, h.reason, h.evidence,
       coalesce(h.change_id = a.change_id, false) AS is_current
FROM madlib_mop.alias_change h LEFT JOIN madlib_mop.model_alias a ON a.name = h.name AND a.alias = h.alias;
COMMENT ON VIEW madlib_mop.alias_history IS 'The changes of aliases: who, when, why, from which version to which; also those that a rollback has undone';
COMMENT ON COLUMN madlib_mop.alias_history.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.alias_history.alias IS 'The alias';
COMMENT ON COLUMN madlib_mop.alias_history.change_id IS 'The number of the change, unique in the database';
COMMENT ON COLUMN madlib_mop.alias_history.change IS 'set_alias, deploy, rollback or drop_alias';
COMMENT ON COLUMN madlib_mop.alias_history.from_version IS 'The version before; NULL: the alias was new';
COMMENT ON COLUMN madlib_mop.alias_history.to_version IS 'The version after; NULL: the alias was dropped';
COMMENT ON COLUMN madlib_mop.alias_history.changed_by IS 'The role that made the change';
COMMENT ON COLUMN madlib_mop.alias_history.changed_at IS 'When it was made';
COMMENT ON COLUMN madlib_mop.alias_history.reason IS 'The reason given';
COMMENT ON COLUMN madlib_mop.alias_history.evidence IS 'For a deploy with conditions: metric, table, and the values that were compared';
COMMENT ON COLUMN madlib_mop.alias_history.is_current IS 'Whether this change gave the alias the version that it has now; a rollback moves this mark back';

CREATE VIEW madlib_mop.version_lineage WITH (security_invoker = true) AS
SELECT v.name, v.version, d.run_id, coalesce(x.mst_key, d.mst_key) AS mst_key, d.lineage ->> 'source_table' AS source_table,
       x.epoch, x.position, x.segment_id, x.ended_at, x.n_rows, x.rows_digest, x.digest_in, x.digest_out
FROM madlib_mop.model_version v JOIN madlib_mop.version_detail d ON d.version_id = v.version_id
CROSS JOIN LATERAL pg_catalog.jsonb_to_recordset(d.lineage -> 'visits') AS x (
    mst_key integer, epoch integer, position integer, segment_id integer, ended_at timestamptz, n_rows bigint, rows_digest text, digest_in text,
    digest_out text); -- as madlib_mop_internal.add_version has checked them
COMMENT ON VIEW madlib_mop.version_lineage IS 'The visits that trained a version, in the run that trained it, each with the rows it saw; drop_run does not change it';
COMMENT ON COLUMN madlib_mop.version_lineage.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.version_lineage.version IS 'The number of the version';
COMMENT ON COLUMN madlib_mop.version_lineage.run_id IS 'The run';
COMMENT ON COLUMN madlib_mop.version_lineage.mst_key IS 'The key, in the run, of the model that made the visit; another one if a search or a clone copied the state of that model';
COMMENT ON COLUMN madlib_mop.version_lineage.source_table IS 'The packed table of the run';
COMMENT ON COLUMN madlib_mop.version_lineage.epoch IS 'The epoch of that model that the visit belongs to';
COMMENT ON COLUMN madlib_mop.version_lineage.position IS 'Position of the visit in its epoch, from 1';
COMMENT ON COLUMN madlib_mop.version_lineage.segment_id IS 'The segment that trained the model';
COMMENT ON COLUMN madlib_mop.version_lineage.ended_at IS 'When the visit was committed';
COMMENT ON COLUMN madlib_mop.version_lineage.n_rows IS 'Number of rows';
COMMENT ON COLUMN madlib_mop.version_lineage.rows_digest IS 'SHA-256 of the rows of the segment';
COMMENT ON COLUMN madlib_mop.version_lineage.digest_in IS 'SHA-256 of the training state before the visit';
COMMENT ON COLUMN madlib_mop.version_lineage.digest_out IS 'SHA-256 of the training state after the visit';

CREATE VIEW madlib_mop.challenger_comparison WITH (security_invoker = true) AS
SELECT b.name, b.alias, b.challenger_id, b.version, b.challenger_version, pg_catalog.sum(b.n_rows)::bigint AS n_rows,
       pg_catalog.sum(o.n_same_best)::double precision / nullif(pg_catalog.sum(o.n_compared), 0) AS same_best_share,
       pg_catalog.sum(o.difference) / nullif(pg_catalog.sum(o.n_values), 0) AS mean_difference,
       pg_catalog.max(o.max_difference) AS max_difference,
       pg_catalog.min(b.at) AS first_at, pg_catalog.max(b.at) AS last_at
FROM madlib_mop.challenger_batch b
-- OFFSET 0: else the planner would put these expressions into each use, and each would read the whole array
CROSS JOIN LATERAL (SELECT pg_catalog.array_length(b.outputs, 2) AS width, pg_catalog.array_length(b.challenger_outputs, 2) AS other_width OFFSET 0) w
CROSS JOIN LATERAL (
    SELECT pg_catalog.sum(r.n_values) AS n_values, pg_catalog.sum(r.difference) AS difference, pg_catalog.max(r.max_difference) AS max_difference,
           CASE WHEN w.width > 1 AND w.width = w.other_width THEN pg_catalog.count(*) FILTER (WHERE r.best = r.other_best) END AS n_same_best,
           CASE WHEN w.width > 1 AND w.width = w.other_width THEN b.n_rows END AS n_compared
    FROM (
        SELECT pg_catalog.count(*) AS n_values, pg_catalog.sum(pg_catalog.abs(v.one - v.other)) AS difference,
               pg_catalog.max(pg_catalog.abs(v.one - v.other)) AS max_difference,
               pg_catalog.min(v.n) FILTER (WHERE v.one = v.highest) AS best,
               pg_catalog.min(v.n) FILTER (WHERE v.other = v.other_highest) AS other_best
        FROM (
            SELECT u.one, u.other, u.n, (u.n - 1) / w.width AS place,
                   pg_catalog.max(u.one) OVER of_row AS highest, pg_catalog.max(u.other) OVER of_row AS other_highest
            -- without subscripts, each of which would read the whole array
            FROM ROWS FROM (pg_catalog.unnest(b.outputs), pg_catalog.unnest(b.challenger_outputs)) WITH ORDINALITY AS u (one, other, n)
            WHERE w.width = w.other_width
            WINDOW of_row AS (PARTITION BY (u.n - 1) / w.width)) v
        GROUP BY v.place) r) o
GROUP BY b.name, b.alias, b.challenger_id, b.version, b.challenger_version;
COMMENT ON VIEW madlib_mop.challenger_comparison IS 'How the predictions of a challenger differ from those of the version that answered, on the same rows';
COMMENT ON COLUMN madlib_mop.challenger_comparison.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.challenger_comparison.alias IS 'The alias';
COMMENT ON COLUMN madlib_mop.challenger_comparison.challenger_id IS 'The challenger; one that is set again has another number';
COMMENT ON COLUMN madlib_mop.challenger_comparison.version IS 'The version that answered';
COMMENT ON COLUMN madlib_mop.challenger_comparison.challenger_version IS 'The version of the challenger';
COMMENT ON COLUMN madlib_mop.challenger_comparison.n_rows IS 'Number of rows that both predicted';
COMMENT ON COLUMN madlib_mop.challenger_comparison.same_best_share IS 'Share of rows for which the same output is the highest, such as the same class; NULL for a single output, or different numbers of outputs';
COMMENT ON COLUMN madlib_mop.challenger_comparison.mean_difference IS 'Mean of the absolute differences of all outputs; NULL if the two have different numbers of outputs';
COMMENT ON COLUMN madlib_mop.challenger_comparison.max_difference IS 'The greatest absolute difference of an output';
COMMENT ON COLUMN madlib_mop.challenger_comparison.first_at IS 'When the first row was recorded';
COMMENT ON COLUMN madlib_mop.challenger_comparison.last_at IS 'When the last row was recorded';
-- end
