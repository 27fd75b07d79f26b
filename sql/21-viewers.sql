-- Read access to the runs of other roles: written by grant_read and revoke_read (sql/90-grants.sql), read by may_see.

-- Since PostgreSQL 16, a membership WITH INHERIT FALSE, SET FALSE grants none of the role's rights. A role
-- with CREATEROLE gets such a membership in each role that it creates.
CREATE FUNCTION madlib_mop_calls.acts_as(role oid) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT pg_has_role(role, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.acts_as(oid) IS 'Whether the current user is a role, or a member that inherits its rights or can SET ROLE to it';

-- if greenplum
-- Policies cannot be used there, and a function on a segment cannot read tables: only owners see their runs.
-- else
CREATE TABLE madlib_mop.viewer (
    owner   regrole NOT NULL,
    viewer  regrole NOT NULL,
    PRIMARY KEY (owner, viewer)
);
COMMENT ON TABLE madlib_mop.viewer IS 'Roles that can read the runs of another role: progress, metrics and visits, but not states';
ALTER TABLE madlib_mop.viewer ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.viewer FOR SELECT
    USING (madlib_mop_calls.acts_as(owner) OR madlib_mop_calls.acts_as(viewer));

-- A role with DELETE on a table can lock it, and so block all checks of read access. So users can only insert, into this table.
CREATE TABLE madlib_mop.viewer_change (
    owner   regrole NOT NULL,
    viewer  regrole NOT NULL,
    sees    boolean NOT NULL
);
ALTER TABLE madlib_mop.viewer_change REPLICA IDENTITY FULL; -- a publication can include it
COMMENT ON TABLE madlib_mop.viewer_change IS 'One change of viewer by grant_read or revoke_read; a trigger applies it and deletes this row';
ALTER TABLE madlib_mop.viewer_change ENABLE ROW LEVEL SECURITY;
CREATE POLICY give ON madlib_mop.viewer_change FOR INSERT
    WITH CHECK (madlib_mop_calls.acts_as(owner));  -- defence: viewers-of-own-runs = WITH CHECK (true);

CREATE FUNCTION madlib_mop_calls._change_viewer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF NEW.sees THEN
        INSERT INTO madlib_mop.viewer (owner, viewer) VALUES (NEW.owner, NEW.viewer) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM madlib_mop.viewer v
        WHERE v.owner = NEW.owner AND (v.viewer = NEW.viewer OR v.viewer::oid NOT IN (SELECT oid FROM pg_roles));
    END IF;
    DELETE FROM madlib_mop.viewer_change c WHERE c.owner = NEW.owner;
    RETURN NULL;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._change_viewer() IS 'Applies a change that the policy of viewer_change accepted';

-- after the insert: only then has the policy accepted the row
CREATE TRIGGER make AFTER INSERT ON madlib_mop.viewer_change
FOR EACH ROW EXECUTE FUNCTION madlib_mop_calls._change_viewer();

-- A dump contains role names; for a dropped role it would contain an oid, which may belong to another role elsewhere.
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.viewer',
    'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles) AND viewer::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
-- end
