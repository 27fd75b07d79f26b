-- Model selection tables: combinations of architectures and parameters.

CREATE FUNCTION madlib.load_model_selection_table(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_list varchar[],
    fit_params_list varchar[],
    object_table varchar DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('load_model_selection_table', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.load_model_selection_table(varchar, varchar, integer[], varchar[], varchar[], varchar, text) IS
    'Creates a model selection table of all combinations of architectures, compile and fit parameters';

CREATE FUNCTION madlib.generate_model_configs(
    model_arch_table varchar,
    model_selection_table varchar,
    model_id_list integer[],
    compile_params_grid varchar,
    fit_params_grid varchar,
    search_type varchar DEFAULT 'grid',
    num_configs integer DEFAULT NULL,
    random_state integer DEFAULT NULL,
    object_table varchar DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('generate_model_configs', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.generate_model_configs(
    varchar, varchar, integer[], varchar, varchar, varchar, integer, integer, varchar, text) IS
    'Fills a model selection table by grid search or random search; appends to an existing one';
