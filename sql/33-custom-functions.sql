-- Tables of custom losses and metrics, in schema madlib: superusers register them, all users use them.

CREATE FUNCTION madlib.load_custom_function(object_table varchar, object bytea, name text, description text DEFAULT NULL)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('load_custom_function', json_build_object(@ARGUMENTS@), NULL, payload_name => 'object', payload => object);
$body$;
COMMENT ON FUNCTION madlib.load_custom_function(varchar, bytea, text, text) IS
    'Registers a loss or metric, as Python source in UTF-8, in a table of schema madlib (superusers)';

CREATE FUNCTION madlib.delete_custom_function(object_table varchar, id integer)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('delete_custom_function', json_build_object(@ARGUMENTS@), NULL);
$body$;
COMMENT ON FUNCTION madlib.delete_custom_function(varchar, integer) IS
    'Deletes a custom function by its id, and the table with the last one (superusers)';

CREATE FUNCTION madlib.delete_custom_function(object_table varchar, name text)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('delete_custom_function', json_build_object(@ARGUMENTS@), NULL);
$body$;
COMMENT ON FUNCTION madlib.delete_custom_function(varchar, text) IS
    'Deletes a custom function by its name, and the table with the last one (superusers)';

CREATE FUNCTION madlib.load_top_k_accuracy_function(object_table varchar, k integer)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('load_top_k_accuracy_function', json_build_object(@ARGUMENTS@), NULL);
$body$;
COMMENT ON FUNCTION madlib.load_top_k_accuracy_function(varchar, integer) IS
    'Registers the metric top_<k>_accuracy (superusers)';
