-- GPUs.

CREATE FUNCTION madlib.gpu_configuration(output_table text, source text DEFAULT 'tensorflow',
    caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('gpu_configuration', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib.gpu_configuration(text, text, text) IS 'Writes a table of the GPUs of the server''s host';
