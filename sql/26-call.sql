-- The calls from user-facing functions to the driver, and the functions of a segment's writer and reader sessions.

CREATE FUNCTION madlib_mop_calls._call(function text, arguments text, caller_path text, payload_name text, payload bytea)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp
-- the text forms that the driver reads and writes must not depend on settings of the database or the role
SET quote_all_identifiers = off SET array_nulls = on SET transform_null_equals = off SET extra_float_digits = 1
SET DateStyle = 'ISO' SET IntervalStyle = 'postgres'
-- the planner overestimates the cost of the driver's catalog queries: JIT compilation takes 30 ms, execution 1 ms
SET jit = off AS $body$
@PRELUDE@
from mop_backend import call
return call.run(function, arguments, caller_path, payload_name, payload, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._call(text, text, text, text, bytea) IS 'Starts the driver for one call; errors come back as JSON';

CREATE FUNCTION madlib_mop_calls._raise(error json)
RETURNS json LANGUAGE plpgsql VOLATILE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    detail text := error ->> 'detail';
    hint text := error ->> 'hint';
BEGIN
    -- RAISE does not accept NULL, and an empty DETAIL would be shown
    IF detail IS NOT NULL AND hint IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate', DETAIL = detail, HINT = hint;
    ELSIF detail IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate', DETAIL = detail;
    ELSIF hint IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate', HINT = hint;
    END IF;
    RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate';
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._raise(json) IS 'Raises the error of a call: message, sqlstate, detail and hint; returns NULL without an error';

-- if greenplum
CREATE FUNCTION madlib_mop_calls._not_at_segment(function text)
RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF current_setting('gp_role') = 'utility' THEN
        RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('%s: this session or server is in utility mode, without segments', function),
            HINT = 'Log in to the coordinator of a cluster that has segments.';
    ELSIF current_setting('gp_role') <> 'dispatch' THEN
        RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('%s: a function that reads tables cannot run on a segment', function),
            HINT = CASE WHEN function LIKE 'madlib_mop.predict%'
                THEN 'For all rows of a table or a view, call madlib.madlib_keras_predict, which writes a table. For one row, call it without'
                    ' FROM: (SELECT t FROM t WHERE ...); for arrays of rows too: predict_rows(..., (SELECT array_agg(x) FROM t)).'
                ELSE 'Call it without FROM, once for each row.' END;
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._not_at_segment(text) IS 'Raises an error at a segment, and in utility mode';

CREATE FUNCTION madlib_mop_calls._no_work()
RETURNS void LANGUAGE plpython3u STABLE SET search_path = pg_catalog, pg_temp AS 'pass';
COMMENT ON FUNCTION madlib_mop_calls._no_work() IS 'Does nothing: Python raises here what it could not raise before';

-- A cancel or a timeout that comes while no Python runs ends its statement, and yet PL/Python of Greenplum raises KeyboardInterrupt
-- at the next call of the session.
CREATE FUNCTION madlib_mop_calls._subtransaction()
RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    BEGIN
        PERFORM madlib_mop_calls._no_work();
    EXCEPTION
        WHEN feature_not_supported THEN RAISE;
        WHEN external_routine_exception THEN NULL;
    END;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._subtransaction() IS 'Begins a subtransaction, drops in it what an earlier cancel has left to Python, and ends it';

-- end
CREATE FUNCTION madlib_mop_calls._at_coordinator(function text)
RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
-- if greenplum
BEGIN
    PERFORM madlib_mop_calls._not_at_segment(function);
    -- While segments work for the query around this call, Greenplum cannot begin a subtransaction (cdbdisp_makeDispatcherState).
    -- The error must come here: an interpreter of Python that it passes through crashes the coordinator at a later call.
    -- Its text is Greenplum's, but this statement is in its context.
    PERFORM madlib_mop_calls._subtransaction() /* Segments work for the query around this call. What works:
        a call without FROM; or DECLARE c CURSOR FOR the query, then FETCH ALL FROM c */;
END
-- else
DECLARE
    group_id integer;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL THEN -- else there is no Citus
        EXECUTE 'SELECT g.groupid FROM pg_catalog.pg_dist_local_group g' INTO group_id;
        IF group_id <> 0 THEN
            RAISE EXCEPTION USING ERRCODE = '55000',
                MESSAGE = format('%s: this server is a worker node of a Citus cluster; call the function on its coordinator', function),
                HINT = 'SELECT nodename, nodeport FROM pg_dist_node WHERE groupid = 0;';
        END IF;
    END IF;
END
-- end
$body$;
COMMENT ON FUNCTION madlib_mop_calls._at_coordinator(text) IS 'Raises an error if this is not the coordinator of a cluster: a segment of Greenplum, or a worker node of Citus';

-- if greenplum
-- Views call it with OFFSET 0: without, the planner would see that their columns are NULL, and skip the view for most conditions.
CREATE FUNCTION madlib_mop_calls._absent(what text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF what IN ('submit', 'cancel_job', 'run_now', 'alter_job', 'purge_jobs', 'madlib_mop.job') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('%s: there are no jobs on Greenplum and Cloudberry', what),
            HINT = 'Call the function itself. cron and psql can call it at a time.';
    ELSIF what IN ('grant_read', 'revoke_read') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s: only the owner of a run, members of its owner''s role and superusers can see it on Greenplum and Cloudberry', what),
            HINT = 'Make the role a member of the owner''s role: GRANT owner TO role;';
    ELSIF what IN ('set_alias', 'drop_alias', 'rollback', 'set_challenger', 'drop_challenger', 'drop_version', 'drop_registered',
                   'predict_version', 'predict_interval', 'predict_set', 'predict_json', 'predict_named', 'grant_model', 'revoke_model', 'allow_recording', 'forbid_recording', 'madlib_mop.registry', 'madlib_mop.alias_history',
                   'madlib_mop.version_lineage', 'madlib_mop.challenger_comparison') THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s: there is no registry of models on Greenplum and Cloudberry, because it needs row-level security', what),
            HINT = 'Predict with the output table itself.';
    END IF;
    RETURN false;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._absent(text) IS 'Raises an error for what other servers have: jobs, the registry, grant_read; returns false for everything else';

-- end
CREATE FUNCTION madlib_mop_calls.call(function text, arguments json, caller_path text, payload_name text DEFAULT NULL, payload bytea DEFAULT NULL)
RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer json;
    error json;
BEGIN
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator(function), madlib_mop_calls._absent(function);
    -- else
    IF function NOT IN ('gpu_configuration', 'help', 'version') THEN -- of this server
        PERFORM madlib_mop_calls._at_coordinator(function);
    END IF;
    -- end
    answer := madlib_mop_calls._call(function, arguments::text, caller_path, payload_name, payload)::json;
    error := answer -> 'error';
    IF error IS NULL THEN
        RETURN answer -> 'result';
    ELSIF error ->> 'detail' IS NOT NULL AND error ->> 'hint' IS NOT NULL THEN -- see _raise; each function is a line of context, one of SQL without the types of its arguments
        RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate',
            DETAIL = error ->> 'detail', HINT = error ->> 'hint';
    ELSIF error ->> 'detail' IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate', DETAIL = error ->> 'detail';
    ELSIF error ->> 'hint' IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate', HINT = error ->> 'hint';
    END IF;
    RAISE EXCEPTION USING MESSAGE = error ->> 'message', ERRCODE = error ->> 'sqlstate';
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls.call(text, json, text, text, bytea) IS 'Runs one of the driver''s commands with the caller''s rights and raises its error';

CREATE FUNCTION madlib_mop_internal.writer_open(run_id bigint, segment_id integer)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import writer
return writer.open_writer(run_id, segment_id)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.writer_open(bigint, integer) IS 'A writer session''s first statement: starts the trainer of its segment';

-- if greenplum
CREATE FUNCTION madlib_mop_internal.writer_step(task text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import writer
return writer.step(task)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.writer_step(text) IS 'What writer_do does but the last statements, which its answer has';

CREATE FUNCTION madlib_mop_internal.writer_part(number integer)
RETURNS bytea LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import writer
return writer.part(number)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.writer_part(integer) IS 'The value of a statement of writer_step: a part of an average';

-- PL/Python runs each statement in a subtransaction. A process that sends rows of a table to another segment, for any query
-- of any session, takes a row that such a statement has written, and that is not committed yet, for one that was rolled
-- back, and marks it so.
CREATE FUNCTION madlib_mop_internal.writer_do(task text)
RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    done json;
    statement json;
    n_rows bigint;
BEGIN
    done := madlib_mop_internal.writer_step(task);
    FOREACH statement IN ARRAY coalesce(ARRAY(SELECT json_array_elements(done -> 'statements')), '{}') LOOP
        IF statement ->> 1 IS NULL THEN
            EXECUTE statement ->> 0;
        ELSE
            EXECUTE statement ->> 0 USING madlib_mop_internal.writer_part((statement ->> 1)::integer);
        END IF;
        GET DIAGNOSTICS n_rows = ROW_COUNT;
        IF n_rows <> 1 THEN
            RAISE EXCEPTION USING ERRCODE = 'XX000', MESSAGE = format('%s rows were written, not 1: %s', n_rows, left(statement ->> 0, 200));
        END IF;
    END LOOP;
    RETURN done ->> 'answer';
END
$body$;
-- else
CREATE FUNCTION madlib_mop_internal.writer_do(task text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import writer
return writer.do(task)
$body$;
-- end
COMMENT ON FUNCTION madlib_mop_internal.writer_do(text) IS 'One visit, evaluation or load of a shard at this writer''s segment';

CREATE FUNCTION madlib_mop_calls.reader_send(address text, query text, key integer, n_columns integer, at integer)
RETURNS bigint LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import shards
return shards.send_shard(address, query, key, n_columns, at)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.reader_send(text, text, integer, integer, integer)
IS 'Reads a shard with the caller''s rights for the writer session that expects its rows there (called by the driver, in a reader session)';

CREATE FUNCTION madlib_mop_calls.end_sessions(pids integer[], wait_ms bigint)
RETURNS integer[] LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    remaining integer[];
BEGIN
    PERFORM pg_terminate_backend(p.pid) FROM unnest(pids) AS p (pid);
    FOR i IN 0 .. wait_ms / 10 LOOP -- the server's own wait checks ten times a second
        PERFORM pg_stat_clear_snapshot();
        remaining := coalesce(ARRAY(SELECT a.pid FROM pg_stat_activity a WHERE a.pid = ANY (pids)), '{}');
        EXIT WHEN remaining = '{}';
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN remaining;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls.end_sessions(integer[], bigint)
IS 'Ends sessions as pg_terminate_backend does, waits for the end of all, and returns those that have not ended (called by the driver)';
