-- Predictions in any SELECT: the session keeps a trainer, and the caller's own session reads the model.
-- The wrapper functions raise the errors, because PL/Python would add a traceback to the context of each. They call with
-- assignments, because a statement would add its text to that context. A function that may start a driver turns off JIT
-- compilation, which takes seconds for the driver's catalog queries, once a model.

CREATE FUNCTION madlib_mop_calls._predict(model_table text, mst_key integer, inputs bytea[], allow_null boolean, caller_path text)
RETURNS real[] LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
@PRELUDE@
from mop_backend import predict
return predict.predict(model_table, mst_key, inputs, allow_null, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict(text, integer, bytea[], boolean, text) IS 'Predicts with the session''s trainer; NULL after an error';

CREATE FUNCTION madlib_mop_calls._predict_texts(
    form text, many boolean, model_table text, mst_key integer, inputs bytea[], allow_null boolean, caller_path text,
    coverage double precision DEFAULT NULL)
RETURNS text[] LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
@PRELUDE@
from mop_backend import predict
return predict.predict_texts(form, many, model_table, mst_key, inputs, allow_null, caller_path, "@VERSION@", coverage)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict_texts(text, boolean, text, integer, bytea[], boolean, text, double precision) IS
    'The class of each row, its interval, or classes as JSON; NULL after an error';

-- if greenplum
CREATE FUNCTION madlib_mop_calls._plan(model_table text, mst_key integer, caller_path text)
RETURNS text LANGUAGE plpython3u STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
@PRELUDE@
from mop_backend import predict
return predict.plan(model_table, mst_key, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._plan(text, integer, text) IS
    'Loads a model into the session''s trainer; returns a text for it, to use as model_table';

-- end
CREATE FUNCTION madlib_mop_calls._predict_error()
RETURNS json LANGUAGE plpython3u STABLE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
import json
from mop_backend import predict
error = predict.last_error()
return None if error is None else json.dumps(error)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict_error() IS 'The error of this session''s last prediction; NULL without one';

CREATE FUNCTION madlib_mop_calls._real_bytes(function text, x anyarray)
RETURNS bytea LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- the cast below would run a cast of the owner of another type
    -- defence: types-of-arrays = IF false THEN
    IF pg_typeof(x) <> ALL ('{smallint[], integer[], bigint[], real[], double precision[], numeric[]}'::regtype[]) THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('%s: x must be an array of numbers. Received: %s', function, pg_typeof(x)),
            HINT = 'If you trust the owner of its type, cast it in your query: x::real[].';
    END IF;
    RETURN madlib_mop.array_bytes(x::real[]);
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._real_bytes(text, anyarray) IS
    'An array of numbers as predict passes it on; runs no cast of a user''s type';

CREATE FUNCTION @PREDICTIONS@.predict(
    model_table text,
    mst_key integer,
    inputs bytea[],
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer real[];
    error json;
BEGIN
    IF inputs IS NULL OR array_position(inputs, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict');
    -- end
    answer := madlib_mop_calls._predict(model_table, mst_key, inputs, allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict(text, integer, bytea[], boolean, text) IS
    'The outputs of a model with several inputs, each as returned by madlib_mop.array_bytes; allow_null: NULL for a row with a NULL element';

CREATE FUNCTION @PREDICTIONS@.predict(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer real[];
    error json;
BEGIN
    IF x IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict');
    -- end
    answer := madlib_mop_calls._predict(model_table, mst_key, ARRAY[madlib_mop_calls._real_bytes('predict', x)], allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict(text, integer, anyarray, boolean, text) IS
    'The outputs of a model for one row, as an array; for an array of rows, an array of such arrays; allow_null: NULL for a row with a NULL element';

CREATE FUNCTION @PREDICTIONS@.predict_class(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    IF x IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_class');
    -- end
    answer := madlib_mop_calls._predict_texts('class', false, model_table, mst_key, ARRAY[madlib_mop_calls._real_bytes('predict_class', x)], allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer[1];
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_class(text, integer, anyarray, boolean, text) IS
    'The class of one row, as text: the one with the highest probability';

CREATE FUNCTION @PREDICTIONS@.predict_named(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    IF x IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_named');
    -- end
    answer := madlib_mop_calls._predict_texts('named', false, model_table, mst_key, ARRAY[madlib_mop_calls._real_bytes('predict_named', x)], allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer[1];
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_named(text, integer, anyarray, boolean, text) IS
    'The probabilities of one row by class; for a predicted number, its value by column name';

CREATE FUNCTION @PREDICTIONS@.predict_class(
    model_table text,
    mst_key integer,
    inputs bytea[],
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    IF inputs IS NULL OR array_position(inputs, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_class');
    -- end
    answer := madlib_mop_calls._predict_texts('class', false, model_table, mst_key, inputs, allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer[1];
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_class(text, integer, bytea[], boolean, text) IS
    'The class of one row of a model with several inputs, each as returned by madlib_mop.array_bytes';

CREATE FUNCTION @PREDICTIONS@.predict_named(
    model_table text,
    mst_key integer,
    inputs bytea[],
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    IF inputs IS NULL OR array_position(inputs, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_named');
    -- end
    answer := madlib_mop_calls._predict_texts('named', false, model_table, mst_key, inputs, allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer[1];
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_named(text, integer, bytea[], boolean, text) IS
    'The probabilities by class of one row of a model with several inputs, each as returned by madlib_mop.array_bytes';

CREATE FUNCTION madlib_mop.predict_rows(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS SETOF real[] LANGUAGE plpgsql STABLE COST 100000 ROWS 1000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer real[];
    error json;
    row_values real[];
BEGIN
    IF x IS NULL THEN
        RETURN;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict_rows');
    -- end
    answer := madlib_mop_calls._predict(model_table, mst_key, ARRAY[madlib_mop_calls._real_bytes('predict_rows', x)], allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    IF answer IS NULL OR array_ndims(answer) = 1 THEN
        RETURN NEXT answer;
        RETURN;
    END IF;
    FOREACH row_values SLICE 1 IN ARRAY answer LOOP
        RETURN NEXT CASE WHEN row_values[1] IS NOT NULL THEN row_values END;
    END LOOP;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_rows(text, integer, anyarray, boolean, text) IS
    'The outputs of a model for an array of rows: one row each, in their order';

CREATE FUNCTION madlib_mop.predict_class_rows(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS SETOF text LANGUAGE plpgsql STABLE COST 100000 ROWS 1000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    IF x IS NULL THEN
        RETURN;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict_class_rows');
    -- end
    answer := madlib_mop_calls._predict_texts('class', true, model_table, mst_key, ARRAY[madlib_mop_calls._real_bytes('predict_class_rows', x)], allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN QUERY SELECT unnest(answer);
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class_rows(text, integer, anyarray, boolean, text) IS
    'The classes of an array of rows: one row each, in their order';

CREATE FUNCTION madlib_mop.predict_named_rows(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS SETOF jsonb LANGUAGE plpgsql STABLE COST 100000 ROWS 1000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer text[];
    error json;
BEGIN
    IF x IS NULL THEN
        RETURN;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict_named_rows');
    -- end
    answer := madlib_mop_calls._predict_texts('named', true, model_table, mst_key, ARRAY[madlib_mop_calls._real_bytes('predict_named_rows', x)], allow_null, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN QUERY SELECT unnest(answer)::jsonb;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_named_rows(text, integer, anyarray, boolean, text) IS
    'The probabilities by class of an array of rows: one row each, in their order';
