-- Tables of Keras architectures: one row for each model, loaded and deleted by id.

CREATE FUNCTION madlib.load_keras_model(
    keras_model_arch_table varchar,
    model_arch json,
    model_weights bytea DEFAULT NULL,
    name text DEFAULT NULL,
    description text DEFAULT NULL,
    weights text DEFAULT NULL,
    weights_key integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('load_keras_model', json_build_object(@ARGUMENTS@), caller_path, payload_name => 'model_weights', payload => model_weights);
$body$;
COMMENT ON FUNCTION madlib.load_keras_model(varchar, json, bytea, text, text, text, integer, text) IS
    'Adds an architecture, with or without start weights, to a table of architectures';

CREATE FUNCTION madlib.delete_keras_model(
    keras_model_arch_table varchar,
    model_id integer,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('delete_keras_model', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.delete_keras_model(varchar, integer, text) IS
    'Deletes an architecture from its table, and the table with the last one';
