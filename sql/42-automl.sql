-- AutoML: searches for good configurations; each search is one run of the hopper.

CREATE FUNCTION madlib.madlib_keras_automl(
    source_table varchar, model_output_table varchar, model_arch_table varchar, model_selection_table varchar,
    model_id_list integer[], compile_params_grid varchar, fit_params_grid varchar,
    automl_method varchar DEFAULT 'hyperband', automl_params varchar DEFAULT NULL, random_state integer DEFAULT NULL,
    object_table varchar DEFAULT NULL, use_gpus boolean DEFAULT false, validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL, name varchar DEFAULT NULL, description varchar DEFAULT NULL,
    use_caching boolean DEFAULT false, seed integer DEFAULT NULL, schedule text DEFAULT 'rotation',
    replace boolean DEFAULT false, metrics_every text DEFAULT 'iteration', metrics_sample_rows integer DEFAULT NULL,
    policy text DEFAULT NULL, caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_automl', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_automl(
    varchar, varchar, varchar, varchar, integer[], varchar, varchar, varchar, varchar, integer, varchar, boolean,
    varchar, integer, varchar, varchar, boolean, integer, text, boolean, text, integer, text, text) IS
    'Searches architectures and parameters for the best model, by the method of automl_method';

CREATE FUNCTION madlib.hyperband_schedule(
    schedule_table varchar, r integer, eta integer DEFAULT 3, skip_last integer DEFAULT 0,
    caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('hyperband_schedule', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.hyperband_schedule(varchar, integer, integer, integer, text) IS
    'Writes the brackets and rounds of hyperband into a table';
