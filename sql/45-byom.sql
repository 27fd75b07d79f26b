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
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
DECLARE
    done json;
BEGIN
    done := madlib_mop_calls.call('madlib_keras_predict_byom', json_build_object(
        'model_arch_table', model_arch_table, 'model_id', model_id, 'test_table', test_table, 'id_col', id_col,
        'independent_varname', independent_varname, 'output_table', output_table, 'pred_type', pred_type,
        'pred_kind', 'text', 'use_gpus', use_gpus, 'class_values', class_values,
        'normalizing_const', normalizing_const, 'dependent_count', dependent_count), caller_path);
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(
    varchar, integer, varchar, varchar, varchar, varchar, varchar, boolean, text[], double precision, integer, text) IS
    'Predictions of one''s own model for the rows of a table: ''prob'', every class, or ''response'', the best one';

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
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
DECLARE
    done json;
BEGIN
    done := madlib_mop_calls.call('madlib_keras_predict_byom', json_build_object(
        'model_arch_table', model_arch_table, 'model_id', model_id, 'test_table', test_table, 'id_col', id_col,
        'independent_varname', independent_varname, 'output_table', output_table, 'pred_type', pred_type,
        'pred_kind', 'integer', 'use_gpus', use_gpus, 'class_values', class_values,
        'normalizing_const', normalizing_const, 'dependent_count', dependent_count), caller_path);
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(
    varchar, integer, varchar, varchar, varchar, varchar, integer, boolean, text[], double precision, integer, text) IS
    'Predictions of one''s own model for the rows of a table: the best classes, as many as pred_type says';

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
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $body$
DECLARE
    done json;
BEGIN
    done := madlib_mop_calls.call('madlib_keras_predict_byom', json_build_object(
        'model_arch_table', model_arch_table, 'model_id', model_id, 'test_table', test_table, 'id_col', id_col,
        'independent_varname', independent_varname, 'output_table', output_table, 'pred_type', pred_type,
        'pred_kind', 'float8', 'use_gpus', use_gpus, 'class_values', class_values,
        'normalizing_const', normalizing_const, 'dependent_count', dependent_count), caller_path);
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(
    varchar, integer, varchar, varchar, varchar, varchar, double precision, boolean, text[], double precision, integer, text) IS
    'Predictions of one''s own model for the rows of a table: the classes with a probability above pred_type';

CREATE FUNCTION madlib.madlib_keras_predict_byom(usage text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    RETURN madlib_mop_calls.call('help', json_build_object('topic', 'madlib_keras_predict_byom', 'option', usage), NULL) #>> '{}';
END
$body$;
COMMENT ON FUNCTION madlib.madlib_keras_predict_byom(text) IS 'Help: SELECT madlib.madlib_keras_predict_byom(''usage'')';
