-- Changes of the registry. Users' sessions insert a row into registry_change; this trigger, with the rights of the
-- extension's owner, checks the rights of the role that inserted it, and makes the change in the same transaction.

-- if greenplum
-- There is no registry.
-- else
CREATE FUNCTION madlib_mop_internal.check_model_right(change text, model text, who oid, wanted text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    owner oid := (SELECT r.owner::oid FROM madlib_mop.registered_model r WHERE r.name = model);
    held text[] := coalesce(ARRAY(SELECT g.privilege FROM madlib_mop.model_grant g
                                  WHERE g.name = model AND madlib_mop_calls._acts_for(who, g.role::oid)), '{}');
BEGIN
    -- defence: right-to-change = IF owner IS NOT NULL THEN
    -- defence: right-to-deploy = IF owner IS NOT NULL AND madlib_mop_calls._acts_for(who, owner) OR held <> '{}' THEN
    IF owner IS NOT NULL AND madlib_mop_calls._acts_for(who, owner) OR held && wanted THEN
        RETURN;
    ELSIF change = 'register' THEN
        RAISE EXCEPTION USING ERRCODE = '42501', HINT = 'Choose another name.',
            MESSAGE = format('register: %s is a registered model of another role', model);
    ELSIF owner IS NULL OR held = '{}' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'SELECT name, version FROM madlib_mop.model_version;',
            MESSAGE = format('%s: there is no registered model of this name that you may use. Received: %L', change, model);
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42501',
        MESSAGE = format('%s: role %I may use registered model %s, but not change it', change, pg_get_userbyid(who), model),
        HINT = CASE WHEN 'deploy' = ANY (wanted) THEN format('Its owner, %I, can let it: SELECT madlib_mop.grant_model(%L, %L, ''deploy'');',
                   pg_get_userbyid(owner), model, pg_get_userbyid(who)) ELSE format('Its owner is %I.', pg_get_userbyid(owner)) END;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.check_model_right(text, text, oid, text[]) IS
    'Raises an error unless a role owns a registered model, or has one of these rights on it';

CREATE FUNCTION madlib_mop_internal.usable_version(change text, model text, number integer) RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    found_id uuid := (SELECT v.version_id FROM madlib_mop.model_version v WHERE v.name = model AND v.version = number);
BEGIN
    IF found_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('%s: %s has no version %s', change, model, coalesce(number::text, 'NULL')),
            HINT = format('It has %s.', coalesce((SELECT string_agg(v.version::text, ', ' ORDER BY v.version)
                                                  FROM madlib_mop.model_version v WHERE v.name = model), 'no versions'));
    ELSIF NOT EXISTS (SELECT FROM madlib_mop.version_content c WHERE c.version_id = found_id) THEN
        RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('%s: version %s of %s has no content', change, number, model),
            HINT = 'Register the model again with madlib_mop.register.';
    END IF;
    RETURN found_id;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.usable_version(text, text, integer) IS 'The version of a number; raises an error if it does not exist';

CREATE FUNCTION madlib_mop_internal.add_version(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    d jsonb := change.details;
    figures jsonb := coalesce(d -> 'metrics', '{}');
    origin jsonb := coalesce(d -> 'lineage', '{}');
    number integer;
    new_id uuid;
BEGIN
    -- users can write these by hand, and one version that the view version_lineage cannot show would fail its queries
    IF jsonb_typeof(figures) <> 'object' OR jsonb_typeof(origin) <> 'object' OR jsonb_typeof(coalesce(origin -> 'visits', '[]')) <> 'array' THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'Register a model with madlib_mop.register.',
            MESSAGE = 'register: the metrics and the lineage of a version must be JSON objects, and its visits an array';
    ELSIF origin ? 'visits' THEN  -- defence: details-of-a-version = ELSIF false THEN
        origin := origin || jsonb_build_object('visits', (SELECT coalesce(jsonb_agg(x), '[]') FROM jsonb_to_recordset(origin -> 'visits') AS x (
            mst_key integer, epoch integer, position integer, segment_id integer, ended_at timestamptz, n_rows bigint, rows_digest text,
            digest_in text, digest_out text)));
    END IF;
    UPDATE madlib_mop.registered_model SET last_version = last_version + 1 WHERE name = change.name RETURNING last_version INTO number;
    INSERT INTO madlib_mop.model_version (name, version, registered_by) VALUES (change.name, number, change.changed_by)
    RETURNING version_id INTO new_id;
    INSERT INTO madlib_mop.version_detail (version_id, note, model_table, mst_key, digest, n_bytes, model_arch, run_id, epoch, metrics, lineage, findings)
    VALUES (new_id, d ->> 'note', d ->> 'model_table', (d ->> 'mst_key')::integer, d ->> 'digest', (d ->> 'n_bytes')::bigint,
            d -> 'model_arch', (d ->> 'run_id')::bigint, (d ->> 'epoch')::integer, figures, origin, nullif(d -> 'findings', 'null'));
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.add_version(madlib_mop.registry_change) IS 'Adds a version of a registered model, with the next number';

CREATE FUNCTION madlib_mop_internal.move_alias(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    target uuid := madlib_mop_internal.usable_version(change.change, change.name, change.version);
    old madlib_mop.model_alias;
    new_id bigint;
BEGIN
    SELECT * INTO old FROM madlib_mop.model_alias a WHERE a.name = change.name AND a.alias = change.alias FOR UPDATE;
    IF change.details ? 'current_version' AND old.version IS DISTINCT FROM (change.details ->> 'current_version')::integer THEN
        RAISE EXCEPTION USING ERRCODE = '55000', HINT = 'Call again.',
            MESSAGE = format('deploy: %s@%s changed to version %s while it was compared', change.name, change.alias, coalesce(old.version::text, 'NULL'));
    ELSIF old.version_id = target THEN
        RETURN;
    END IF;
    INSERT INTO madlib_mop.alias_change (name, alias, change, from_version, to_version, previous_id, changed_by, reason, evidence)
    VALUES (change.name, change.alias, change.change, old.version, change.version, old.change_id, change.changed_by, change.reason, change.details)
    RETURNING change_id INTO new_id;
    INSERT INTO madlib_mop.model_alias AS a (name, alias, version_id, version, change_id)
    VALUES (change.name, change.alias, target, change.version, new_id)
    ON CONFLICT (name, alias) DO UPDATE SET version_id = excluded.version_id, version = excluded.version, change_id = excluded.change_id;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.move_alias(madlib_mop.registry_change) IS 'Gives an alias a version; does nothing if it has this version';

CREATE FUNCTION madlib_mop_internal.known_alias(change madlib_mop.registry_change) RETURNS madlib_mop.model_alias
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    known madlib_mop.model_alias;
BEGIN
    SELECT * INTO known FROM madlib_mop.model_alias a WHERE a.name = change.name AND a.alias = change.alias FOR UPDATE;
    IF known.name IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('%s: %s has no alias %L', change.change, change.name, change.alias),
            HINT = format('It has %s.', coalesce((SELECT string_agg(a.alias, ', ' ORDER BY a.alias)
                                                  FROM madlib_mop.model_alias a WHERE a.name = change.name), 'no aliases'));
    END IF;
    RETURN known;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.known_alias(madlib_mop.registry_change) IS 'The alias of a change, locked; raises an error if it does not exist';

CREATE FUNCTION madlib_mop_internal.roll_back(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    old madlib_mop.model_alias := madlib_mop_internal.known_alias(change);
    place bigint := old.change_id;
    earlier bigint;
    number integer;
    target uuid;
BEGIN
    FOR step IN 1 .. change.steps LOOP
        earlier := (SELECT h.previous_id FROM madlib_mop.alias_change h WHERE h.change_id = place);
        IF earlier IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'SELECT * FROM madlib_mop.alias_history; shows the changes.',
                MESSAGE = format('rollback: %s@%s can go back %s steps. Received: %s', change.name, change.alias, step - 1, change.steps);
        END IF;
        place := earlier;
    END LOOP;
    number := (SELECT h.to_version FROM madlib_mop.alias_change h WHERE h.change_id = place);
    target := (SELECT v.version_id FROM madlib_mop.model_version v WHERE v.name = change.name AND v.version = number);
    IF target IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = format('steps => %s goes one step further back.', change.steps + 1),
            MESSAGE = format('rollback: %s step(s) back is version %s of %s, which was dropped', change.steps, number, change.name);
    END IF;
    INSERT INTO madlib_mop.alias_change (name, alias, change, from_version, to_version, back_to_id, changed_by, reason)
    VALUES (change.name, change.alias, 'rollback', old.version, number, place, change.changed_by, change.reason);
    UPDATE madlib_mop.model_alias a SET version_id = target, version = number, change_id = place
    WHERE a.name = change.name AND a.alias = change.alias;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.roll_back(madlib_mop.registry_change) IS
    'Returns an alias to an earlier version: it walks from the change on which the alias stands, so two rollbacks go back twice';

CREATE FUNCTION madlib_mop_internal.drop_alias(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    old madlib_mop.model_alias := madlib_mop_internal.known_alias(change);
BEGIN
    DELETE FROM madlib_mop.model_challenger c WHERE c.name = change.name AND c.alias = change.alias;
    DELETE FROM madlib_mop.model_alias a WHERE a.name = change.name AND a.alias = change.alias;
    INSERT INTO madlib_mop.alias_change (name, alias, change, from_version, changed_by, reason)
    VALUES (change.name, change.alias, 'drop_alias', old.version, change.changed_by, change.reason);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.drop_alias(madlib_mop.registry_change) IS 'Drops an alias and its challenger; its history stays';

CREATE FUNCTION madlib_mop_internal.change_challenger(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    champion madlib_mop.model_alias := madlib_mop_internal.known_alias(change);
    target uuid;
BEGIN
    DELETE FROM madlib_mop.model_challenger c WHERE c.name = change.name AND c.alias = change.alias;
    IF change.change = 'drop_challenger' THEN
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('drop_challenger: %s@%s has no challenger', change.name, change.alias);
        END IF;
        RETURN;
    END IF;
    target := madlib_mop_internal.usable_version(change.change, change.name, change.version);
    IF champion.version_id = target THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'Name another version.',
            MESSAGE = format('set_challenger: version %s is the version of %s@%s itself', change.version, change.name, change.alias);
    END IF;
    INSERT INTO madlib_mop.model_challenger (name, alias, version_id, version, share, max_rows, set_by)
    VALUES (change.name, change.alias, target, change.version, (change.details ->> 'share')::double precision,
            (change.details ->> 'max_rows')::bigint, change.changed_by);
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.change_challenger(madlib_mop.registry_change) IS 'Sets or drops the challenger of an alias';

CREATE FUNCTION madlib_mop_internal.drop_version(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    aliases text := (SELECT string_agg(a.alias, ', ' ORDER BY a.alias) FROM madlib_mop.model_alias a
                     WHERE a.name = change.name AND a.version = change.version);
    challenged text := (SELECT string_agg(c.alias, ', ' ORDER BY c.alias) FROM madlib_mop.model_challenger c
                        WHERE c.name = change.name AND c.version = change.version);
BEGIN
    IF aliases IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '2BP01', HINT = 'Give the alias another version with madlib_mop.set_alias, or drop it with madlib_mop.drop_alias.',
            MESSAGE = format('drop_version: version %s of %s has the alias %s', change.version, change.name, aliases);
    ELSIF challenged IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '2BP01', HINT = 'End that with madlib_mop.drop_challenger.',
            MESSAGE = format('drop_version: version %s of %s is the challenger of %s', change.version, change.name, challenged);
    END IF;
    DELETE FROM madlib_mop.model_version v WHERE v.name = change.name AND v.version = change.version;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = '22023', HINT = 'SELECT name, version FROM madlib_mop.registry;',
            MESSAGE = format('drop_version: %s has no version %s', change.name, coalesce(change.version::text, 'NULL'));
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.drop_version(madlib_mop.registry_change) IS 'Drops a version that has no alias and challenges none';

CREATE FUNCTION madlib_mop_internal.drop_registered(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    aliases text := (SELECT string_agg(a.alias, ', ' ORDER BY a.alias) FROM madlib_mop.model_alias a WHERE a.name = change.name);
BEGIN
    IF aliases IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '2BP01', HINT = 'Drop each alias first, with madlib_mop.drop_alias.',
            MESSAGE = format('drop_registered: %s has the aliases %s', change.name, aliases);
    END IF;
    DELETE FROM madlib_mop.registered_model r WHERE r.name = change.name;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.drop_registered(madlib_mop.registry_change) IS
    'Drops a registered model without aliases: its versions, its history and the rights on it';

CREATE FUNCTION madlib_mop_internal.change_grant(change madlib_mop.registry_change) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    taker oid := (SELECT u.oid FROM pg_roles u WHERE u.rolname = change.details ->> 'role');
BEGIN
    IF change.change = 'grant_model' THEN
        INSERT INTO madlib_mop.model_grant (name, owner, role, privilege)
        SELECT r.name, r.owner, taker::regrole, change.details ->> 'privilege' FROM madlib_mop.registered_model r WHERE r.name = change.name
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM madlib_mop.model_grant g
        WHERE g.name = change.name AND (g.role::oid NOT IN (SELECT u.oid FROM pg_roles u)
                                        OR g.role::oid = taker AND g.privilege = change.details ->> 'privilege');
    END IF;
END
$body$;
COMMENT ON FUNCTION madlib_mop_internal.change_grant(madlib_mop.registry_change) IS 'Grants or revokes one right on a registered model';

CREATE FUNCTION madlib_mop_calls._change_registry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    who oid := (SELECT u.oid FROM pg_roles u WHERE u.rolname = NEW.changed_by);
    wanted text[] := CASE WHEN NEW.change IN ('set_alias', 'deploy', 'rollback', 'drop_alias', 'set_challenger', 'drop_challenger')
                          THEN '{deploy}' ELSE '{}' END;
BEGIN
    PERFORM madlib_mop_calls._at_coordinator(NEW.change);
    -- one change of a model at a time: an alias that two sessions create has no row yet that could be locked
    LOOP
        IF NEW.change = 'register' THEN
            INSERT INTO madlib_mop.registered_model (name, owner) VALUES (NEW.name, who::regrole) ON CONFLICT DO NOTHING;
        END IF;
        PERFORM madlib_mop_internal.check_model_right(NEW.change, NEW.name, who, wanted);
        IF NEW.change = 'drop_registered' THEN
            PERFORM FROM madlib_mop.registered_model r WHERE r.name = NEW.name FOR UPDATE;
        ELSE
            PERFORM FROM madlib_mop.registered_model r WHERE r.name = NEW.name FOR NO KEY UPDATE;
        END IF;
        EXIT WHEN FOUND; -- else another session has just dropped it
    END LOOP;
    -- before it was locked, it could be dropped, and registered by another role
    PERFORM madlib_mop_internal.check_model_right(NEW.change, NEW.name, who, wanted);
    CASE NEW.change
        WHEN 'register' THEN PERFORM madlib_mop_internal.add_version(NEW);
        WHEN 'set_alias', 'deploy' THEN PERFORM madlib_mop_internal.move_alias(NEW);
        WHEN 'rollback' THEN PERFORM madlib_mop_internal.roll_back(NEW);
        WHEN 'drop_alias' THEN PERFORM madlib_mop_internal.drop_alias(NEW);
        WHEN 'set_challenger', 'drop_challenger' THEN PERFORM madlib_mop_internal.change_challenger(NEW);
        WHEN 'drop_version' THEN PERFORM madlib_mop_internal.drop_version(NEW);
        WHEN 'drop_registered' THEN PERFORM madlib_mop_internal.drop_registered(NEW);
        ELSE PERFORM madlib_mop_internal.change_grant(NEW);
    END CASE;
    DELETE FROM madlib_mop.registry_change c WHERE c.name = NEW.name AND c.changed_by = NEW.changed_by;
    RETURN NULL;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._change_registry() IS 'Makes a change of the registry for the role that inserted it, if the role has the right';

-- after the insert: only then has the policy accepted the row
CREATE TRIGGER make AFTER INSERT ON madlib_mop.registry_change
FOR EACH ROW EXECUTE FUNCTION madlib_mop_calls._change_registry();

CREATE FUNCTION madlib_mop_calls._change_recording() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    who oid := (SELECT u.oid FROM pg_roles u WHERE u.rolname = NEW.role);
BEGIN
    PERFORM madlib_mop_calls._at_coordinator(CASE WHEN NEW.agrees THEN 'allow_recording' ELSE 'forbid_recording' END);
    IF NEW.agrees THEN
        PERFORM madlib_mop_internal.check_model_right('allow_recording', NEW.name, who, '{predict, see, deploy, export}');
        INSERT INTO madlib_mop.recording_consent (name, role) VALUES (NEW.name, who::regrole) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM madlib_mop.recording_consent c
        WHERE c.name = NEW.name AND (c.role::oid = who OR c.role::oid NOT IN (SELECT u.oid FROM pg_roles u));
    END IF;
    DELETE FROM madlib_mop.recording_change c WHERE c.name = NEW.name AND c.role = NEW.role;
    RETURN NULL;
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls._change_recording() IS 'Applies a change of recording_consent for the role that inserted it, if the role may use the model';

CREATE TRIGGER make AFTER INSERT ON madlib_mop.recording_change
FOR EACH ROW EXECUTE FUNCTION madlib_mop_calls._change_recording();
-- end
