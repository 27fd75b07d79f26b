-- Predictions in any SELECT: the session keeps a trainer, and the caller's own session reads the model. The functions for
-- users are at the end; madlib_mop/calls/predictions.py makes them.
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

-- Predictions for rows of ordinary tables, by models that were trained on tables of pack_columns.
-- A row runs no cast, check or operator of its types' owners: it is sent in the binary format, and the names of an anonymous
-- row's fields come from the session, not from JSON. Parameters are of type anynonarray, not record: PL/pgSQL compiles a
-- function for each type then, and in PostgreSQL 12 a parameter of type record takes rows of one type in a session. ROW()
-- around the parameter lets any type pass, so that the library refuses what is no row; 12 bytes are the header of its field.

CREATE FUNCTION madlib_mop_calls._predict_row(
    model_table text, mst_key integer, input_row bytea, row_type bigint, names text[], encoding text, caller_path text)
RETURNS double precision[] LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.predict_row(model_table, mst_key, input_row, row_type, names, encoding, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict_row(text, integer, bytea, bigint, text[], text, text) IS
    'Predicts one row with the session''s trainer; NULL after an error';

CREATE FUNCTION madlib_mop_calls._predict_row_text(
    form text, model_table text, mst_key integer, input_row bytea, row_type bigint, names text[], encoding text, caller_path text,
    coverage double precision DEFAULT NULL)
RETURNS text LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.predict_row_text(
    form, model_table, mst_key, input_row, row_type, names, encoding, caller_path, "@VERSION@", coverage)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict_row_text(text, text, integer, bytea, bigint, text[], text, text, double precision) IS
    'The class, the number or the interval of one row, or classes as JSON; NULL after an error';

CREATE FUNCTION madlib_mop_calls._has_plain_fields(input_row bytea)
RETURNS boolean LANGUAGE plpython3u IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.has_plain_fields(input_row)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._has_plain_fields(bytea) IS
    'Whether all fields of a row, as record_send returns it, are of types for which row_to_json runs no cast of a user';

-- if greenplum
CREATE FUNCTION madlib_mop_calls._row_queries(input_row bytea)
RETURNS text[] LANGUAGE plpython3u STABLE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.queries(input_row)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._row_queries(bytea) IS 'The queries of _note_row, and the types of the fields of a row';

CREATE FUNCTION madlib_mop_calls._note(found json)
RETURNS void LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_row
predict_row.note(found)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._note(json) IS 'Keeps what the catalogs have about a row, for the call of predict that follows';

-- PL/Python would read the catalogs in a subtransaction, which Greenplum cannot begin while segments work for the query.
CREATE FUNCTION madlib_mop_calls._note_row(input_row bytea, row_type oid)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    queries text[] := madlib_mop_calls._row_queries(input_row);
    names json;
    types json;
BEGIN
    EXECUTE format('SELECT json_agg(q) FROM (%s) q', queries[1]) INTO names USING row_type::bigint;
    EXECUTE format('SELECT json_agg(q) FROM (%s) q', queries[2]) INTO types USING queries[3]::bigint[];
    PERFORM madlib_mop_calls._note(json_build_object('names', names, 'types', types, 'encoding', getdatabaseencoding()));
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._note_row(bytea, oid) IS 'Reads what the catalogs have about a row and the types of its fields';

-- end
CREATE FUNCTION madlib_mop_calls._fetched_row(portal text)
RETURNS record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    whole_row refcursor := portal;
    fetched record;
BEGIN
    FETCH whole_row INTO fetched;
    CLOSE whole_row;
    RETURN fetched.input_row;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._fetched_row(text) IS 'The row of a cursor of _field_names; this is how PL/Python gets an anonymous row';

CREATE FUNCTION madlib_mop_calls._fetched_names(portal text, input_row bytea)
RETURNS text[] LANGUAGE plpython3u STABLE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.names_of_fetched(portal, input_row)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._fetched_names(text, bytea) IS 'The names of the fields of the row of a cursor of _field_names; NULL after an error';

CREATE FUNCTION madlib_mop_calls._field_names(input_row anynonarray, sent bytea)
RETURNS text[] LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    whole_row refcursor;
    names text[];
    error json;
BEGIN
    IF madlib_mop_calls._has_plain_fields(sent) THEN  -- defence: types-of-fields = IF true THEN
        RETURN coalesce(ARRAY(SELECT json_object_keys(row_to_json(input_row))), '{}');
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict');
    -- end
    OPEN whole_row FOR SELECT input_row AS input_row;
    names := madlib_mop_calls._fetched_names(whole_row::text, sent);
    IF names IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN names;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._field_names(anynonarray, bytea) IS
    'The names of the fields of an anonymous row; runs no cast of a user''s type, which row_to_json would';

CREATE FUNCTION madlib_mop_calls._registered_model(model text)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF strpos(model, '"') > 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023',
            MESSAGE = format('predict: model must be the name of a registered model. Received: %L', model),
            HINT = 'For a table of models, pass mst_key too, for example predict_class(''models'', 1, t).';
    END IF;
    RETURN CASE WHEN strpos(model, '@') = 0 THEN model || '@newest' ELSE model END;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._registered_model(text) IS
    'The name of a registered model with its alias or version: without one, the alias newest, which learn sets';

-- if greenplum
-- Predictions in queries while segments of Greenplum work for them: a function cannot begin a statement then. So the
-- planner finds the model. It puts these functions into the query, and calls _planned, which is stable and has constants
-- as arguments. The functions in madlib_mop_calls, which the query calls for its rows, begin no statement that needs
-- segments or a subtransaction. The functions here have no SET clause, since the planner would not put them into the query.

CREATE FUNCTION madlib_mop_calls._planned(model_table text, mst_key integer, caller_path text)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict');
    RETURN madlib_mop_calls._plan(model_table, mst_key, caller_path);
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._planned(text, integer, text) IS 'A text for a model, which has been loaded, in the plan of a query';

-- end
@PREDICT@
