-- Model averaging: the aggregate that averages training states by rows, and the functions by which a writer session stores the average.

CREATE FUNCTION madlib_mop_calls._average_step(step text, a bytea, b bytea, n_rows bigint)
RETURNS bytea LANGUAGE plpython3u IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import averaging
return averaging.step(step, a, b, n_rows)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._average_step(text, bytea, bytea, bigint) IS 'One step of average_state (add, merge or end); NULL after an error';

CREATE FUNCTION madlib_mop_calls._average_error()
RETURNS json LANGUAGE plpython3u VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
import json
from mop_backend import averaging
return json.dumps(averaging.last_error())
$body$;
COMMENT ON FUNCTION madlib_mop_calls._average_error() IS 'The error of this session''s last call of _average_step';

CREATE FUNCTION madlib_mop_calls._average_add(state bytea, part bytea, n_rows bigint)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer bytea;
BEGIN
    IF part IS NULL OR n_rows IS NULL OR n_rows = 0 THEN
        RETURN state;
    END IF;
    answer := madlib_mop_calls._average_step('add', state, part, n_rows);
    IF answer IS NULL THEN
        PERFORM madlib_mop_calls._raise(madlib_mop_calls._average_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._average_add(bytea, bytea, bigint) IS 'Transition of average_state: adds one part, weighted by its rows';

CREATE FUNCTION madlib_mop_calls._average_merge(a bytea, b bytea)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer bytea;
BEGIN
    IF a IS NULL OR b IS NULL THEN
        RETURN coalesce(a, b);
    END IF;
    answer := madlib_mop_calls._average_step('merge', a, b, NULL);
    IF answer IS NULL THEN
        PERFORM madlib_mop_calls._raise(madlib_mop_calls._average_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._average_merge(bytea, bytea) IS 'Merge of average_state: adds two partial sums';

CREATE FUNCTION madlib_mop_calls._average_end(state bytea)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer bytea;
BEGIN
    IF state IS NULL THEN
        RETURN NULL;
    END IF;
    answer := madlib_mop_calls._average_step('end', state, NULL, NULL);
    IF answer IS NULL THEN
        PERFORM madlib_mop_calls._raise(madlib_mop_calls._average_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._average_end(bytea) IS 'Final step of average_state: the sum divided by the rows';

CREATE AGGREGATE madlib_mop.average_state(part bytea, n_rows bigint) (
    SFUNC = madlib_mop_calls._average_add, STYPE = bytea, COMBINEFUNC = madlib_mop_calls._average_merge,
    FINALFUNC = madlib_mop_calls._average_end, PARALLEL = SAFE);
COMMENT ON AGGREGATE madlib_mop.average_state(bytea, bigint)
IS 'Average by rows of one part of several training states of a model; ORDER BY makes its bits independent of the rows'' order';

CREATE FUNCTION madlib_mop_internal.keep_staged(run_id bigint, mst_key integer, visit json) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
DECLARE
    old record;
    n_segments integer;
    new_visit_id bigint;
BEGIN
    SELECT m.digest, m.state_version, m.epoch, m.position INTO STRICT old FROM madlib_mop.model m
        WHERE m.run_id = keep_staged.run_id AND m.mst_key = keep_staged.mst_key FOR UPDATE;
    IF old.state_version <> (visit ->> 'old_version')::bigint OR old.digest <> (visit ->> 'digest_in') THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another average was committed first', run_id, mst_key);
    END IF;
    -- a default would be computed on Greenplum's segment, in 0.25 s
    new_visit_id := nextval('madlib_mop.visit_visit_id_seq');
    INSERT INTO madlib_mop.visit (visit_id, run_id, mst_key, epoch, position, segment_id, started_at, ended_at, n_rows, state_bytes,
                                  digest_in, digest_out, attempt, loss, timing)
    VALUES (new_visit_id, run_id, mst_key, (visit ->> 'epoch')::integer, (visit ->> 'position')::integer, (visit ->> 'segment_id')::integer,
            (visit ->> 'started_at')::timestamptz, clock_timestamp(), (visit ->> 'n_rows')::bigint, (visit ->> 'state_bytes')::bigint,
            visit ->> 'digest_in', visit ->> 'digest_out', (visit ->> 'attempt')::integer, (visit ->> 'loss')::double precision,
            coalesce((visit -> 'timing')::jsonb, '{}'));
    -- an iteration is complete when it is averaged: keep_average sets the last position
    SELECT r.n_segments INTO STRICT n_segments FROM madlib_mop.run r WHERE r.run_id = keep_staged.run_id;
    UPDATE madlib_mop.model m SET
        state = 'training', epoch = (visit ->> 'epoch')::integer, model_bytes = (visit ->> 'model_bytes')::bigint,
        position = least(CASE WHEN old.epoch = (visit ->> 'epoch')::integer THEN old.position + 1 ELSE 1 END, n_segments - 1)
    WHERE m.run_id = keep_staged.run_id AND m.mst_key = keep_staged.mst_key;
    RETURN new_visit_id;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.keep_staged(bigint, integer, json)
IS 'Keeps a visit of model averaging: its row and its staged result, in one transaction; the model''s state stays as it is';

CREATE FUNCTION madlib_mop_internal.staged_parts(run_id bigint, mst_key integer, epoch integer, version bigint, slots bigint[], part integer)
RETURNS TABLE (segment_id integer, n_rows bigint, data bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT s.segment_id, v.n_rows, s.data FROM madlib_mop.model_state s JOIN madlib_mop.visit v
            ON v.run_id = s.run_id AND v.mst_key = s.mst_key AND v.segment_id = s.segment_id AND v.epoch = staged_parts.epoch
        WHERE s.slot = ANY (slots) AND s.run_id = staged_parts.run_id AND s.mst_key = staged_parts.mst_key
              AND s.version = staged_parts.version AND s.part = staged_parts.part;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.staged_parts(bigint, integer, integer, bigint, bigint[], integer)
IS 'One part of what each segment has trained in an iteration, and the rows it was trained on';

CREATE FUNCTION madlib_mop_internal.keep_average(run_id bigint, mst_key integer, average json) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $body$
DECLARE
    old record;
    n_visits bigint;
    slots bigint[] := coalesce(ARRAY(SELECT value::bigint FROM json_array_elements_text(average -> 'slots')), '{}');
BEGIN
    SELECT m.state_slot, m.state_version INTO STRICT old FROM madlib_mop.model m
        WHERE m.run_id = keep_average.run_id AND m.mst_key = keep_average.mst_key FOR UPDATE;
    SELECT count(*) INTO n_visits FROM madlib_mop.visit v
        WHERE v.run_id = keep_average.run_id AND v.mst_key = keep_average.mst_key
              AND v.epoch = (average ->> 'epoch')::integer;
    IF old.state_version <> (average ->> 'version')::bigint - 1 OR n_visits <> (average ->> 'n_visits')::bigint THEN
        RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('run %s, mst_key %s: another average was committed first', run_id, mst_key);
    END IF;
    UPDATE madlib_mop.model m SET
        epoch = (average ->> 'epoch')::integer, position = r.n_segments,
        state_version = (average ->> 'version')::bigint, state_slot = (average ->> 'slot')::bigint,
        state_bytes = (average ->> 'state_bytes')::bigint, model_bytes = (average ->> 'model_bytes')::bigint,
        forward_parts = (average ->> 'forward_parts')::integer,
        digest = average ->> 'digest', weights_digest = average ->> 'weights_digest'
    FROM madlib_mop.run r
    WHERE m.run_id = keep_average.run_id AND m.mst_key = keep_average.mst_key AND r.run_id = m.run_id;
    -- if postgres
    DELETE FROM madlib_mop.model_state s
        WHERE s.slot = old.state_slot AND s.run_id = keep_average.run_id AND s.mst_key = keep_average.mst_key
              AND s.version = old.state_version AND s.segment_id IS NULL;
    DELETE FROM madlib_mop.model_state s
        WHERE s.slot = ANY (slots) AND s.run_id = keep_average.run_id AND s.mst_key = keep_average.mst_key
              AND s.segment_id IS NOT NULL;
    -- end
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.keep_average(bigint, integer, json)
IS 'Keeps the average of an iteration as the model''s newest state; the old one and what was averaged end in the same transaction';
