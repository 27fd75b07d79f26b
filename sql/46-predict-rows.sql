-- Predictions for rows of ordinary tables, by models that were trained on tables of pack_columns.

CREATE FUNCTION madlib_mop_calls._predict_row(
    model_table text, mst_key integer, input_row bytea, row_type bigint, names text[], encoding text, caller_path text)
RETURNS double precision[] LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.predict_row(model_table, mst_key, input_row, row_type, names, encoding, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict_row(text, integer, bytea, bigint, text[], text, text) IS
    'Predicts one row with the session''s trainer; NULL after an error';

CREATE FUNCTION madlib_mop_calls._predict_row_text(
    form text, model_table text, mst_key integer, input_row bytea, row_type bigint, names text[], encoding text, caller_path text)
RETURNS text LANGUAGE plpython3u STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import predict_row
return predict_row.predict_row_text(form, model_table, mst_key, input_row, row_type, names, encoding, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._predict_row_text(text, text, integer, bytea, bigint, text[], text, text) IS
    'The class or the number of one row, or all classes with their values as JSON; NULL after an error';

CREATE FUNCTION madlib_mop.predict(
    model_table text,
    mst_key integer,
    input_row record,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := record_send(input_row);
    answer double precision[];
    error json;
BEGIN
    IF sent IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict');
    -- end
    answer := madlib_mop_calls._predict_row(model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN ARRAY(SELECT json_object_keys(row_to_json(input_row))) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, integer, record, text) IS
    'The outputs of a model for a row of a table: probabilities, or numbers in the units of the table';

CREATE FUNCTION madlib_mop.predict_number(
    model_table text,
    mst_key integer,
    input_row record,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS double precision LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := record_send(input_row);
    answer text;
    error json;
BEGIN
    IF sent IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict_number');
    -- end
    answer := madlib_mop_calls._predict_row_text('number', model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN ARRAY(SELECT json_object_keys(row_to_json(input_row))) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer::double precision;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_number(text, integer, record, text) IS
    'The number that a regression predicts for a row of a table';

CREATE FUNCTION madlib_mop.predict_class(
    model_table text,
    mst_key integer,
    input_row record,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := record_send(input_row);
    answer text;
    error json;
BEGIN
    IF sent IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict_class');
    -- end
    answer := madlib_mop_calls._predict_row_text('class', model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN ARRAY(SELECT json_object_keys(row_to_json(input_row))) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class(text, integer, record, text) IS
    'The class of a row of a table: the one with the highest probability';

CREATE FUNCTION madlib_mop.predict_json(
    model_table text,
    mst_key integer,
    input_row record,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE plpgsql STABLE COST 5000 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := record_send(input_row);
    answer text;
    error json;
BEGIN
    IF sent IS NULL THEN
        RETURN NULL;
    END IF;
    -- if greenplum
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.predict_json');
    -- end
    answer := madlib_mop_calls._predict_row_text('named', model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN ARRAY(SELECT json_object_keys(row_to_json(input_row))) END,
        pg_client_encoding()::text, caller_path);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN answer::jsonb;
END
$body$;
COMMENT ON FUNCTION madlib_mop.predict_json(text, integer, record, text) IS
    'The probabilities of a row of a table by class; a number by the name of its column';
