-- Conversions between arrays and bytes.

CREATE FUNCTION madlib_mop.array_bytes(numbers anyarray)
RETURNS bytea LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE AS 'byteasend';
COMMENT ON FUNCTION madlib_mop.array_bytes(anyarray) IS
    'An array''s memory representation, header and elements: read by the preprocessors and by predict. The server''s '
    'byteasend copies any variable-length value; there is no inverse function, because forged headers would be unsafe';

CREATE FUNCTION madlib_mop_calls._array_elements(numbers anyarray)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    bytes bytea := madlib_mop.array_bytes(numbers);
BEGIN
    IF substr(bytes, 5, 4) <> '\x00000000' THEN -- it has a NULL bitmap, possibly without a NULL
        IF EXISTS (SELECT FROM unnest(numbers) n WHERE n IS NULL) THEN
            RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'convert_array_to_bytea: the array contains a NULL element',
                HINT = 'Bytes cannot represent NULL: replace it first.';
        END IF;
        RETURN substr(madlib_mop.array_bytes(array_agg(n ORDER BY i)), 21) FROM unnest(numbers) WITH ORDINALITY u(n, i);
    END IF;
    RETURN substr(bytes, 13 + 8 * coalesce(array_ndims(numbers), 0));
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._array_elements(anyarray) IS 'The elements of an array, without its header';

CREATE FUNCTION madlib.convert_array_to_bytea(var real[])
RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls._array_elements(var)
$body$;
COMMENT ON FUNCTION madlib.convert_array_to_bytea(real[]) IS 'The numbers of an array as bytes: float32, native byte order';

CREATE FUNCTION madlib.convert_array_to_bytea(var smallint[])
RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls._array_elements(var)
$body$;
COMMENT ON FUNCTION madlib.convert_array_to_bytea(smallint[]) IS 'The numbers of an array as bytes: int16, native byte order';

CREATE FUNCTION madlib_mop_calls._reals(bytes bytea)
RETURNS real[] LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
from array import array
return array("f", bytes) if len(bytes) % 4 == 0 else None
$body$;
COMMENT ON FUNCTION madlib_mop_calls._reals(bytea) IS 'Float32 bytes as an array; NULL unless their number is a multiple of 4';

CREATE FUNCTION madlib_mop_calls._smallints(bytes bytea)
RETURNS smallint[] LANGUAGE plpython3u IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
from array import array
return array("h", bytes) if len(bytes) % 2 == 0 else None
$body$;
COMMENT ON FUNCTION madlib_mop_calls._smallints(bytea) IS 'Int16 bytes as an array; NULL unless their number is a multiple of 2';

CREATE FUNCTION madlib.convert_bytea_to_real_array(var bytea)
RETURNS real[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF length(var) % 4 <> 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'Pass the output of convert_array_to_bytea(real[]).',
            MESSAGE = format('convert_bytea_to_real_array: the length must be a multiple of 4. Received: %s bytes', length(var));
    END IF;
    RETURN madlib_mop_calls._reals(var);
END
$body$;
COMMENT ON FUNCTION madlib.convert_bytea_to_real_array(bytea) IS 'Float32 bytes, native byte order, as a one-dimensional array';

CREATE FUNCTION madlib.convert_bytea_to_smallint_array(var bytea)
RETURNS smallint[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF length(var) % 2 <> 0 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'Pass the output of convert_array_to_bytea(smallint[]).',
            MESSAGE = format('convert_bytea_to_smallint_array: the length must be even. Received: %s bytes', length(var));
    END IF;
    RETURN madlib_mop_calls._smallints(var);
END
$body$;
COMMENT ON FUNCTION madlib.convert_bytea_to_smallint_array(bytea) IS 'Int16 bytes, native byte order, as a one-dimensional array';
