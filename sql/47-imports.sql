-- Models come in: Keras' own files and files of weights, into tables of architectures or straight into the registry.

CREATE FUNCTION madlib_mop.import_model(
    model_arch_table text,
    file bytea,
    name text DEFAULT NULL,
    description text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS integer LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT (madlib_mop_calls.call('import_model', json_build_object(@ARGUMENTS@), caller_path, payload_name => 'file', payload => file) #>> '{}')::integer;
$body$;
COMMENT ON FUNCTION madlib_mop.import_model(text, bytea, text, text, text) IS
    'Adds the model of a .keras file to a table of architectures, with its weights as start weights; returns its model_id';

CREATE FUNCTION madlib_mop.import_weights(
    model_arch_table text,
    model_id integer,
    file bytea,
    by_name boolean DEFAULT false,
    skip_mismatch boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS integer LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT (madlib_mop_calls.call('import_weights', json_build_object(@ARGUMENTS@), caller_path, payload_name => 'file', payload => file) #>> '{}')::integer;
$body$;
COMMENT ON FUNCTION madlib_mop.import_weights(text, integer, bytea, boolean, boolean, text) IS
    'Gives an architecture of a table the weights of a .keras, .weights.h5, .h5 or .safetensors file; returns the number of layers that got weights';

CREATE FUNCTION madlib_mop.import_version(
    name text,
    file bytea,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    compile_params text DEFAULT NULL,
    note text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS integer LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT (madlib_mop_calls.call('import_version', json_build_object(@ARGUMENTS@), caller_path, payload_name => 'file', payload => file) #>> '{}')::integer;
$body$;
COMMENT ON FUNCTION madlib_mop.import_version(text, bytea, text[], double precision, text, text, text) IS
    'Stores the model of a .keras file in the registry as a new version of a name; returns the number of the version';
