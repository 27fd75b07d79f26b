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
            'seed_key', coalesce(m.seed_key, m.mst_key), 'state_server', m.state_server, 'state_bytes', m.state_bytes
            -- if greenplum
            , 'made_at', m.made_at
            -- end
            )
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

CREATE FUNCTION madlib_mop_internal.state_lengths_of(run_id bigint, mst_key integer, slot bigint, version bigint, n_parts integer) RETURNS integer[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    RETURN (
        SELECT array_agg(octet_length(s.data) ORDER BY s.part) FROM madlib_mop.model_state s
        WHERE s.slot = state_lengths_of.slot AND s.run_id = state_lengths_of.run_id AND s.mst_key = state_lengths_of.mst_key
              AND s.version = state_lengths_of.version AND s.segment_id IS NULL AND (n_parts IS NULL OR s.part < n_parts));
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.state_lengths_of(bigint, integer, bigint, bigint, integer) IS 'The bytes of each part of a state, or of its first parts';

CREATE FUNCTION madlib_mop_internal.copy_state(of_run bigint, of_model integer, of_slot bigint, of_version bigint,
    run_id bigint, mst_key integer, slot bigint, version bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    -- if greenplum
    INSERT INTO madlib_mop.model_state (slot, run_id, mst_key, version, part, data, __dist_key__)
    SELECT copy_state.slot, copy_state.run_id, copy_state.mst_key, copy_state.version, s.part, s.data, s.__dist_key__
    -- else
    INSERT INTO madlib_mop.model_state (slot, run_id, mst_key, version, part, data)
    SELECT copy_state.slot, copy_state.run_id, copy_state.mst_key, copy_state.version, s.part, s.data
    -- end
    FROM madlib_mop.model_state s
    WHERE s.slot = of_slot AND s.run_id = of_run AND s.mst_key = of_model AND s.version = of_version AND s.segment_id IS NULL;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.copy_state(bigint, integer, bigint, bigint, bigint, integer, bigint, bigint)
IS 'Copies a state to another slot, model or version; on Greenplum it stays at its segment';

CREATE FUNCTION madlib_mop_internal.keep_visit(run_id bigint, mst_key integer, visit json) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
DECLARE
    old record;
    new_visit_id bigint;
BEGIN
    SELECT m.digest, m.state_slot, m.state_version, m.home_state, m.state_bytes, m.model_bytes, m.forward_parts, m.weights_digest,
           m.epoch, m.position INTO STRICT old FROM madlib_mop.model m
        WHERE m.run_id = keep_visit.run_id AND m.mst_key = keep_visit.mst_key FOR UPDATE;
    IF old.state_version <> (visit ->> 'old_version')::bigint OR old.digest <> (visit ->> 'digest_in') THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another visit was committed first', run_id, mst_key);
    END IF;
    UPDATE madlib_mop.model m SET
        state = CASE m.state WHEN 'stopped' THEN m.state ELSE 'training' END, epoch = (visit ->> 'epoch')::integer, position = (visit ->> 'position')::integer,
        state_version = (visit ->> 'version')::bigint, state_slot = (visit ->> 'slot')::bigint,
        state_bytes = (visit ->> 'state_bytes')::bigint, model_bytes = (visit ->> 'model_bytes')::bigint,
        forward_parts = (visit ->> 'forward_parts')::integer,
        digest = visit ->> 'digest_out', weights_digest = visit ->> 'weights_digest',
        -- if greenplum
        made_at = (visit ->> 'segment_id')::integer,
        -- end
        state_server = visit ->> 'server',
        home_state = CASE  -- while the newest state is at a host, the newest one that came home stays
            WHEN visit ->> 'server' IS NULL THEN NULL
            WHEN old.state_slot IS NULL THEN m.home_state
            ELSE jsonb_build_object('epoch', old.epoch, 'position', old.position, 'slot', old.state_slot, 'version', old.state_version,
                'state_bytes', old.state_bytes, 'model_bytes', old.model_bytes, 'forward_parts', old.forward_parts,
                'digest', old.digest, 'weights_digest', old.weights_digest) END
    WHERE m.run_id = keep_visit.run_id AND m.mst_key = keep_visit.mst_key;
    -- if postgres
    IF visit ->> 'server' IS NULL THEN
        DELETE FROM madlib_mop.model_state s
            WHERE s.slot = old.state_slot AND s.run_id = keep_visit.run_id AND s.mst_key = keep_visit.mst_key
                  AND s.version = old.state_version;
    END IF;
    PERFORM madlib_mop_internal.keep_copies(run_id, mst_key, visit, old.home_state);
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

-- if postgres
CREATE FUNCTION madlib_mop_internal.keep_copies(run_id bigint, mst_key integer, visit json, home_state jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    IF visit ->> 'server' IS NULL THEN  -- this server has the newest state, and needs no older one
        IF home_state IS NOT NULL THEN
            DELETE FROM madlib_mop.model_state s
                WHERE s.slot = (home_state ->> 'slot')::bigint AND s.run_id = keep_copies.run_id AND s.mst_key = keep_copies.mst_key
                      AND s.version = (home_state ->> 'version')::bigint;
        END IF;
        UPDATE madlib_mop.state_copy c SET released = true
            WHERE c.run_id = keep_copies.run_id AND c.mst_key = keep_copies.mst_key AND NOT c.released;
        RETURN;
    END IF;
    -- it is there already if it was released, and is lost and made again before its host was told
    INSERT INTO madlib_mop.state_copy AS c (run_id, mst_key, version, server, epoch, position, segment_id, state_bytes, forward_parts, digest, weights_digest)
    VALUES (run_id, mst_key, (visit ->> 'version')::bigint, visit ->> 'server', (visit ->> 'epoch')::integer, (visit ->> 'position')::integer,
            (visit ->> 'segment_id')::integer, (visit ->> 'state_bytes')::bigint, (visit ->> 'forward_parts')::integer,
            visit ->> 'digest_out', visit ->> 'weights_digest')
    ON CONFLICT ON CONSTRAINT state_copy_pkey DO UPDATE SET server = excluded.server, released = false;
    -- the newest versions stay, and the newest ones of as many hosts
    UPDATE madlib_mop.state_copy c SET released = true
    FROM (SELECT n.version, count(*) AS n_newer, count(DISTINCT newer.server) AS n_hosts, bool_or(newer.server = n.server) AS is_replaced
          FROM madlib_mop.state_copy n JOIN madlib_mop.state_copy newer
               ON (newer.run_id, newer.mst_key) = (n.run_id, n.mst_key) AND newer.version > n.version AND NOT newer.released
          WHERE n.run_id = keep_copies.run_id AND n.mst_key = keep_copies.mst_key AND NOT n.released GROUP BY n.version) AS found,
         (SELECT coalesce((r.plan #>> '{direct_hops,copies}')::integer, 2) AS n FROM madlib_mop.run r
          WHERE r.run_id = keep_copies.run_id) AS copies
    WHERE c.run_id = keep_copies.run_id AND c.mst_key = keep_copies.mst_key AND c.version = found.version
          AND found.n_newer >= copies.n AND (found.n_hosts >= copies.n OR found.is_replaced);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.keep_copies(bigint, integer, json, jsonb) IS 'Records which hosts hold states of a model after a visit, and which of them are not needed any more';

CREATE FUNCTION madlib_mop_internal.state_at(run_id bigint, mst_key integer, version bigint) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    RETURN (
        SELECT json_build_object('state_version', state_at.version, 'digest', s.digest, 'weights_digest', s.weights_digest,
            'forward_parts', s.forward_parts, 'state_bytes', s.state_bytes, 'state_slot', s.slot, 'state_server', s.server)
        FROM (VALUES (1)) AS one LEFT JOIN (
            SELECT c.digest, c.weights_digest, c.forward_parts, c.state_bytes, NULL::bigint AS slot, c.server
            FROM madlib_mop.state_copy c
            WHERE c.run_id = state_at.run_id AND c.mst_key = state_at.mst_key AND c.version = state_at.version
            UNION ALL
            SELECT h.digest, h.weights_digest, h.forward_parts, h.state_bytes, h.slot, NULL
            FROM madlib_mop.model m, jsonb_to_record(m.home_state)
                AS h (version bigint, slot bigint, digest text, weights_digest text, forward_parts integer, state_bytes bigint)
            WHERE m.run_id = state_at.run_id AND m.mst_key = state_at.mst_key AND h.version = state_at.version
            LIMIT 1) AS s ON true);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.state_at(bigint, integer, bigint) IS 'Where a state of a model is, by its version; without a place, what the model begins with';

CREATE FUNCTION madlib_mop_internal.keep_again(run_id bigint, mst_key integer, visit json) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
DECLARE
    old record;
    home jsonb;
BEGIN
    SELECT m.state_version, m.state_server, m.home_state INTO STRICT old FROM madlib_mop.model m
        WHERE m.run_id = keep_again.run_id AND m.mst_key = keep_again.mst_key FOR UPDATE;
    -- the driver has fetched the newest state meanwhile, or this was done twice
    IF old.state_server IS NULL OR (old.home_state ->> 'version')::bigint >= (visit ->> 'version')::bigint THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: this server has the state already', run_id, mst_key);
    END IF;
    IF NOT EXISTS (SELECT FROM madlib_mop.visit v WHERE v.run_id = keep_again.run_id AND v.mst_key = keep_again.mst_key
                   AND v.epoch = (visit ->> 'epoch')::integer AND v.position = (visit ->> 'position')::integer
                   AND v.segment_id = (visit ->> 'segment_id')::integer
                   AND v.digest_in = visit ->> 'digest_in' AND v.digest_out = visit ->> 'digest_out') THEN
        RAISE EXCEPTION USING ERRCODE = 'XX001', MESSAGE = format('run %s, mst_key %s: a visit that was made again has another result', run_id, mst_key);
    END IF;
    IF visit ->> 'server' IS NOT NULL THEN
        PERFORM madlib_mop_internal.keep_copies(run_id, mst_key, visit, NULL);
    ELSE  -- it has come home
        DELETE FROM madlib_mop.model_state s
            WHERE s.slot = (old.home_state ->> 'slot')::bigint AND s.run_id = keep_again.run_id AND s.mst_key = keep_again.mst_key
                  AND s.version = (old.home_state ->> 'version')::bigint;
        home := jsonb_build_object('epoch', visit -> 'epoch', 'position', visit -> 'position', 'slot', visit -> 'slot', 'version', visit -> 'version',
            'state_bytes', visit -> 'state_bytes', 'model_bytes', visit -> 'model_bytes', 'forward_parts', visit -> 'forward_parts',
            'digest', visit -> 'digest_out', 'weights_digest', visit -> 'weights_digest');
    END IF;
    UPDATE madlib_mop.model m SET
        state_server = CASE WHEN m.state_version = (visit ->> 'version')::bigint THEN visit ->> 'server' ELSE m.state_server END,
        state_slot = CASE WHEN m.state_version = (visit ->> 'version')::bigint THEN (visit ->> 'slot')::bigint ELSE m.state_slot END,
        home_state = CASE WHEN home IS NULL THEN m.home_state WHEN m.state_version = (visit ->> 'version')::bigint THEN NULL ELSE home END
    WHERE m.run_id = keep_again.run_id AND m.mst_key = keep_again.mst_key;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.keep_again(bigint, integer, json) IS 'Records where a state is that was lost and has been trained again: only places change, and the visit must have the recorded result';

CREATE FUNCTION madlib_mop_internal.released_copies(run_id bigint, server text) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    -- another writer of this host has locked those that it tells the host
    RETURN (SELECT json_agg(json_build_array(found.mst_key, found.version)) FROM (
        SELECT c.mst_key, c.version FROM madlib_mop.state_copy c
        WHERE c.run_id = released_copies.run_id AND c.server = released_copies.server AND c.released
        ORDER BY c.mst_key, c.version LIMIT 100 FOR UPDATE SKIP LOCKED) AS found);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.released_copies(bigint, text) IS 'The states that a host is to let go: mst_key and version of each, or NULL';

CREATE FUNCTION madlib_mop_internal.copies_gone(run_id bigint, server text, copies json) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
BEGIN
    DELETE FROM madlib_mop.state_copy c USING json_array_elements(copies) AS gone (name)
    WHERE c.run_id = copies_gone.run_id AND c.server = copies_gone.server AND c.released
          AND c.mst_key = (gone.name ->> 0)::integer AND c.version = (gone.name ->> 1)::bigint;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.copies_gone(bigint, text, json) IS 'Removes released states from the record after their host has let them go';
-- end

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

-- Tables that are created during runs: where default privileges have granted the right to write a trigger, its code would run as a
-- superuser.
CREATE FUNCTION madlib_mop_internal.revoke_default_grants(relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = relation AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', relation, grantee);  -- defence: grants-on-held-states
    END LOOP;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.revoke_default_grants(regclass) IS 'Revokes all rights to a new table but those of its owner';
