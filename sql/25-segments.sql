-- Segments at other hosts: host_access returns the connection parameters to a writer session here; with segment_open, _put, _send
-- and _get its relay (madlib_mop/engines/hosts/relay.py) uses the trainer of the session that it opened there.

CREATE FUNCTION madlib_mop_internal.host_access(run_id bigint, server text) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    -- the options of postgres_fdw that define the connection
    connecting constant text[] := '{host,hostaddr,port,dbname,user,password,sslmode,sslrootcert,sslcert,sslkey,sslpassword,sslcrl,sslcrldir,'
        'sslsni,ssl_min_protocol_version,ssl_max_protocol_version,requirepeer,gssencmode,krbsrvname,require_auth,channel_binding,connect_timeout}';
    owner name;
    entry record;
    mapping record;
BEGIN
    SELECT pg_get_userbyid(r.owner) INTO owner FROM madlib_mop.run r
        WHERE r.run_id = host_access.run_id AND EXISTS (
            SELECT FROM jsonb_path_query(r.plan, '$.*.segments[*].place.server') AS place WHERE place #>> '{}' = host_access.server);
    IF owner IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('run %s has no segments at host %s', run_id, server);
    END IF;
    SELECT h.coordinator, h.key, s.oid, s.srvoptions INTO entry
        FROM madlib_mop.host h JOIN pg_foreign_server s ON s.srvname = h.server WHERE h.server = host_access.server;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('server %s is no longer a host of segments', server),
            HINT = 'A superuser can add it with madlib_mop.add_host.';
    END IF;
    IF NOT has_server_privilege(owner, entry.oid, 'USAGE') THEN
        RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('role %s has no right to use foreign server %s', owner, server),
            HINT = format('GRANT USAGE ON FOREIGN SERVER %I TO %I;', server, owner);
    END IF;
    SELECT m.umoptions AS options INTO mapping FROM pg_user_mapping m
        WHERE m.umserver = entry.oid AND (m.umuser = 0 OR m.umuser = (SELECT r.oid FROM pg_roles r WHERE r.rolname = owner))
        ORDER BY m.umuser DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '42704', MESSAGE = format('role %s has no user mapping for server %s', owner, server),
            HINT = format('CREATE USER MAPPING FOR %I SERVER %I OPTIONS (user ''...'', password ''...'');', owner, server);
    END IF;
    RETURN json_build_object(
        'coordinator', entry.coordinator, 'key', encode(entry.key, 'hex'),
        'needs_password', NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = owner) AND NOT EXISTS (
            SELECT FROM pg_options_to_table(mapping.options) WHERE option_name = 'password_required' AND option_value::boolean IS FALSE),
        'options', (SELECT json_object_agg(option_name, option_value)
                    FROM (SELECT * FROM pg_options_to_table(entry.srvoptions) UNION ALL SELECT * FROM pg_options_to_table(mapping.options)) o
                    WHERE option_name = ANY (connecting)));
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.host_access(bigint, text) IS 'The connection parameters for a writer session to the host of one of its run''s segments, as the run''s owner';

CREATE FUNCTION madlib_mop_calls.segment_open(coordinator text)
RETURNS text LANGUAGE plpython3u VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import segment
return segment.open_session(coordinator)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.segment_open(text) IS 'Makes this session work for a coordinator; returns the nonce of the session''s key to the relay (called only by that relay)';

CREATE FUNCTION madlib_mop_calls.segment_put(part bytea)
RETURNS void LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import segment
segment.put(part)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.segment_put(bytea) IS 'Adds one blob to the next message to this session''s trainer (called only by a coordinator''s relay)';

CREATE FUNCTION madlib_mop_calls.segment_send(header text, signature text, wait boolean)
RETURNS text LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import segment
return segment.send(header, signature, wait)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.segment_send(text, text, boolean) IS 'Sends one message to this session''s trainer and returns its answer (called only by a coordinator''s relay, which signs it)';

CREATE FUNCTION madlib_mop_calls.segment_get(number integer)
RETURNS bytea LANGUAGE plpython3u VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
@PRELUDE@
from mop_backend import segment
return segment.get(number)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.segment_get(integer) IS 'One blob of the answer of segment_send (called only by a coordinator''s relay)';

-- SECURITY DEFINER, but it does only what mop_backend.segment has put into a variable for this very call.
-- it creates tables: users' code in the session may have set where and how
CREATE FUNCTION madlib_mop_calls.segment_as_owner()
RETURNS void LANGUAGE plpython3u VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET default_tablespace = '' SET default_table_access_method = heap AS $body$
@PRELUDE@
from mop_backend import held
held.do_step()
$body$;
COMMENT ON FUNCTION madlib_mop_calls.segment_as_owner() IS 'Reads or writes the states that this server holds for a coordinator (called only by segment_send)';
