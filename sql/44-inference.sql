-- Use of trained models: loss and metrics of a model on a packed table, predictions for the rows of any table.

CREATE FUNCTION madlib.madlib_keras_evaluate(
    model_table varchar,
    test_table varchar,
    output_table varchar,
    use_gpus boolean DEFAULT false,
    mst_key integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_evaluate', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_evaluate(varchar, varchar, varchar, boolean, integer, text) IS
    'Loss and metrics of a trained model over a packed table, as a table of one row';

-- pred_type is a word, a rank or a probability, so there are three functions of the same name. Only the first has a default
-- for it; otherwise a call without pred_type, or with named arguments, would match all three.

CREATE FUNCTION madlib.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT false,
    mst_key integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_predict', json_build_object(@ARGUMENTS@, 'pred_kind', 'text'), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict(
    varchar, varchar, varchar, varchar, varchar, varchar, boolean, integer, text) IS
    'Predictions for the rows of a table: ''prob'', every class, or ''response'', the best one';

CREATE FUNCTION madlib.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT false,
    mst_key integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_predict', json_build_object(@ARGUMENTS@, 'pred_kind', 'integer'), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict(
    varchar, varchar, varchar, varchar, varchar, integer, boolean, integer, text) IS
    'Predictions for the rows of a table: the best pred_type classes';

CREATE FUNCTION madlib.madlib_keras_predict(
    model_table varchar,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT false,
    mst_key integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_predict', json_build_object(@ARGUMENTS@, 'pred_kind', 'float8'), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict(
    varchar, varchar, varchar, varchar, varchar, double precision, boolean, integer, text) IS
    'Predictions for the rows of a table: the classes with a probability above pred_type';
