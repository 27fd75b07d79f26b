-- Models leave: as files of other programs, and their cards. A result of type bytea needs a function of its own; roles
-- that may only read have no right to start other commands of the driver, so the commands' names are fixed here.
-- This file is before that of the users' functions: Greenplum checks the body of export_parts, which is in SQL, at once.

CREATE FUNCTION madlib_mop_calls._export(arguments text, caller_path text, OUT error text, OUT content bytea)
LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp
-- as for _call: the text forms of values must not depend on settings of the database or the role
SET quote_all_identifiers = off SET array_nulls = on SET transform_null_equals = off SET extra_float_digits = 1
SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET jit = off AS $body$
@PRELUDE@
from mop_backend import call
return call.run_for_bytes("export_model", arguments, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._export(text, text) IS 'Starts the driver for an export; errors come back as JSON';

CREATE FUNCTION madlib_mop_calls._export_parts(arguments text, caller_path text, OUT error text, OUT content bytea)
RETURNS SETOF record LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off SET array_nulls = on SET transform_null_equals = off SET extra_float_digits = 1
SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET jit = off AS $body$
@PRELUDE@
from mop_backend import call
return call.run_for_parts("export_parts", arguments, caller_path, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._export_parts(text, text) IS 'Starts the driver for an export in parts; an error comes back as JSON in the place of a part';

CREATE FUNCTION madlib_mop_calls._card(arguments text, caller_path text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp
SET quote_all_identifiers = off SET array_nulls = on SET transform_null_equals = off SET extra_float_digits = 1
SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET jit = off AS $body$
@PRELUDE@
from mop_backend import call
return call.run("model_card", arguments, caller_path, None, None, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._card(text, text) IS 'Starts the driver for a card; errors come back as JSON';
