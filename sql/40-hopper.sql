-- Training of many models with the hopper, and the control of runs.

CREATE FUNCTION madlib.madlib_keras_fit_multiple_model(
    source_table varchar, model_output_table varchar, model_selection_table varchar, num_iterations integer,
    use_gpus boolean DEFAULT false, validation_table varchar DEFAULT NULL, metrics_compute_frequency integer DEFAULT NULL,
    warm_start boolean DEFAULT false, name varchar DEFAULT NULL, description varchar DEFAULT NULL,
    use_caching boolean DEFAULT false, seed integer DEFAULT NULL, schedule text DEFAULT 'auto',
    replace boolean DEFAULT false, early_stopping text DEFAULT NULL,
    metrics_every text DEFAULT 'iteration', metrics_sample_rows integer DEFAULT NULL, policy text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_fit_multiple_model', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_fit_multiple_model(
    varchar, varchar, varchar, integer, boolean, varchar, integer, boolean, varchar, varchar, boolean, integer, text,
    boolean, text, text, integer, text, text) IS
    'Trains every configuration of a model selection table by model hopping';

CREATE FUNCTION madlib_mop.resume(
    run_id bigint, output_table text DEFAULT NULL, caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('resume', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.resume(bigint, text, text) IS 'Continues a run after a fault or a cancel, and writes its output tables';

CREATE FUNCTION madlib_mop.cancel(run_id bigint)
RETURNS boolean LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT (madlib_mop_calls.call('cancel', json_build_object(@ARGUMENTS@), NULL) #>> '{}')::boolean;
$body$;
COMMENT ON FUNCTION madlib_mop.cancel(bigint) IS 'Stops a run from another session; true if it was running. Committed work is kept for resume()';

CREATE FUNCTION madlib_mop.replay(run_id bigint, output_table text, caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('replay', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.replay(bigint, text, text) IS 'Repeats the visits of a run, in their order, as a new run';

CREATE FUNCTION madlib_mop.drop_run(run_id bigint)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('drop_run', json_build_object(@ARGUMENTS@), NULL);
$body$;
COMMENT ON FUNCTION madlib_mop.drop_run(bigint) IS 'Drops the record and the states of a run; the output tables stay';

CREATE FUNCTION madlib_mop.drop_models(model_table text, caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS text[] LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce(ARRAY(SELECT json_array_elements_text(madlib_mop_calls.call('drop_models', json_build_object(@ARGUMENTS@), caller_path))), '{}');
$body$;
COMMENT ON FUNCTION madlib_mop.drop_models(text, text) IS 'Drops the output table of a fit function with its _info and _summary, as far as they exist, and reports which; the record stays';
