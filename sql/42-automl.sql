-- AutoML: searches for good configurations, each one run on the hopper.

CREATE FUNCTION madlib.madlib_keras_automl(
    source_table varchar, model_output_table varchar, model_arch_table varchar, model_selection_table varchar,
    model_id_list integer[], compile_params_grid varchar, fit_params_grid varchar,
    automl_method varchar DEFAULT 'hyperband', automl_params varchar DEFAULT NULL, random_state integer DEFAULT NULL,
    object_table varchar DEFAULT NULL, use_gpus boolean DEFAULT false, validation_table varchar DEFAULT NULL,
    metrics_compute_frequency integer DEFAULT NULL, name varchar DEFAULT NULL, description varchar DEFAULT NULL,
    use_caching boolean DEFAULT false, seed integer DEFAULT NULL, schedule text DEFAULT 'rotation',
    replace boolean DEFAULT false, caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    done json;
BEGIN
    done := madlib_mop_calls.call('madlib_keras_automl', json_build_object(
        'source_table', source_table, 'model_output_table', model_output_table, 'model_arch_table', model_arch_table,
        'model_selection_table', model_selection_table, 'model_id_list', model_id_list,
        'compile_params_grid', compile_params_grid, 'fit_params_grid', fit_params_grid, 'automl_method', automl_method,
        'automl_params', automl_params, 'random_state', random_state, 'object_table', object_table,
        'use_gpus', use_gpus, 'validation_table', validation_table,
        'metrics_compute_frequency', metrics_compute_frequency, 'name', name, 'description', description,
        'use_caching', use_caching, 'seed', seed, 'schedule', schedule, 'replace', replace), caller_path);
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_automl IS 'Searches architectures and parameters for the best model: hyperband, hyperopt, asha, tpe or pbt';

CREATE FUNCTION madlib.madlib_keras_automl() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN madlib_mop_calls.call('help', json_build_object('topic', 'madlib_keras_automl'), NULL) #>> '{}';
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_automl() IS 'Help';

CREATE FUNCTION madlib.madlib_keras_automl(usage text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN madlib_mop_calls.call('help', json_build_object('topic', 'madlib_keras_automl', 'option', usage), NULL) #>> '{}';
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_automl(text) IS 'Help: SELECT madlib.madlib_keras_automl(''usage'')';

CREATE FUNCTION madlib.hyperband_schedule(
    schedule_table varchar, r integer, eta integer DEFAULT 3, skip_last integer DEFAULT 0,
    caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    done json;
BEGIN
    done := madlib_mop_calls.call('hyperband_schedule', json_build_object(
        'schedule_table', schedule_table, 'r', r, 'eta', eta, 'skip_last', skip_last), caller_path);
END
$body$;
COMMENT ON FUNCTION madlib.hyperband_schedule(varchar, integer, integer, integer, text) IS
    'Writes the brackets and rounds that hyperband would make into a table';

CREATE FUNCTION madlib.hyperband_schedule() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN madlib_mop_calls.call('help', json_build_object('topic', 'hyperband_schedule'), NULL) #>> '{}';
END
$body$;
COMMENT ON FUNCTION madlib.hyperband_schedule() IS 'Help';

CREATE FUNCTION madlib.hyperband_schedule(usage text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN madlib_mop_calls.call('help', json_build_object('topic', 'hyperband_schedule', 'option', usage), NULL) #>> '{}';
END
$body$;
COMMENT ON FUNCTION madlib.hyperband_schedule(text) IS 'Help: SELECT madlib.hyperband_schedule(''usage'')';
