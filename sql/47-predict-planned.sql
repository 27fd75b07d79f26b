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

CREATE FUNCTION madlib_mop.predict(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, input_row, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, integer, anynonarray, text) IS
    'The outputs of a model for a row of a table: probabilities, or numbers in the units of the table';

CREATE FUNCTION madlib_mop.predict_number(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS double precision LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_number(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, input_row, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_number(text, integer, anynonarray, text) IS
    'The number that a regression predicts for a row of a table';

CREATE FUNCTION madlib_mop.predict_class(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_class(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, input_row, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class(text, integer, anynonarray, text) IS
    'The class of a row of a table: the one with the highest probability';

CREATE FUNCTION madlib_mop.predict_json(
    model_table text,
    mst_key integer,
    input_row anynonarray,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_json(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, input_row, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_json(text, integer, anynonarray, text) IS
    'The probabilities of a row of a table by class; a number by the name of its column';

CREATE FUNCTION madlib_mop.predict(
    model_table text,
    mst_key integer,
    inputs bytea[],
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, inputs, allow_null, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, integer, bytea[], boolean, text) IS
    'The outputs of a model with several inputs, each as returned by madlib_mop.array_bytes; allow_null: NULL for a row with a NULL element';

CREATE FUNCTION madlib_mop.predict(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS real[] LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, x, allow_null, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict(text, integer, anyarray, boolean, text) IS
    'The outputs of a model for one row, as an array; for an array of rows, an array of such arrays; allow_null: NULL for a row with a NULL element';

CREATE FUNCTION madlib_mop.predict_class(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_class(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, x, allow_null, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class(text, integer, anyarray, boolean, text) IS
    'The class of one row, as text: the one with the highest probability';

CREATE FUNCTION madlib_mop.predict_named(
    model_table text,
    mst_key integer,
    x anyarray,
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_named(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, x, allow_null, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_named(text, integer, anyarray, boolean, text) IS
    'The probabilities of one row by class; for a predicted number, its value by column name';

CREATE FUNCTION madlib_mop.predict_class(
    model_table text,
    mst_key integer,
    inputs bytea[],
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS text LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_class(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, inputs, allow_null, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_class(text, integer, bytea[], boolean, text) IS
    'The class of one row of a model with several inputs, each as returned by madlib_mop.array_bytes';

CREATE FUNCTION madlib_mop.predict_named(
    model_table text,
    mst_key integer,
    inputs bytea[],
    allow_null boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS jsonb LANGUAGE sql STABLE COST 5000 AS $body$
SELECT madlib_mop_calls.predict_named(madlib_mop_calls._planned(model_table, mst_key, caller_path), NULL, inputs, allow_null, '')
$body$;
COMMENT ON FUNCTION madlib_mop.predict_named(text, integer, bytea[], boolean, text) IS
    'The probabilities by class of one row of a model with several inputs, each as returned by madlib_mop.array_bytes';
-- end
