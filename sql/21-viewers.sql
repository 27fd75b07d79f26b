-- Who lets whom see runs: written by grant_read and revoke_read (sql/90-grants.sql), asked by may_see.

-- From PostgreSQL 16 on a membership may come WITH INHERIT FALSE, SET FALSE: it gives none of the role's rights. A role
-- with CREATEROLE has such a one in each role that it makes.
CREATE FUNCTION madlib_mop_calls.acts_as(role oid) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT pg_has_role(role, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.acts_as(oid) IS 'Whether the current user is a role, or a member that inherits its rights or can SET ROLE to it';

-- if greenplum
-- Policies are no help there, and a function at a segment reads no table: runs are their owners' alone.
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

-- Who may delete rows of a table may lock it, and so all that ask who sees what. So users may insert alone, and here.
CREATE TABLE madlib_mop.viewer_change (
    owner   regrole NOT NULL,
    viewer  regrole NOT NULL,
    sees    boolean NOT NULL
);
COMMENT ON TABLE madlib_mop.viewer_change IS 'One change of viewer by grant_read or revoke_read; a trigger applies it and deletes this row';
ALTER TABLE madlib_mop.viewer_change ENABLE ROW LEVEL SECURITY;
CREATE POLICY give ON madlib_mop.viewer_change FOR INSERT WITH CHECK (madlib_mop_calls.acts_as(owner));

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

-- after the row is in: only then has the policy let it in
CREATE TRIGGER make AFTER INSERT ON madlib_mop.viewer_change
FOR EACH ROW EXECUTE FUNCTION madlib_mop_calls._change_viewer();

-- A dump has roles' names; of a role that was dropped it would have a number, which may be another role's elsewhere.
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.viewer',
    'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles) AND viewer::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
-- end
