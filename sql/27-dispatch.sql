-- Greenplum: functions by which a writer session, a backend of the coordinator, uses the trainer of its segment. Each function is
-- run for one row of segment_key, so in the session's process on that row's segment (direct dispatch).
-- Other servers do not have these functions.
-- if greenplum

CREATE TABLE madlib_mop.segment_key (
    __dist_key__  integer NOT NULL
)
DISTRIBUTED BY (__dist_key__);
COMMENT ON TABLE madlib_mop.segment_key IS 'Numbers, distributed by the server: gp_segment_id is the segment that stores rows with this __dist_key__';
INSERT INTO madlib_mop.segment_key SELECT pg_catalog.generate_series(0, 16383);

-- SECURITY DEFINER, because some builds of Cloudberry do not let ordinary roles read gp_segment_configuration.
CREATE FUNCTION madlib_mop_calls.cluster_segments(OUT dbid integer, OUT number integer)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    SELECT c.dbid::integer, c.content::integer FROM pg_catalog.gp_segment_configuration c WHERE c.content >= 0 AND c.role = 'p'
$body$;
COMMENT ON FUNCTION madlib_mop_calls.cluster_segments() IS 'The cluster''s primary segments: their dbid and number';

CREATE FUNCTION madlib_mop_internal.dispatch_open()
RETURNS integer LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.open_segment()
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_open() IS 'Makes this process the segment of a writer session; ends the trainer that it had';

CREATE FUNCTION madlib_mop_internal.dispatch_put(part bytea)
RETURNS integer LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.put(part)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_put(bytea) IS 'Adds a blob to the next message to the trainer';

CREATE FUNCTION madlib_mop_internal.dispatch_keep(pull bigint, part integer, data bytea)
RETURNS integer LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.keep(pull, part, data)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_keep(bigint, integer, bytea) IS 'Keeps a part of a state for the next messages to the trainer';

CREATE FUNCTION madlib_mop_internal.part_arrived()
RETURNS trigger LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
dispatched.keep(TD["new"]["pull"], TD["new"]["part"], TD["new"]["data"])
return "SKIP"
$body$;
COMMENT ON FUNCTION madlib_mop_internal.part_arrived() IS 'Keeps a part of a state that comes from another segment, and stores nothing';

CREATE TABLE madlib_mop.state_inbox (
    __dist_key__  integer NOT NULL,
    pull          bigint NOT NULL,
    part          integer NOT NULL,
    data          bytea NOT NULL
)
DISTRIBUTED BY (__dist_key__);
COMMENT ON TABLE madlib_mop.state_inbox IS 'Always empty: an INSERT hands parts of a state to the writer''s process at the segment of __dist_key__';
CREATE TRIGGER arrive BEFORE INSERT ON madlib_mop.state_inbox FOR EACH ROW EXECUTE FUNCTION madlib_mop_internal.part_arrived();

CREATE FUNCTION madlib_mop_internal.dispatch_send(message text)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.send(message)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_send(text) IS 'Sends a message to the trainer, and starts the trainer if the message requests it';

CREATE FUNCTION madlib_mop_internal.dispatch_ask(message text, wait_s double precision)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.ask(message, wait_s)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_ask(text, double precision) IS 'Sends a message to the trainer, and waits for the answer as dispatch_receive does';

CREATE FUNCTION madlib_mop_internal.dispatch_receive(wait_s double precision)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.receive(wait_s)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_receive(double precision) IS 'The trainer''s answer, or NULL while there is none';

CREATE FUNCTION madlib_mop_internal.dispatch_get(index integer)
RETURNS bytea LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.get(index)
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_get(integer) IS 'A blob of the answer';

CREATE FUNCTION madlib_mop_internal.dispatch_listen()
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.listen()
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_listen() IS 'The address at which this process expects the rows of a shard';

CREATE FUNCTION madlib_mop_internal.dispatch_forward()
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.forward()
$body$;
COMMENT ON FUNCTION madlib_mop_internal.dispatch_forward() IS 'Forwards the rows that arrive at that address to the trainer';

CREATE FUNCTION madlib_mop_calls.reader_connect(address text)
RETURNS void LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.connect(address)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.reader_connect(text) IS 'Connects this process of a reader session to the process that expects a shard''s rows (called by reader_send)';

CREATE FUNCTION madlib_mop_calls.reader_end(address text)
RETURNS bigint LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.end(address)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.reader_end(text) IS 'Reports that all rows of the shard were sent (called by reader_send)';

CREATE FUNCTION madlib_mop_calls._dispatch_row(n_rows bigint, address text, shapes json, tensors bytea[])
RETURNS bigint LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import dispatched
return dispatched.send_row(n_rows, address, shapes, tensors)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._dispatch_row(bigint, text, json, bytea[]) IS 'Transition of dispatch_rows';

CREATE AGGREGATE madlib_mop_calls.dispatch_rows(address text, shapes json, tensors bytea[]) (
    SFUNC = madlib_mop_calls._dispatch_row, STYPE = bigint, INITCOND = '0');
COMMENT ON AGGREGATE madlib_mop_calls.dispatch_rows(text, json, bytea[])
IS 'Sends packed rows to the trainer of the segment that they lie at, in the order of ORDER BY; returns their number (called by reader_send)';

-- end
