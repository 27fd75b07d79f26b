-- A run is visible to its owner and to members of the owner's role; a superuser sees all. Roles with read access
-- (grant_read) see it too, except for states and start weights. Roles are stored as oids, because a name can later
-- belong to another role.

CREATE FUNCTION madlib_mop_calls.may_own(owner regrole) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = owner AND madlib_mop_calls.acts_as(r.oid))
        OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND r.rolsuper)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.may_own(regrole) IS 'Whether the current user is the role that owns a run, or a member of it';

CREATE FUNCTION madlib_mop_calls.may_see(owner regrole) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.may_own(owner)
    -- if postgres
        OR EXISTS (SELECT FROM madlib_mop.viewer g JOIN pg_catalog.pg_roles r ON r.oid = g.owner
                   WHERE r.oid = may_see.owner AND madlib_mop_calls.acts_as(g.viewer))
    -- end
$body$;
COMMENT ON FUNCTION madlib_mop_calls.may_see(regrole) IS 'Whether the current user owns a run (may_own) or was granted read access by its owner';

ALTER TABLE madlib_mop.run ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.run FOR SELECT
    USING (madlib_mop_calls.may_see(owner));  -- defence: runs-of-own-roles = USING (true);
ALTER TABLE madlib_mop.segment ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.segment FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.model ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.model FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.start_weights ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.start_weights FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));
ALTER TABLE madlib_mop.custom_function ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.custom_function FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));
ALTER TABLE madlib_mop.caller_setting ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.caller_setting FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r
                      WHERE madlib_mop_calls.may_own(r.owner)));  -- defence: settings-for-members = ));
ALTER TABLE madlib_mop.run_policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.run_policy FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r WHERE madlib_mop_calls.may_own(r.owner)));
ALTER TABLE madlib_mop.preprocessor ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.preprocessor FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r
                      WHERE madlib_mop_calls.may_own(r.owner)));  -- defence: statistics-for-members = ));
ALTER TABLE madlib_mop.model_state ENABLE ROW LEVEL SECURITY;  -- defence: states-of-own-runs
CREATE POLICY own_runs ON madlib_mop.model_state FOR SELECT
    USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r
                      WHERE madlib_mop_calls.may_own(r.owner)));  -- defence: states-for-members = ));
ALTER TABLE madlib_mop.visit ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.visit FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.metric ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.metric FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.visit_metric ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.visit_metric FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.evaluation ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.evaluation FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.change ENABLE ROW LEVEL SECURITY;  -- defence: changes-of-own-runs
CREATE POLICY own_runs ON madlib_mop.change FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
ALTER TABLE madlib_mop.search_event ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_runs ON madlib_mop.search_event FOR SELECT USING (run_id IN (SELECT r.run_id FROM madlib_mop.run r));
