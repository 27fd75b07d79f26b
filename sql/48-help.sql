-- The help forms of the functions above: f() and f('usage'). Where 'usage' could be the name of a table or server, f() alone.
-- An update of the extension runs this again.

DO $do$
DECLARE
    function text;
BEGIN
    FOREACH function IN ARRAY '{delete_custom_function, delete_keras_model, generate_model_configs, hyperband_schedule,
        load_custom_function, load_keras_model, load_model_selection_table, load_top_k_accuracy_function,
        madlib_keras_automl, madlib_keras_evaluate, madlib_keras_fit, madlib_keras_fit_multiple_model,
        madlib_keras_predict, madlib_keras_predict_byom, training_preprocessor_dl, validation_preprocessor_dl}'::text[]
    LOOP
        EXECUTE format($sql$
            CREATE FUNCTION madlib.%1$I(usage text DEFAULT NULL) RETURNS text
            LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
            BEGIN
                RETURN madlib_mop_calls.call('help', json_build_object('topic', %1$L, 'option', usage), NULL) #>> '{}';
            END
            $body$;
            COMMENT ON FUNCTION madlib.%1$I(text) IS 'Help: SELECT madlib.%1$I(''usage'')';
        $sql$, function);
    END LOOP;
    FOREACH function IN ARRAY '{madlib.gpu_configuration, madlib_mop.add_host, madlib_mop.remove_host}'::text[] LOOP
        EXECUTE format($sql$
            CREATE FUNCTION %1$s() RETURNS text
            LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
            BEGIN
                RETURN madlib_mop_calls.call('help', json_build_object('topic', %2$L, 'option', 'usage'), NULL) #>> '{}';
            END
            $body$;
            COMMENT ON FUNCTION %1$s() IS 'Help';
        $sql$, function, split_part(function, '.', 2));
    END LOOP;
END
$do$;
