-- Training of one model by bulk-synchronous model averaging.

CREATE FUNCTION madlib.madlib_keras_fit(
    source_table varchar, model varchar, model_arch_table varchar, model_id integer, compile_params varchar, fit_params varchar,
    num_iterations integer, use_gpus boolean DEFAULT false, validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL, warm_start boolean DEFAULT NULL, name varchar DEFAULT NULL,
    description varchar DEFAULT NULL, object_table varchar DEFAULT NULL, seed integer DEFAULT NULL,
    replace boolean DEFAULT false, early_stopping text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_fit', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_fit(
    varchar, varchar, varchar, integer, varchar, varchar, integer, boolean, varchar, integer, boolean, varchar,
    varchar, varchar, integer, boolean, text, text) IS
    'Trains one model on all segments at once and averages the models of the segments after each iteration';
