-- What add_host asks a host of segments (the tables are in 21-hosts.sql).

CREATE FUNCTION madlib_mop_calls.count_cores() RETURNS integer
LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import machine
return machine.processors()
$body$;
COMMENT ON FUNCTION madlib_mop_calls.count_cores() IS 'Number of CPU cores that this server''s processes may use';
