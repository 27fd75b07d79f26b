-- The narrow functions by which a worker reads what it needs and writes what it did. They run with the extension
-- owner's rights, hold static SQL only, and obey nobody but the run's own login role with the worker's own token, so
-- that user code which a worker's query happens to run (a view, a policy, a deferred trigger) cannot use them. Other
-- sessions of the same login role see a token in pg_stat_activity for a moment; it is good in its own process only.

CREATE FUNCTION madlib_mop.worker_check(run_id bigint, token text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF NOT EXISTS (
        SELECT FROM madlib_mop.run r
        WHERE r.run_id = worker_check.run_id AND r.login_role = session_user AND r.state = 'running'
              AND sha256(convert_to(pg_backend_pid() || ':' || token, 'UTF8')) = ANY (r.token_digests)
    ) THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('run %s: only a worker session of this run may do this', run_id);
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_check(bigint, text) IS 'Raises unless this session is a worker of the run';

CREATE FUNCTION madlib_mop.worker_plan(run_id bigint, token text) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    RETURN (SELECT json_build_object('plan', r.plan, 'seed', r.seed) FROM madlib_mop.run r WHERE r.run_id = worker_plan.run_id);
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_plan(bigint, text) IS 'What a worker must know of its run';

CREATE FUNCTION madlib_mop.worker_model(run_id bigint, token text, mst_key integer) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    RETURN (
        SELECT json_build_object('mst_key', m.mst_key, 'arch', m.model_arch, 'compile_params', m.compile_params, 'fit_params', m.fit_params,
            'digest', m.digest, 'state_slot', m.state_slot, 'state_version', m.state_version,
            'forward_parts', m.forward_parts, 'has_weights', m.start_weights IS NOT NULL, 'taken_over', m.taken_over)
        FROM madlib_mop.model m WHERE m.run_id = worker_model.run_id AND m.mst_key = worker_model.mst_key);
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_model(bigint, text, integer) IS 'One configuration, and where its newest state is';

CREATE FUNCTION madlib_mop.worker_start_weights(run_id bigint, token text, mst_key integer) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    RETURN (
        SELECT w.weights FROM madlib_mop.start_weights w JOIN madlib_mop.model m ON m.run_id = w.run_id AND m.start_weights = w.origin
        WHERE m.run_id = worker_start_weights.run_id AND m.mst_key = worker_start_weights.mst_key);
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_start_weights(bigint, text, integer) IS 'Weights that a model starts from';

CREATE FUNCTION madlib_mop.worker_custom_functions(run_id bigint, token text) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    RETURN (
        SELECT json_build_object('functions', json_object_agg(f.name, encode(f.object, 'base64')),
            'pickles', EXISTS (SELECT FROM madlib_mop.setting s WHERE s.name = 'pickled_functions' AND s.value = 'on'))
        FROM madlib_mop.custom_function f WHERE f.run_id = worker_custom_functions.run_id HAVING count(*) > 0);
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_custom_functions(bigint, text) IS 'The custom functions that the run uses, or NULL';

CREATE FUNCTION madlib_mop.worker_state_part(run_id bigint, token text, mst_key integer, slot bigint, version bigint, part integer) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    RETURN (
        SELECT s.data FROM madlib_mop.model_state s
        WHERE s.slot = worker_state_part.slot AND s.run_id = worker_state_part.run_id AND s.mst_key = worker_state_part.mst_key
              AND s.version = worker_state_part.version AND s.part = worker_state_part.part AND s.segment_id IS NULL);
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_state_part(bigint, text, integer, bigint, bigint, integer) IS 'One part of a state, or NULL after the last';

CREATE FUNCTION madlib_mop.worker_put_state_part(run_id bigint, token text, mst_key integer, slot bigint, version bigint, part integer, data bytea) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    INSERT INTO madlib_mop.model_state (slot, run_id, mst_key, version, part, data) VALUES (slot, run_id, mst_key, version, part, data);
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_put_state_part(bigint, text, integer, bigint, bigint, integer, bytea) IS 'Writes one part of a new state';

CREATE FUNCTION madlib_mop.worker_keep_visit(run_id bigint, token text, mst_key integer, visit json) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
DECLARE
    old record;
    new_visit_id bigint;
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    SELECT m.digest, m.state_slot, m.state_version INTO STRICT old FROM madlib_mop.model m
        WHERE m.run_id = worker_keep_visit.run_id AND m.mst_key = worker_keep_visit.mst_key FOR UPDATE;
    IF old.state_version <> (visit ->> 'old_version')::bigint OR old.digest <> (visit ->> 'digest_in') THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another visit was kept meanwhile', run_id, mst_key);
    END IF;
    UPDATE madlib_mop.model m SET
        state = 'training', epoch = (visit ->> 'epoch')::integer, position = (visit ->> 'position')::integer,
        state_version = (visit ->> 'version')::bigint, state_slot = (visit ->> 'slot')::bigint,
        state_bytes = (visit ->> 'state_bytes')::bigint, model_bytes = (visit ->> 'model_bytes')::bigint,
        forward_parts = (visit ->> 'forward_parts')::integer,
        digest = visit ->> 'digest_out', weights_digest = visit ->> 'weights_digest'
    WHERE m.run_id = worker_keep_visit.run_id AND m.mst_key = worker_keep_visit.mst_key;
    -- if postgres
    DELETE FROM madlib_mop.model_state s
        WHERE s.slot = old.state_slot AND s.run_id = worker_keep_visit.run_id AND s.mst_key = worker_keep_visit.mst_key
              AND s.version = old.state_version;
    -- end
    new_visit_id := nextval('madlib_mop.visit_visit_id_seq'); -- a default would be drawn at Greenplum's segment, in 0.25 s
    INSERT INTO madlib_mop.visit (visit_id, run_id, mst_key, epoch, position, segment_id, started_at, ended_at, n_rows, state_bytes,
                                  digest_in, digest_out, attempt, loss, timing)
    VALUES (new_visit_id, run_id, mst_key, (visit ->> 'epoch')::integer, (visit ->> 'position')::integer, (visit ->> 'segment_id')::integer,
            (visit ->> 'started_at')::timestamptz, clock_timestamp(), (visit ->> 'n_rows')::bigint, (visit ->> 'state_bytes')::bigint,
            visit ->> 'digest_in', visit ->> 'digest_out', (visit ->> 'attempt')::integer, (visit ->> 'loss')::double precision,
            coalesce((visit -> 'timing')::jsonb, '{}'));
    RETURN new_visit_id;
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_keep_visit(bigint, text, integer, json) IS 'Keeps a visit: its row, the model''s new place and digest, and the end of the old state, in one transaction';

CREATE FUNCTION madlib_mop.worker_fail_member(run_id bigint, token text, mst_key integer, version bigint, reason text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop.worker_check(run_id, token);
    UPDATE madlib_mop.model m SET state = 'failed', state_detail = reason
    WHERE m.run_id = worker_fail_member.run_id AND m.mst_key = worker_fail_member.mst_key AND m.state_version = version;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another visit was kept meanwhile', run_id, mst_key);
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop.worker_fail_member(bigint, text, integer, bigint, text)
IS 'Gives up one model of a group that is trained together, in the transaction that keeps the others'' visits';
