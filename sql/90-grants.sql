-- Who may do what: nobody anything, until a superuser grants a role the use of the extension.

REVOKE ALL ON SCHEMA madlib, madlib_mop, madlib_mop_internal FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA madlib, madlib_mop, madlib_mop_internal FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA madlib, madlib_mop, madlib_mop_internal FROM PUBLIC;

CREATE FUNCTION madlib_mop.grant_use(role_name name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA madlib, madlib_mop TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA madlib, madlib_mop TO %I', role_name);
    EXECUTE format('REVOKE EXECUTE ON FUNCTION madlib_mop.grant_use(name), madlib_mop.revoke_use(name),'
        ' madlib_mop.add_host(name, integer, text), madlib_mop.remove_host(name, text) FROM %I', role_name);
    EXECUTE format('GRANT SELECT ON madlib_mop.run, madlib_mop.segment, madlib_mop.model, madlib_mop.start_weights, madlib_mop.custom_function,'
        ' madlib_mop.model_state, madlib_mop.visit, madlib_mop.metric, madlib_mop.evaluation, madlib_mop.setting,'
        ' madlib_mop.search_event, madlib_mop.search_history,'
        ' madlib_mop.progress, madlib_mop.leaderboard, madlib_mop.timeline, madlib_mop.hosts TO %I', role_name);
    -- if greenplum
    EXECUTE format('GRANT SELECT ON madlib_mop.segment_key TO %I', role_name);
    -- end
END
$body$;
COMMENT ON FUNCTION madlib_mop.grant_use(name) IS 'Lets a role train, predict and see its own runs';

CREATE FUNCTION madlib_mop.revoke_use(role_name name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA madlib, madlib_mop FROM %I', role_name);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA madlib, madlib_mop FROM %I', role_name);
    EXECUTE format('REVOKE ALL ON SCHEMA madlib, madlib_mop FROM %I', role_name);
END
$body$;
COMMENT ON FUNCTION madlib_mop.revoke_use(name) IS 'Undoes grant_use';

REVOKE ALL ON FUNCTION madlib_mop.grant_use(name), madlib_mop.revoke_use(name) FROM PUBLIC;
