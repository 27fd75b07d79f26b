-- Functions by which a writer session reads and writes the record. Only superusers have rights to them: a writer is logged
-- in as the server's own user and does not touch users' relations, so users' code cannot run in it. What changes
-- a model's state runs in the one transaction of a visit.

CREATE FUNCTION madlib_mop_internal.model_of(run_id bigint, mst_key integer) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    RETURN (
        SELECT json_build_object('mst_key', m.mst_key, 'arch', m.model_arch, 'compile_params', m.compile_params, 'fit_params', m.fit_params,
            'digest', m.digest, 'weights_digest', m.weights_digest, 'state_slot', m.state_slot, 'state_version', m.state_version,
            'forward_parts', m.forward_parts, 'has_weights', m.start_weights IS NOT NULL, 'taken_over', m.taken_over,
            'seed_key', coalesce(m.seed_key, m.mst_key))
        FROM madlib_mop.model m WHERE m.run_id = model_of.run_id AND m.mst_key = model_of.mst_key);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.model_of(bigint, integer) IS 'One configuration, and where its newest state is';

CREATE FUNCTION madlib_mop_internal.start_weights_of(run_id bigint, mst_key integer) RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    RETURN (
        SELECT w.weights FROM madlib_mop.start_weights w JOIN madlib_mop.model m ON m.run_id = w.run_id AND m.start_weights = w.origin
        WHERE m.run_id = start_weights_of.run_id AND m.mst_key = start_weights_of.mst_key);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.start_weights_of(bigint, integer) IS 'Start weights of a model';

CREATE FUNCTION madlib_mop_internal.custom_functions_of(run_id bigint) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    RETURN (
        SELECT json_build_object('functions', json_object_agg(f.name, encode(f.object, 'base64')),
            'pickles', EXISTS (SELECT FROM madlib_mop.setting s WHERE s.name = 'pickled_functions' AND s.value = 'on'))
        FROM madlib_mop.custom_function f WHERE f.run_id = custom_functions_of.run_id HAVING count(*) > 0);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.custom_functions_of(bigint) IS 'The custom functions that the run uses, or NULL';

CREATE FUNCTION madlib_mop_internal.state_part_of(run_id bigint, mst_key integer, slot bigint, version bigint, part integer) RETURNS bytea
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    RETURN (
        SELECT s.data FROM madlib_mop.model_state s
        WHERE s.slot = state_part_of.slot AND s.run_id = state_part_of.run_id AND s.mst_key = state_part_of.mst_key
              AND s.version = state_part_of.version AND s.part = state_part_of.part AND s.segment_id IS NULL);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.state_part_of(bigint, integer, bigint, bigint, integer) IS 'One part of a state, or NULL after the last';

CREATE FUNCTION madlib_mop_internal.keep_visit(run_id bigint, mst_key integer, visit json) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
DECLARE
    old record;
    new_visit_id bigint;
BEGIN
    SELECT m.digest, m.state_slot, m.state_version INTO STRICT old FROM madlib_mop.model m
        WHERE m.run_id = keep_visit.run_id AND m.mst_key = keep_visit.mst_key FOR UPDATE;
    IF old.state_version <> (visit ->> 'old_version')::bigint OR old.digest <> (visit ->> 'digest_in') THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another visit was committed first', run_id, mst_key);
    END IF;
    UPDATE madlib_mop.model m SET
        state = CASE m.state WHEN 'stopped' THEN m.state ELSE 'training' END, epoch = (visit ->> 'epoch')::integer, position = (visit ->> 'position')::integer,
        state_version = (visit ->> 'version')::bigint, state_slot = (visit ->> 'slot')::bigint,
        state_bytes = (visit ->> 'state_bytes')::bigint, model_bytes = (visit ->> 'model_bytes')::bigint,
        forward_parts = (visit ->> 'forward_parts')::integer,
        digest = visit ->> 'digest_out', weights_digest = visit ->> 'weights_digest'
    WHERE m.run_id = keep_visit.run_id AND m.mst_key = keep_visit.mst_key;
    -- if postgres
    DELETE FROM madlib_mop.model_state s
        WHERE s.slot = old.state_slot AND s.run_id = keep_visit.run_id AND s.mst_key = keep_visit.mst_key
              AND s.version = old.state_version;
    -- end
    -- a default would be computed on Greenplum's segment, in 0.25 s
    new_visit_id := nextval('madlib_mop.visit_visit_id_seq');
    INSERT INTO madlib_mop.visit (visit_id, run_id, mst_key, epoch, position, segment_id, started_at, ended_at, n_rows, state_bytes,
                                  digest_in, digest_out, attempt, loss, timing)
    VALUES (new_visit_id, run_id, mst_key, (visit ->> 'epoch')::integer, (visit ->> 'position')::integer, (visit ->> 'segment_id')::integer,
            (visit ->> 'started_at')::timestamptz, clock_timestamp(), (visit ->> 'n_rows')::bigint, (visit ->> 'state_bytes')::bigint,
            visit ->> 'digest_in', visit ->> 'digest_out', (visit ->> 'attempt')::integer, (visit ->> 'loss')::double precision,
            coalesce((visit -> 'timing')::jsonb, '{}'));
    IF json_typeof(visit -> 'sample') = 'array' THEN
        INSERT INTO madlib_mop.visit_metric (run_id, mst_key, visits, epoch, position, data_set, n_rows, ordinal, name, value)
        SELECT r.run_id, m.mst_key, (m.epoch - m.first_epoch) * r.n_segments + m.position, m.epoch, m.position,
               r.plan #>> '{sample,data_set}', (r.plan #>> '{sample,n_rows}')::bigint, s.number - 1, s.pair ->> 0,
               (s.pair ->> 1)::double precision
        FROM madlib_mop.run r JOIN madlib_mop.model m ON m.run_id = r.run_id AND m.mst_key = keep_visit.mst_key
        CROSS JOIN json_array_elements(visit -> 'sample') WITH ORDINALITY AS s (pair, number)
        WHERE r.run_id = keep_visit.run_id;
    END IF;
    RETURN new_visit_id;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.keep_visit(bigint, integer, json) IS 'Commits a visit: its row, the model''s new position and digest, and the deletion of the old state, in one transaction';

CREATE FUNCTION madlib_mop_internal.fail_member(run_id bigint, mst_key integer, version bigint, reason text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    UPDATE madlib_mop.model m SET state = 'failed', state_detail = reason
    WHERE m.run_id = fail_member.run_id AND m.mst_key = fail_member.mst_key AND m.state_version = version;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another visit was committed first', run_id, mst_key);
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.fail_member(bigint, integer, bigint, text)
IS 'Gives up one model of a group that is trained together, in the transaction that keeps the others'' visits';
