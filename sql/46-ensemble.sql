-- An ensemble: models of one output table, chosen by their predictions, as a table with one model.

CREATE FUNCTION madlib_mop.make_ensemble(
    model_table text,
    validation_table text,
    output_table text,
    n_members integer DEFAULT 8,
    metric text DEFAULT 'loss',
    mst_keys integer[] DEFAULT NULL,
    replace boolean DEFAULT false,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS TABLE (mst_key integer, copies integer, weight double precision, validation_metric double precision, ensemble_metric double precision)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT e.mst_key, e.copies, e.weight, e.validation_metric, e.ensemble_metric FROM json_to_recordset(
        madlib_mop_calls.call('make_ensemble', json_build_object(@ARGUMENTS@), caller_path)
    ) AS e (mst_key integer, copies integer, weight double precision, validation_metric double precision, ensemble_metric double precision);
$body$;
COMMENT ON FUNCTION madlib_mop.make_ensemble(text, text, text, integer, text, integer[], boolean, text) IS
    'Chooses models of a table by their predictions of a validation table, and writes their average as a table with one model';
