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

CREATE FUNCTION @PREDICTIONS@.predict(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer double precision[];
    error json;
BEGIN
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict'), madlib_mop_calls._note_row(sent, pg_typeof(input_row)::oid);
    -- end
    answer := madlib_mop_calls._predict_row(model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict(text, integer, anynonarray, text) IS
    'The outputs of a model for a row of a table: probabilities, or numbers in the units of the table';

CREATE FUNCTION @PREDICTIONS@.predict_number(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS double precision LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_number'), madlib_mop_calls._note_row(sent, pg_typeof(input_row)::oid);
    -- end
    answer := madlib_mop_calls._predict_row_text('number', model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer::double precision;
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_number(text, integer, anynonarray, text) IS
    'The number that a regression predicts for a row of a table';

CREATE FUNCTION @PREDICTIONS@.predict_class(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_class'), madlib_mop_calls._note_row(sent, pg_typeof(input_row)::oid);
    -- end
    answer := madlib_mop_calls._predict_row_text('class', model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_class(text, integer, anynonarray, text) IS
    'The class of a row of a table: the one with the highest probability';

CREATE FUNCTION @PREDICTIONS@.predict_json(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._not_at_segment('madlib_mop.predict_json'), madlib_mop_calls._note_row(sent, pg_typeof(input_row)::oid);
    -- end
    answer := madlib_mop_calls._predict_row_text('named', model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer::jsonb;
END
$body$;
COMMENT ON FUNCTION @PREDICTIONS@.predict_json(text, integer, anynonarray, text) IS
    'The probabilities of a row of a table by class; a number by the name of its column';
