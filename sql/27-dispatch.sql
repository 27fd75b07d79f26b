-- Greenplum: how a worker's session, a backend of the coordinator, reaches the trainer of its segment. Each function is
-- run for one row of segment_key, so in the one process that the session has at that row's segment (direct dispatch).
-- Other servers have none of this.
-- if greenplum

CREATE TABLE madlib_mop.segment_key (
    __dist_key__  integer NOT NULL
)
DISTRIBUTED BY (__dist_key__);
COMMENT ON TABLE madlib_mop.segment_key IS 'Numbers, spread by the server: gp_segment_id tells at which segment a row of that __dist_key__ lies';
INSERT INTO madlib_mop.segment_key SELECT pg_catalog.generate_series(0, 16383);

-- With its owner's rights: Cloudberry may be built so that ordinary roles cannot read gp_segment_configuration.
CREATE FUNCTION madlib_mop.cluster_segments(OUT dbid integer, OUT number integer)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    SELECT c.dbid::integer, c.content::integer FROM pg_catalog.gp_segment_configuration c WHERE c.content >= 0 AND c.role = 'p'
$body$;
COMMENT ON FUNCTION madlib_mop.cluster_segments() IS 'The cluster''s primary segments: their dbid, and their number';

CREATE FUNCTION madlib_mop.dispatch_open(key bytea)
RETURNS integer LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.open_segment(key)
$body$;
COMMENT ON FUNCTION madlib_mop.dispatch_open(bytea) IS 'Makes this process the segment of the session that knows the key; ends the trainer that it had (called by workers only)';

CREATE FUNCTION madlib_mop.dispatch_put(number bigint, seal text, part bytea)
RETURNS integer LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.put(number, seal, part)
$body$;
COMMENT ON FUNCTION madlib_mop.dispatch_put(bigint, text, bytea) IS 'Takes a blob of the next message to the trainer (called by workers only)';

CREATE FUNCTION madlib_mop.dispatch_send(number bigint, seal text, header text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.send(number, seal, header)
$body$;
COMMENT ON FUNCTION madlib_mop.dispatch_send(bigint, text, text) IS 'Sends the trainer a message, and starts it if the message says so (called by workers only)';

CREATE FUNCTION madlib_mop.dispatch_receive(number bigint, seal text, wait_s double precision)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.receive(number, seal, wait_s)
$body$;
COMMENT ON FUNCTION madlib_mop.dispatch_receive(bigint, text, double precision) IS 'The trainer''s answer, or NULL while there is none (called by workers only)';

CREATE FUNCTION madlib_mop.dispatch_get(number bigint, seal text, index integer)
RETURNS bytea LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.get(number, seal, index)
$body$;
COMMENT ON FUNCTION madlib_mop.dispatch_get(bigint, text, integer) IS 'A blob of the answer (called by workers only)';

CREATE FUNCTION madlib_mop._dispatch_row(n_rows bigint, ticket text, shapes json, tensors bytea[])
RETURNS bigint LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.take_row(n_rows, ticket, shapes, tensors)
$body$;
COMMENT ON FUNCTION madlib_mop._dispatch_row(bigint, text, json, bytea[]) IS 'Transition of dispatch_rows';

CREATE AGGREGATE madlib_mop.dispatch_rows(ticket text, shapes json, tensors bytea[]) (
    SFUNC = madlib_mop._dispatch_row, STYPE = bigint, INITCOND = '0');
COMMENT ON AGGREGATE madlib_mop.dispatch_rows(text, json, bytea[])
IS 'Hands packed rows to the trainer of the segment that they lie at, in the order of ORDER BY; gives their number (called by workers only)';

-- end
