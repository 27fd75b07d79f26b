-- Who lets whom see runs: written by grant_read and revoke_read (sql/90-grants.sql), asked by may_see.

-- if greenplum
-- Policies are no help there, and a function at a segment reads no table: runs are their owners' alone.
-- else
CREATE TABLE madlib_mop.viewer (
    owner   regrole NOT NULL,
    viewer  regrole NOT NULL,
    PRIMARY KEY (owner, viewer)
);
COMMENT ON TABLE madlib_mop.viewer IS 'Which role sees the runs of which: their progress, metrics and visits, not their states';
ALTER TABLE madlib_mop.viewer ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.viewer FOR SELECT
    USING (pg_catalog.pg_has_role(owner::oid, 'MEMBER') OR pg_catalog.pg_has_role(viewer::oid, 'MEMBER'));
CREATE POLICY give ON madlib_mop.viewer FOR INSERT WITH CHECK (pg_catalog.pg_has_role(owner::oid, 'MEMBER'));
CREATE POLICY take ON madlib_mop.viewer FOR DELETE USING (pg_catalog.pg_has_role(owner::oid, 'MEMBER'));

-- A dump has roles' names; of a role that was dropped it would have a number, which may be another role's elsewhere.
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.viewer',
    'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles) AND viewer::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
-- end
