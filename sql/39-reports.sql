-- Reports of runs. Roles that may only read have no right to start other commands of the driver, so the command's name
-- is fixed here. Function report calls it (40-functions.sql).

CREATE FUNCTION madlib_mop_calls._report(arguments text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp
-- as for _call: the text forms of values must not depend on settings of the database or the role
SET quote_all_identifiers = off SET array_nulls = on SET transform_null_equals = off SET extra_float_digits = 1
SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET jit = off AS $body$
@PRELUDE@
from mop_backend import call
# defence: reports-only = return call.run(__import__("json").loads(arguments).get("function", "report"), arguments, None, None, None, "@VERSION@")
return call.run("report", arguments, None, None, None, "@VERSION@")
$body$;
COMMENT ON FUNCTION madlib_mop_calls._report(text) IS 'Starts the driver for a report; errors come back as JSON';
