-- Predictions by the name of a registered model alone. These functions have no SET clause, so the planner puts them into
-- the query, and a call costs no more than one with mst_key. All names in them have schemas; caller_path is for tables.

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

CREATE FUNCTION madlib_mop.predict(model text, input_row anynonarray)
RETURNS real[] LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, input_row, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, anynonarray) IS
    'The outputs of a registered model for a row of a table: probabilities, or numbers in the units of the table';

CREATE FUNCTION madlib_mop.predict_number(model text, input_row anynonarray)
RETURNS double precision LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict_number(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, input_row, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_number(text, anynonarray) IS
    'The number that a registered regression predicts for a row of a table';

CREATE FUNCTION madlib_mop.predict_class(model text, input_row anynonarray)
RETURNS text LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict_class(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, input_row, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class(text, anynonarray) IS
    'The class that a registered model predicts for a row of a table: the one with the highest probability';

CREATE FUNCTION madlib_mop.predict_json(model text, input_row anynonarray)
RETURNS jsonb LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict_json(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, input_row, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_json(text, anynonarray) IS
    'The probabilities of a row of a table by class, by a registered model; a number by the name of its column';

CREATE FUNCTION madlib_mop.predict(model text, x anyarray)
RETURNS real[] LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, x, false, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, anyarray) IS
    'The outputs of a registered model for one row, as an array; for an array of rows, an array of such arrays';

CREATE FUNCTION madlib_mop.predict_class(model text, x anyarray)
RETURNS text LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict_class(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, x, false, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class(text, anyarray) IS
    'The class of one row, as text, by a registered model';

CREATE FUNCTION madlib_mop.predict_named(model text, x anyarray)
RETURNS jsonb LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop.predict_named(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, x, false, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_named(text, anyarray) IS
    'The probabilities of one row by class, by a registered model; for a predicted number, its value by column name';

CREATE FUNCTION madlib_mop.predict_rows(model text, x anyarray)
RETURNS SETOF real[] LANGUAGE sql STABLE COST 100000 ROWS 1000 AS $body$
SELECT madlib_mop.predict_rows(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, x, false, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_rows(text, anyarray) IS
    'The outputs of a registered model for an array of rows: one row each, in their order';

CREATE FUNCTION madlib_mop.predict_class_rows(model text, x anyarray)
RETURNS SETOF text LANGUAGE sql STABLE COST 100000 ROWS 1000 AS $body$
SELECT madlib_mop.predict_class_rows(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, x, false, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class_rows(text, anyarray) IS
    'The classes of an array of rows, by a registered model: one row each, in their order';

CREATE FUNCTION madlib_mop.predict_named_rows(model text, x anyarray)
RETURNS SETOF jsonb LANGUAGE sql STABLE COST 100000 ROWS 1000 AS $body$
SELECT madlib_mop.predict_named_rows(madlib_mop_calls._registered_model(model), NULL::pg_catalog.int4, x, false, ''::pg_catalog.text)
$body$;
COMMENT ON FUNCTION madlib_mop.predict_named_rows(text, anyarray) IS
    'The probabilities by class of an array of rows, by a registered model: one row each, in their order';
