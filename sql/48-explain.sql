-- Why a prediction is what it is. The row comes as that of madlib_mop.predict; a trainer of the session's own explains it.

CREATE FUNCTION madlib_mop_calls._explain(
    model_table text, mst_key integer, input_row bytea, row_type bigint, names text[], encoding text, caller_path text,
    of_class text, background text, n_background integer, n_permutations integer, seed bigint)
RETURNS text LANGUAGE plpython3u STABLE COST 100000 SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
@PRELUDE@
from mop_backend import explain
options = explain.Options(of_class, background, n_background, n_permutations, seed)
return explain.explain(model_table, mst_key, input_row, row_type, names, encoding, caller_path, options, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._explain(text, integer, bytea, bigint, text[], text, text, text, text, integer, integer, bigint) IS
    'Explains the prediction of one row with the session''s trainer, as JSON; NULL after an error';

CREATE FUNCTION madlib_mop.explain_prediction(
    model_table text,
    input_row anynonarray,
    mst_key integer DEFAULT NULL,
    of_class text DEFAULT NULL,
    background text DEFAULT NULL,
    n_background integer DEFAULT 100,
    n_permutations integer DEFAULT NULL,
    seed bigint DEFAULT 0,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS TABLE (
    output text, class text, feature text, contribution double precision, standard_error double precision,
    base double precision, prediction double precision
) LANGUAGE plpgsql STABLE COST 100000 ROWS 20 SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    sent bytea := substr(record_send(ROW(input_row)), 13);
    answer text;
    error json;
BEGIN
    IF sent = '' THEN -- NULL, not a row of NULLs
        RETURN;
    END IF;
    PERFORM madlib_mop_calls._at_coordinator('madlib_mop.explain_prediction');
    answer := madlib_mop_calls._explain(model_table, mst_key, sent, pg_typeof(input_row)::oid::bigint,
        CASE WHEN pg_typeof(input_row) = 'record'::regtype THEN madlib_mop_calls._field_names(input_row, sent) END,
        pg_client_encoding()::text, caller_path, of_class, background, n_background, n_permutations, seed);
    IF answer IS NULL THEN
        error := madlib_mop_calls._raise(madlib_mop_calls._predict_error());
    END IF;
    RETURN QUERY
        SELECT r.* FROM json_to_recordset(answer::json) AS r (
            output text, class text, feature text, contribution double precision, standard_error double precision,
            base double precision, prediction double precision);
END
$body$;
COMMENT ON FUNCTION madlib_mop.explain_prediction(text, anynonarray, integer, text, text, integer, integer, bigint, text) IS
    'Why a model predicts what it does for a row: the contribution of each column (Shapley values) to prediction - base';
