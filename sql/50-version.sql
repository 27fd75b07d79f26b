-- The installed versions.

CREATE FUNCTION madlib_mop.version(OUT extension text, OUT package text, OUT python text, OUT tensorflow text, OUT keras text, OUT numpy text, OUT server text, OUT jax text, OUT torch text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    SELECT x.* INTO package, python, tensorflow, keras, numpy, jax, torch
        FROM json_to_record(madlib_mop_calls.call('version', '{}', NULL)) AS x (package text, python text, tensorflow text, keras text, numpy text, jax text, torch text);
    extension := '@VERSION@';
    server := current_setting('server_version');
END
$body$;
COMMENT ON FUNCTION madlib_mop.version() IS 'Versions of the extension, its library, Python, TensorFlow, Keras, NumPy and the server; of JAX and PyTorch, NULL where they are not installed';
