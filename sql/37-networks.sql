-- Networks for a table that pack_columns packed: architectures with configurations, and the space of a search.

CREATE FUNCTION madlib_mop.propose_networks(
    packed_table varchar,
    arch_table varchar,
    configs_table varchar,
    n_configs integer DEFAULT 16,
    num_iterations integer DEFAULT 10,
    seed integer DEFAULT 1,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('propose_networks', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.propose_networks(varchar, varchar, varchar, integer, integer, integer, text) IS
    'Writes architectures for the inputs and targets of a packed table, and a model selection table of configurations';

CREATE FUNCTION madlib_mop.propose_search(
    packed_table varchar,
    arch_table varchar,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS TABLE (model_id_list integer[], compile_params_grid text, fit_params_grid text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT s.model_id_list, s.compile_params_grid, s.fit_params_grid FROM json_to_recordset(
        madlib_mop_calls.call('propose_search', json_build_object(@ARGUMENTS@), caller_path)
    ) AS s (model_id_list integer[], compile_params_grid text, fit_params_grid text);
$body$;
COMMENT ON FUNCTION madlib_mop.propose_search(varchar, varchar, text) IS
    'The architectures and grids with which madlib_keras_automl searches over the networks of propose_networks';
