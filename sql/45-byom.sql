-- Predictions of models that were not trained here: architecture and weights come from an architecture table.

CREATE FUNCTION madlib.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type varchar DEFAULT 'prob',
    use_gpus boolean DEFAULT false,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_predict_byom', json_build_object(@ARGUMENTS@, 'pred_kind', 'text'), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(
    varchar, integer, varchar, varchar, varchar, varchar, varchar, boolean, text[], double precision, integer, text) IS
    'Predictions of a model from an architecture table for the rows of a table: ''prob'', every class, or ''response'', the best one';

CREATE FUNCTION madlib.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type integer,
    use_gpus boolean DEFAULT false,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_predict_byom', json_build_object(@ARGUMENTS@, 'pred_kind', 'integer'), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(
    varchar, integer, varchar, varchar, varchar, varchar, integer, boolean, text[], double precision, integer, text) IS
    'Predictions of a model from an architecture table for the rows of a table: the best pred_type classes';

CREATE FUNCTION madlib.madlib_keras_predict_byom(
    model_arch_table varchar,
    model_id integer,
    test_table varchar,
    id_col varchar,
    independent_varname varchar,
    output_table varchar,
    pred_type double precision,
    use_gpus boolean DEFAULT false,
    class_values text[] DEFAULT NULL,
    normalizing_const double precision DEFAULT NULL,
    dependent_count integer DEFAULT 1,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
    SELECT madlib_mop_calls.call('madlib_keras_predict_byom', json_build_object(@ARGUMENTS@, 'pred_kind', 'float8'), caller_path);
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(
    varchar, integer, varchar, varchar, varchar, varchar, double precision, boolean, text[], double precision, integer, text) IS
    'Predictions of a model from an architecture table for the rows of a table: the classes with a probability above pred_type';
