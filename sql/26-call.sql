-- How every user-facing function reaches the driver, and how a worker session reaches its trainer.

CREATE FUNCTION madlib_mop._call(function text, arguments text, caller_path text, payload_name text, payload bytea)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import call
return call.run(function, arguments, caller_path, payload_name, payload, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop._call(text, text, text, text, bytea) IS 'Starts the driver for one call; errors come back as JSON';

CREATE FUNCTION madlib_mop._raise(error json)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    detail text := error ->> 'detail';
    hint text := error ->> 'hint';
BEGIN
    -- RAISE takes no NULL, and an empty DETAIL would be shown
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
COMMENT ON FUNCTION madlib_mop._raise(json) IS 'Raises the error of a call: message, sqlstate, detail and hint';

CREATE FUNCTION madlib_mop.call(function text, arguments json, caller_path text, payload_name text DEFAULT NULL, payload bytea DEFAULT NULL)
RETURNS json LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer json := madlib_mop._call(function, arguments::text, caller_path, payload_name, payload)::json;
BEGIN
    IF answer -> 'error' IS NOT NULL THEN
        PERFORM madlib_mop._raise(answer -> 'error');
    END IF;
    RETURN answer -> 'result';
END
$body$;
COMMENT ON FUNCTION madlib_mop.call(text, json, text, text, bytea) IS 'Runs one of the driver''s commands with the caller''s rights and raises its error';

CREATE FUNCTION madlib_mop.worker_open(run_id bigint, token text, segment_id integer)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import worker
return worker.open_worker(run_id, token, segment_id)
$body$;
COMMENT ON FUNCTION madlib_mop.worker_open(bigint, text, integer) IS 'A worker session''s first statement: starts its trainer (called by the driver only)';

CREATE FUNCTION madlib_mop.worker_do(task text, seal text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import worker
return worker.do(task, seal)
$body$;
COMMENT ON FUNCTION madlib_mop.worker_do(text, text) IS 'One visit or evaluation at this worker''s segment (called by the driver only, which seals it with the worker''s token)';
