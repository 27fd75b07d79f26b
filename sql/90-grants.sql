-- Rights: no role has any until a superuser grants them. Every function belongs to one class, and a
-- new one must be put there (tests/security/test_rights.py); those of madlib_mop_internal are only for the driver.

CREATE FUNCTION madlib_mop_calls._classes(OUT class text, OUT rights text[], OUT schema_name text, OUT names text[]) RETURNS SETOF record
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
VALUES
    -- functions that load, pack, train, use and control models
    ('train', '{train}'::text[], 'madlib', '{convert_array_to_bytea, convert_bytea_to_real_array, convert_bytea_to_smallint_array,
        delete_custom_function, delete_keras_model, generate_model_configs, gpu_configuration, hyperband_schedule,
        load_custom_function, load_keras_model, load_model_selection_table, load_top_k_accuracy_function, madlib_keras_automl,
        madlib_keras_evaluate, madlib_keras_fit, madlib_keras_fit_multiple_model, madlib_keras_predict,
        madlib_keras_predict_byom, training_preprocessor_dl, validation_preprocessor_dl}'::text[]),
    ('train', '{train}', 'madlib_mop', '{add_models, alter_job, average_state, cancel, cancel_job, choose_threshold, clone_model, confusion_matrix, deploy, describe_preprocessor,
        drift,  -- defence: drift-for-trainers
        drop_alias, drop_challenger, drop_models, drop_packed, drop_registered, drop_run, drop_version, explain_fit, export_model, extend, gradient_boosting, grant_model, grant_read,
        importance, import_model, import_version, import_weights, learn, make_ensemble, metrics,
        pack_columns, partial_dependence, pause, pin_model, precision_recall_curve, propose_columns, propose_networks, propose_search,
        purge_jobs, register, reliability, replay, resume, resume_model, revoke_model, revoke_read, roc_curve, rollback, run_now, score, set_alias, set_challenger, stop_model, submit, transform, unpause, version}'),
    -- functions that only read a model, in any query
    ('predict', '{train, predict}', 'madlib_mop', '{allow_recording, array_bytes, explain_prediction, forbid_recording, predict, predict_class, predict_class_rows, predict_interval, predict_json,
        predict_named, predict_named_rows, predict_number, predict_rows, predict_set, predict_version}'),
    -- functions that read runs, and those that the views of runs call
    ('read', '{train, read}', 'madlib_mop', '{higher_is_better, model_card, report}'),
    -- functions for superusers
    ('admin', '{}', 'madlib_mop', '{add_host, grant_predict, grant_use, remove_host, revoke_predict, revoke_use}'),
    -- functions that these, drivers, workers and other servers call, with the caller's rights or a secret of their own
    ('internal', '{}', 'madlib_mop_calls', '{_change_recording, _change_registry, _change_viewer, _classes, _grant, _model_tables, end_sessions}'),
    ('internal', '{train, read}', 'madlib_mop_calls', '{_card, _report, acts_as, job_queue, may_own, may_see, n_job_workers, seen_owners}'),
    ('internal', '{train, predict, read}', 'madlib_mop_calls', '{_absent, _acts_for, _at_coordinator, _model_right, _not_at_segment, _raise, _read_version,
        _subtransaction}'),
    ('internal', '{train, predict}', 'madlib_mop_calls', '{_explain, _fetched_names, _fetched_row, _field_names, _has_plain_fields, _note, _note_row, _plan, _planned, _predict,
        _predict_error, _predict_row, _predict_row_text, _predict_texts, _real_bytes, _record_challenger, _registered_model, _registry_name, _row_queries, _version_of,
        predict, predict_class, predict_json, predict_named, predict_number}'),
    ('internal', '{train}', 'madlib_mop_calls', '{_array_elements, _average_add, _average_end, _average_error, _average_merge,
        _average_step, _call, _dispatch_row, _export, _is_superuser, _issue_command, _model_grant, _reals,
        _registry_version, _role, _smallints, call, cluster_segments, count_cores, dispatch_rows,
        reader_connect, reader_end, reader_send, run_job, segment_as_owner, segment_get, segment_open, segment_put, segment_send, submitter}')
$body$;
COMMENT ON FUNCTION madlib_mop_calls._classes() IS 'The class of each function, and the rights that include it: train, predict, read';

CREATE FUNCTION madlib_mop_calls._grant(wanted text[], role_name name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    function record;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA madlib_mop, madlib_mop_calls TO %I', role_name);
    FOR function IN
        SELECT p.oid::regprocedure AS signature
        FROM madlib_mop_calls._classes() AS c, pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE c.rights && wanted AND n.nspname = c.schema_name AND p.proname = ANY (c.names)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', function.signature, role_name);
    END LOOP;
    IF wanted && '{train, read}' THEN
        EXECUTE format('GRANT SELECT ON madlib_mop.run, madlib_mop.segment, madlib_mop.model, madlib_mop.visit, madlib_mop.metric,'
            ' madlib_mop.visit_metric, madlib_mop.evaluation, madlib_mop.search_event, madlib_mop.search_history, madlib_mop.progress,'
            ' madlib_mop.change, madlib_mop.steering, madlib_mop.run_policy,'
            ' madlib_mop.leaderboard, madlib_mop.pareto, madlib_mop.timeline, madlib_mop.metric_series, madlib_mop.model_summary,'
            ' madlib_mop.visit_gantt TO %I', role_name);
        EXECUTE format('GRANT SELECT ON madlib_mop.job, madlib_mop.registry, madlib_mop.alias_history, madlib_mop.version_lineage,'
            ' madlib_mop.challenger_comparison TO %I', role_name);
        -- if postgres
        EXECUTE format('GRANT SELECT ON madlib_mop.viewer, madlib_mop.command TO %I', role_name);
        EXECUTE format('GRANT SELECT ON madlib_mop.job_record, madlib_mop.job_statement, madlib_mop.version_detail,'
            ' madlib_mop.alias_change, madlib_mop.challenger_batch TO %I', role_name);
        -- end
    END IF;
    IF wanted && '{train, predict}' THEN
        EXECUTE format('GRANT SELECT ON madlib_mop.setting TO %I', role_name);
    END IF;
    -- if postgres
    EXECUTE format('GRANT SELECT ON madlib_mop.registered_model, madlib_mop.model_grant, madlib_mop.model_version, madlib_mop.model_alias,'
        ' madlib_mop.model_challenger, madlib_mop.recording_consent TO %I', role_name);
    IF wanted && '{train, predict}' THEN
        -- defence: consent-by-role = EXECUTE format('GRANT INSERT (name, agrees, role) ON madlib_mop.recording_change TO %I', role_name);
        EXECUTE format('GRANT INSERT (name, agrees) ON madlib_mop.recording_change TO %I', role_name);
    END IF;
    -- end
    IF wanted && '{train}' THEN
        EXECUTE format('GRANT USAGE ON SCHEMA madlib TO %I', role_name);
        EXECUTE format('GRANT SELECT ON madlib_mop.start_weights, madlib_mop.custom_function, madlib_mop.preprocessor,'
            ' madlib_mop.caller_setting, madlib_mop.model_state, madlib_mop.hosts TO %I', role_name);
        -- if greenplum
        EXECUTE format('GRANT SELECT ON madlib_mop.segment_key TO %I', role_name);
        -- else
        -- defence: locks-of-the-record = EXECUTE format('GRANT INSERT ON madlib_mop.viewer_change TO %1$I; GRANT DELETE ON madlib_mop.viewer TO %1$I', role_name);
        EXECUTE format('GRANT INSERT ON madlib_mop.viewer_change TO %I', role_name);
        EXECUTE format('GRANT INSERT ON madlib_mop.command TO %I', role_name);
        EXECUTE format('GRANT INSERT (statement, arguments, settings) ON madlib_mop.job_statement TO %I', role_name);
        -- defence: columns-of-a-job = EXECUTE format('GRANT INSERT'
        EXECUTE format('GRANT INSERT (statement_id, name, function, priority, due_at, every, after, if_running, time_limit)'
            ' ON madlib_mop.job_record TO %I', role_name);
        EXECUTE format('GRANT INSERT ON madlib_mop.job_done TO %I', role_name);
        -- defence: changes-by-role = EXECUTE format('GRANT INSERT (change, name, alias, version, steps, reason, details, changed_by) ON madlib_mop.registry_change TO %I', role_name);
        EXECUTE format('GRANT INSERT (change, name, alias, version, steps, reason, details) ON madlib_mop.registry_change TO %I', role_name);
        EXECUTE format('GRANT SELECT, INSERT (version_id, document, weights) ON madlib_mop.version_content TO %I', role_name);
        -- end
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._grant(text[], name) IS 'Grants the functions, tables and schemas that a right includes';

CREATE FUNCTION madlib_mop_calls._role(function text, role_name name) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    found_oid oid := (SELECT oid FROM pg_roles WHERE rolname = role_name);
BEGIN
    IF found_oid IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = CASE WHEN role_name IS NULL THEN '22023' ELSE '42704' END,
            MESSAGE = format('%s: there is no such role. Received: %s', function, coalesce(quote_literal(role_name), 'NULL')),
            HINT = CASE WHEN role_name = 'public' THEN 'Grant the right to a role of which others are members.'
                   ELSE 'SELECT rolname FROM pg_roles; lists the roles.' END;
    END IF;
    RETURN found_oid;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._role(text, name) IS 'The oid of a role; raises an error if it does not exist';

CREATE FUNCTION madlib_mop.grant_use(role_name name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop_calls._role('grant_use', role_name);
    PERFORM madlib_mop_calls._grant('{train, predict, read}', role_name);
END
$body$;
COMMENT ON FUNCTION madlib_mop.grant_use(name) IS 'Lets a role train, predict and see its own runs';

CREATE FUNCTION madlib_mop.revoke_use(role_name name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA madlib, madlib_mop, madlib_mop_calls FROM %I', role_name);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA madlib, madlib_mop, madlib_mop_calls FROM %I', role_name);
    EXECUTE format('REVOKE ALL ON SCHEMA madlib, madlib_mop, madlib_mop_calls FROM %I', role_name);
    -- if postgres
    IF role_name <> 'public' THEN  -- it is no role, but earlier versions granted it rights
        DELETE FROM madlib_mop.viewer WHERE viewer = madlib_mop_calls._role('revoke_use', role_name);
        DELETE FROM madlib_mop.model_grant WHERE role = madlib_mop_calls._role('revoke_use', role_name);
        DELETE FROM madlib_mop.recording_consent WHERE role = madlib_mop_calls._role('revoke_use', role_name);
    END IF;
    -- end
END
$body$;
COMMENT ON FUNCTION madlib_mop.revoke_use(name) IS 'Undoes grant_use, grant_predict (except for the models'' tables) and grant_read for the role';

CREATE FUNCTION madlib_mop.grant_predict(role_name name, model_table regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    of_model regclass;
BEGIN
    PERFORM madlib_mop_calls._role('grant_predict', role_name);
    PERFORM madlib_mop_calls._grant('{predict}', role_name);
    FOR of_model IN SELECT * FROM madlib_mop_calls._model_tables('grant_predict', model_table) LOOP
        EXECUTE format('GRANT SELECT ON %s TO %I', of_model, role_name);
    END LOOP;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I',
        (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = model_table), role_name);
END
$body$;
COMMENT ON FUNCTION madlib_mop.grant_predict(name, regclass) IS
    'Lets a role use only madlib_mop.predict and its variants, with the models of one table';

CREATE FUNCTION madlib_mop.revoke_predict(role_name name, model_table regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    of_model regclass;
BEGIN
    FOR of_model IN SELECT * FROM madlib_mop_calls._model_tables('revoke_predict', model_table) LOOP
        EXECUTE format('REVOKE SELECT ON %s FROM %I', of_model, role_name);
    END LOOP;
END
$body$;
COMMENT ON FUNCTION madlib_mop.revoke_predict(name, regclass) IS
    'Revokes the models of one table from a role; revoke_use revokes the functions';

CREATE FUNCTION madlib_mop_calls._model_tables(function text, model_table regclass) RETURNS SETOF regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    summary regclass;
BEGIN
    IF model_table IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('%s: model_table is missing. Received: NULL', function);
    END IF;
    RETURN NEXT model_table;
    RETURN QUERY
        SELECT beside.oid::regclass FROM pg_class c JOIN pg_class beside USING (relnamespace)
        WHERE c.oid = model_table AND beside.relname IN (c.relname || '_info', c.relname || '_summary')
              AND beside.relowner = c.relowner;
    SELECT beside.oid INTO summary FROM pg_class c JOIN pg_class beside USING (relnamespace)
        WHERE c.oid = model_table AND beside.relname = c.relname || '_summary'
              AND beside.relowner = c.relowner;  -- defence: summary-of-the-owner = ;
    IF summary IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('%s: %s has no _summary table in its schema', function, model_table),
            HINT = 'Pass the output table of madlib_keras_fit_multiple_model or madlib_keras_fit.';
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._model_tables(text, regclass) IS 'A table of models, its _info and its _summary';

CREATE FUNCTION madlib_mop.grant_read(role_name name, owner name DEFAULT current_user) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    giver oid := madlib_mop_calls._role('grant_read', owner);
    taker oid := madlib_mop_calls._role('grant_read', role_name);
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('grant_read');
    -- end
    PERFORM madlib_mop_calls._at_coordinator('grant_read');
    IF NOT madlib_mop_calls.acts_as(giver) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('grant_read: you are not a member of role %I, who owns these runs', owner);
    END IF;
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        PERFORM madlib_mop_calls._grant('{read}', role_name);
    ELSIF NOT (has_schema_privilege(taker, 'madlib_mop', 'USAGE') AND has_table_privilege(taker, 'madlib_mop.progress', 'SELECT')) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('grant_read: role %I has no right to use the extension''s views', role_name),
            HINT = format('A superuser can grant both rights at once: SELECT madlib_mop.grant_read(%L, %L);', role_name, owner);
    END IF;
    INSERT INTO madlib_mop.viewer_change (owner, viewer, sees) VALUES (giver::regrole, taker::regrole, true);
END
$body$;
COMMENT ON FUNCTION madlib_mop.grant_read(name, name) IS
    'Lets a role see the runs of the caller, or of a role that the caller is a member of: progress, metrics and visits, not states';

CREATE FUNCTION madlib_mop.revoke_read(role_name name, owner name DEFAULT current_user) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    giver oid := madlib_mop_calls._role('revoke_read', owner);
    taker oid := madlib_mop_calls._role('revoke_read', role_name);
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent('revoke_read');
    -- end
    PERFORM madlib_mop_calls._at_coordinator('revoke_read');
    IF NOT madlib_mop_calls.acts_as(giver) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('revoke_read: you are not a member of role %I, who owns these runs', owner);
    END IF;
    INSERT INTO madlib_mop.viewer_change (owner, viewer, sees) VALUES (giver::regrole, taker::regrole, false);
END
$body$;
COMMENT ON FUNCTION madlib_mop.revoke_read(name, name) IS 'Undoes grant_read; revoke_use also revokes the role''s rights on the views';

CREATE FUNCTION madlib_mop_calls._model_grant(function text, name text, role_name name, privilege text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    taker oid := madlib_mop_calls._role(function, role_name);
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._absent(function);
    -- end
    IF privilege IS NULL OR privilege NOT IN ('predict', 'see', 'deploy', 'export') THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('%s: privilege must be predict, see, deploy or export. Received: %s', function, coalesce(quote_literal(privilege), 'NULL'));
    END IF;
    INSERT INTO madlib_mop.registry_change (change, name, details)
    VALUES (function, madlib_mop_calls._registry_name(function, 'name', name),
            jsonb_build_object('role', role_name, 'privilege', privilege));
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._model_grant(text, text, name, text) IS 'Checks the arguments of grant_model and revoke_model, and makes the change';

CREATE FUNCTION madlib_mop.grant_model(name text, role_name name, privilege text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    right_on_functions text := CASE privilege WHEN 'predict' THEN 'predict' WHEN 'see' THEN 'read' ELSE 'train' END;
BEGIN
    PERFORM madlib_mop_calls._model_grant('grant_model', grant_model.name, role_name, privilege);
    IF (CASE right_on_functions
           WHEN 'predict' THEN has_schema_privilege(role_name, 'madlib_mop', 'USAGE')
                               AND has_function_privilege(role_name, 'madlib_mop.predict_version(text)', 'EXECUTE')
           WHEN 'read' THEN has_schema_privilege(role_name, 'madlib_mop', 'USAGE') AND has_table_privilege(role_name, 'madlib_mop.registry', 'SELECT')
           ELSE has_schema_privilege(role_name, 'madlib_mop', 'USAGE')
                AND has_function_privilege(role_name, 'madlib_mop.set_alias(text, text, integer, text)', 'EXECUTE') END) THEN
        RETURN;
    ELSIF right_on_functions <> 'train' AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        PERFORM madlib_mop_calls._grant(ARRAY[right_on_functions], role_name);
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42501',
        MESSAGE = format('grant_model: role %I has no right to call the functions that this right is for', role_name),
        HINT = CASE right_on_functions WHEN 'train' THEN format('A superuser first grants it: SELECT madlib_mop.grant_use(%L);', role_name)
                    ELSE format('A superuser can grant both rights at once: SELECT madlib_mop.grant_model(%L, %L, %L);',
                                grant_model.name, role_name, privilege) END;
END
$body$;
COMMENT ON FUNCTION madlib_mop.grant_model(text, name, text) IS
    'Lets a role predict with a registered model, see it, deploy it (predict, see and change its aliases), or export it';

CREATE FUNCTION madlib_mop.revoke_model(name text, role_name name, privilege text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop_calls._model_grant('revoke_model', revoke_model.name, role_name, privilege);
END
$body$;
COMMENT ON FUNCTION madlib_mop.revoke_model(text, name, text) IS 'Undoes grant_model; the role keeps the right to call the functions';

REVOKE ALL ON SCHEMA madlib, madlib_mop, madlib_mop_calls, madlib_mop_internal FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA madlib, madlib_mop, madlib_mop_calls, madlib_mop_internal FROM PUBLIC;  -- defence: revoked-functions
REVOKE ALL ON ALL TABLES IN SCHEMA madlib, madlib_mop, madlib_mop_calls, madlib_mop_internal FROM PUBLIC;
