-- Drift: rows of today, and the predictions of them, against the training rows.

CREATE FUNCTION madlib_mop.drift(
    model_table text,
    source_table text,
    mst_key integer DEFAULT NULL,
    baseline text DEFAULT NULL,
    predictions boolean DEFAULT true,
    max_rows bigint DEFAULT NULL,
    moderate double precision DEFAULT 0.1,
    large double precision DEFAULT 0.25,
    independent_varname text DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS TABLE (
    model text, feature text, kind text, measured text, verdict text, psi double precision, psi_by_chance double precision,
    n_rows bigint, baseline_rows bigint, null_share double precision, baseline_null_share double precision,
    new_share double precision, new_levels text[], outside_share double precision, minimum text, maximum text,
    baseline_minimum text, baseline_maximum text, reason text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT d.* FROM json_to_recordset(
        madlib_mop_calls.call('drift', json_build_object(@ARGUMENTS@), caller_path)
    ) AS d (model text, feature text, kind text, measured text, verdict text, psi double precision,
        psi_by_chance double precision, n_rows bigint, baseline_rows bigint, null_share double precision,
        baseline_null_share double precision, new_share double precision, new_levels text[],
        outside_share double precision, minimum text, maximum text, baseline_minimum text, baseline_maximum text,
        reason text);
$body$;
COMMENT ON FUNCTION madlib_mop.drift(
    text, text, integer, text, boolean, bigint, double precision, double precision, text, text) IS
    'How far the rows of a table, and the predictions of them, are from the training rows: a row for each comparison';
