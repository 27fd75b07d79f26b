-- Predictions in any SELECT: a trainer is kept in the session, and the caller's own session reads the model.

CREATE FUNCTION madlib_mop._predict(model_table text, mst_key integer, inputs bytea[], caller_path text)
RETURNS real[] LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict
return predict.predict(model_table, mst_key, inputs, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop._predict(text, integer, bytea[], text) IS 'Predicts with the session''s trainer; NULL after an error';

CREATE FUNCTION madlib_mop._predict_error()
RETURNS json LANGUAGE plpython3u STABLE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
import json
from mop_backend import predict
return json.dumps(predict.last_error())
$body$;
COMMENT ON FUNCTION madlib_mop._predict_error() IS 'The error of this session''s last call of _predict';

CREATE FUNCTION madlib_mop.predict(
    model_table text,
    mst_key integer,
    inputs bytea[],
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer real[];
BEGIN
    IF inputs IS NULL OR array_position(inputs, NULL) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop._at_coordinator('madlib_mop.predict');
    -- end
    answer := madlib_mop._predict(model_table, mst_key, inputs, caller_path);
    IF answer IS NULL THEN
        PERFORM madlib_mop._raise(madlib_mop._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, integer, bytea[], text) IS
    'The outputs of a model with several inputs, each as madlib_mop.array_bytes gives it';

CREATE FUNCTION madlib_mop.predict(
    model_table text,
    mst_key integer,
    x anyarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer real[];
BEGIN
    IF x IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop._at_coordinator('madlib_mop.predict');
    -- end
    answer := madlib_mop._predict(model_table, mst_key, ARRAY[madlib_mop.array_bytes(x::real[])], caller_path);
    IF answer IS NULL THEN
        PERFORM madlib_mop._raise(madlib_mop._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, integer, anyarray, text) IS
    'The outputs of a model for one row, as an array; for an array of rows, an array of such arrays';

CREATE FUNCTION madlib_mop.predict_rows(
    model_table text,
    mst_key integer,
    x anyarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS SETOF real[] LANGUAGE plpgsql STABLE COST 100000 ROWS 1000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    answer real[];
    row_values real[];
BEGIN
    IF x IS NULL THEN
        RETURN;
    END IF;
    answer := madlib_mop.predict(model_table, mst_key, x, caller_path);
    IF array_ndims(answer) = 1 THEN
        RETURN NEXT answer;
        RETURN;
    END IF;
    FOREACH row_values SLICE 1 IN ARRAY answer LOOP
        RETURN NEXT row_values;
    END LOOP;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_rows(text, integer, anyarray, text) IS
    'The outputs of a model for an array of rows: one row each, in their order';
