-- Adding and removing hosts of segments (the tables are in 21-hosts.sql).

CREATE FUNCTION madlib_mop_calls.count_cores() RETURNS integer
LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import machine
return machine.processors()
$body$;
COMMENT ON FUNCTION madlib_mop_calls.count_cores() IS 'Number of CPU cores that this server''s processes may use';

CREATE FUNCTION madlib_mop.add_host(server name, n_segments integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('add_host', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.add_host(name, integer, text) IS 'Adds a foreign server as a host of segments (superusers)';

CREATE FUNCTION madlib_mop.remove_host(server name, caller_path text DEFAULT pg_catalog.current_setting('search_path'))
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('remove_host', json_build_object(@ARGUMENTS@), caller_path);
$body$;
COMMENT ON FUNCTION madlib_mop.remove_host(name, text) IS 'Removes a foreign server from the hosts of segments (superusers)';
