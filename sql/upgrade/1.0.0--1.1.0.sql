-- From 1.0.0 to 1.1.0: changes of tables, columns, policies, triggers and views.

CREATE TABLE madlib_mop.preprocessor (
    run_id    bigint PRIMARY KEY REFERENCES madlib_mop.run ON DELETE CASCADE,
    digest    text NOT NULL,
    document  text NOT NULL
)
-- if greenplum
DISTRIBUTED BY (run_id)
-- end
;
ALTER TABLE madlib_mop.preprocessor ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.preprocessor FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.preprocessor',
    'WHERE run_id IN (SELECT run_id FROM madlib_mop.run WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
