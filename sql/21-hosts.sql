-- Other hosts of segments. The secrets that give this server access to a host are in tables that only a superuser
-- reads and that pg_dump omits. Addresses and passwords are only in foreign servers and user mappings.

CREATE TABLE madlib_mop.host (
    server       name PRIMARY KEY,
    n_segments   integer NOT NULL CHECK (n_segments > 0),
    coordinator  text NOT NULL,
    key          bytea NOT NULL CHECK (pg_catalog.octet_length(key) = 32),
    versions     jsonb NOT NULL DEFAULT '{}',
    added_by     name NOT NULL DEFAULT current_user,
    added_at     timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON TABLE madlib_mop.host IS 'One foreign server with a host of segments; written by add_host and remove_host';
COMMENT ON COLUMN madlib_mop.host.coordinator IS 'The random name that identifies this server on that host';
COMMENT ON COLUMN madlib_mop.host.key IS 'The secret from which the keys that sign this server''s requests to that host are derived';

-- Members of pg_read_all_data can read every table, but no rows without a policy. Functions of superusers can.
ALTER TABLE madlib_mop.host ENABLE ROW LEVEL SECURITY;  -- defence: keys-of-hosts

CREATE VIEW madlib_mop.hosts AS
SELECT h.server,
       (SELECT option_value FROM pg_catalog.pg_options_to_table(s.srvoptions) WHERE option_name = 'host') AS host,
       (SELECT option_value FROM pg_catalog.pg_options_to_table(s.srvoptions) WHERE option_name = 'port') AS port,
       (SELECT option_value FROM pg_catalog.pg_options_to_table(s.srvoptions) WHERE option_name = 'dbname') AS dbname,
       h.n_segments, h.versions, h.added_by, h.added_at
FROM madlib_mop.host h LEFT JOIN pg_catalog.pg_foreign_server s ON s.srvname = h.server;
COMMENT ON VIEW madlib_mop.hosts IS 'The hosts of segments and their addresses';
COMMENT ON COLUMN madlib_mop.hosts.server IS 'The foreign server';
COMMENT ON COLUMN madlib_mop.hosts.host IS 'Address of the host';
COMMENT ON COLUMN madlib_mop.hosts.port IS 'Port of its PostgreSQL server';
COMMENT ON COLUMN madlib_mop.hosts.dbname IS 'Database there';
COMMENT ON COLUMN madlib_mop.hosts.n_segments IS 'Number of segments there';
COMMENT ON COLUMN madlib_mop.hosts.versions IS 'Versions of the library and of TensorFlow there';
COMMENT ON COLUMN madlib_mop.hosts.added_by IS 'The role that added it';
COMMENT ON COLUMN madlib_mop.hosts.added_at IS 'When it was added';

CREATE TABLE madlib_mop.coordinator (
    coordinator  text PRIMARY KEY,
    key          bytea NOT NULL CHECK (pg_catalog.octet_length(key) = 32),
    added_at     timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON TABLE madlib_mop.coordinator IS 'One server that may run segments here, and the secret from which its signature keys are derived';

ALTER TABLE madlib_mop.coordinator ENABLE ROW LEVEL SECURITY;

CREATE TABLE madlib_mop.host_shard (
    server        name NOT NULL,
    table_schema  name NOT NULL,
    table_name    name NOT NULL,
    packed_oid    oid,
    role          regrole NOT NULL,
    -- if greenplum
    xid           bigint NOT NULL,
    -- else
    xid           xid8 NOT NULL,
    -- end
    created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (server, table_schema, table_name)
);
COMMENT ON TABLE madlib_mop.host_shard IS 'One table of packed rows on a host; it is dropped when no table on this server uses it';
COMMENT ON COLUMN madlib_mop.host_shard.packed_oid IS 'The foreign table on this server that reads it';
COMMENT ON COLUMN madlib_mop.host_shard.xid IS 'The transaction that created that foreign table';
