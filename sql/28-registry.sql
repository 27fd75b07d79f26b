-- The registry: names of models, their versions with all that predicts, aliases with their history, and rights for each
-- name. Users' sessions only insert: into registry_change, whose trigger checks and makes each change, and the content
-- of a version of their own (madlib_mop/driver/registry/). So no role can lock these tables or change a version.

-- if greenplum
-- Policies cannot be used there.
-- else
CREATE TABLE madlib_mop.registered_model (
    name          text PRIMARY KEY CHECK (name ~ '^[a-z0-9_][a-z0-9_.-]{0,62}$'),
    owner         regrole NOT NULL,
    last_version  integer NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE madlib_mop.registered_model IS 'One name of a registered model, and the role that owns it';
COMMENT ON COLUMN madlib_mop.registered_model.name IS 'The name, in lower case';
COMMENT ON COLUMN madlib_mop.registered_model.owner IS 'The role that registered its first version, stored as its oid';
COMMENT ON COLUMN madlib_mop.registered_model.last_version IS 'The number of its newest version; numbers of dropped versions are not used again';
COMMENT ON COLUMN madlib_mop.registered_model.created_at IS 'When its first version was registered';

-- The owner is here too, so that the policies of this table read no other one.
CREATE TABLE madlib_mop.model_grant (
    name       text NOT NULL REFERENCES madlib_mop.registered_model ON DELETE CASCADE,
    owner      regrole NOT NULL,
    role       regrole NOT NULL,
    privilege  text NOT NULL CHECK (privilege IN ('predict', 'see', 'deploy', 'export')),
    PRIMARY KEY (name, role, privilege)
);
COMMENT ON TABLE madlib_mop.model_grant IS 'One right of a role on a registered model: written by grant_model and revoke_model';
COMMENT ON COLUMN madlib_mop.model_grant.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.model_grant.owner IS 'The owner of the registered model';
COMMENT ON COLUMN madlib_mop.model_grant.role IS 'The role that has the right';
COMMENT ON COLUMN madlib_mop.model_grant.privilege IS 'predict; see: descriptions, metrics, lineage and history; deploy: both, and changes of aliases; export: files of the model and its card';

CREATE TABLE madlib_mop.model_version (
    version_id     uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
    name           text NOT NULL REFERENCES madlib_mop.registered_model ON DELETE CASCADE,
    version        integer NOT NULL CHECK (version > 0),
    registered_by  name NOT NULL,
    registered_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    UNIQUE (name, version)
);
COMMENT ON TABLE madlib_mop.model_version IS 'One version of a registered model';
COMMENT ON COLUMN madlib_mop.model_version.version_id IS 'Identifies the version everywhere and for ever; sessions cache models by it';
COMMENT ON COLUMN madlib_mop.model_version.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.model_version.version IS 'Its number, from 1';
COMMENT ON COLUMN madlib_mop.model_version.registered_by IS 'The role that registered it';
COMMENT ON COLUMN madlib_mop.model_version.registered_at IS 'When it was registered';

CREATE TABLE madlib_mop.version_detail (
    version_id   uuid PRIMARY KEY REFERENCES madlib_mop.model_version ON DELETE CASCADE,
    note         text,
    model_table  text,
    mst_key      integer,
    digest       text NOT NULL,
    n_bytes      bigint NOT NULL,
    model_arch   jsonb NOT NULL,
    run_id       bigint,
    epoch        integer,
    metrics      jsonb NOT NULL DEFAULT '{}',
    lineage      jsonb NOT NULL DEFAULT '{}',
    findings     jsonb
);
COMMENT ON TABLE madlib_mop.version_detail IS 'What roles with the right to see a registered model know of a version';
COMMENT ON COLUMN madlib_mop.version_detail.version_id IS 'The version';
COMMENT ON COLUMN madlib_mop.version_detail.note IS 'The note given to register()';
COMMENT ON COLUMN madlib_mop.version_detail.model_table IS 'The output table that it was copied from; NULL: it was imported from a file';
COMMENT ON COLUMN madlib_mop.version_detail.mst_key IS 'Its key there; NULL for a table with a single model';
COMMENT ON COLUMN madlib_mop.version_detail.digest IS 'SHA-256 of its weights';
COMMENT ON COLUMN madlib_mop.version_detail.n_bytes IS 'Size of its weights';
COMMENT ON COLUMN madlib_mop.version_detail.model_arch IS 'Its architecture, as Keras writes it';
COMMENT ON COLUMN madlib_mop.version_detail.run_id IS 'The run that trained these weights, if the record had it; drop_run may have dropped it since';
COMMENT ON COLUMN madlib_mop.version_detail.epoch IS 'The epoch of the weights in that run';
COMMENT ON COLUMN madlib_mop.version_detail.metrics IS 'Its newest metrics in that run, by data set and name';
COMMENT ON COLUMN madlib_mop.version_detail.lineage IS 'Copied from the record of the run: its tables, seed, visits, and shards with the SHA-256 of their rows; or what is known of an imported file';
COMMENT ON COLUMN madlib_mop.version_detail.findings IS 'What register found for reports: confusion matrix, curves and reliability of the held-out rows, importance of columns and partial dependence; NULL: nothing';

CREATE TABLE madlib_mop.version_content (
    version_id  uuid PRIMARY KEY REFERENCES madlib_mop.model_version ON DELETE CASCADE,
    document    text NOT NULL,
    weights     bytea
);
ALTER TABLE madlib_mop.version_content ALTER COLUMN weights SET STORAGE EXTERNAL;
COMMENT ON TABLE madlib_mop.version_content IS 'What predicts: the weights of a version, and everything else that a prediction needs';
COMMENT ON COLUMN madlib_mop.version_content.version_id IS 'The version';
COMMENT ON COLUMN madlib_mop.version_content.document IS 'JSON: architecture, parameters, outputs with their classes, normalizing constant, preprocessor';
COMMENT ON COLUMN madlib_mop.version_content.weights IS 'Float32, in get_weights() order; NULL: in version_part';

CREATE TABLE madlib_mop.version_part (
    version_id  uuid NOT NULL REFERENCES madlib_mop.version_content ON DELETE CASCADE,
    part        integer NOT NULL,
    data        bytea NOT NULL,
    PRIMARY KEY (version_id, part)
);
ALTER TABLE madlib_mop.version_part ALTER COLUMN data SET STORAGE EXTERNAL;
COMMENT ON TABLE madlib_mop.version_part IS 'One part of the weights of a version, if they do not fit into a field';
COMMENT ON COLUMN madlib_mop.version_part.version_id IS 'The version';
COMMENT ON COLUMN madlib_mop.version_part.part IS 'Its number, from 0';
COMMENT ON COLUMN madlib_mop.version_part.data IS 'Float32, in get_weights() order; the parts one after the other';

CREATE TABLE madlib_mop.alias_change (
    change_id     bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name          text NOT NULL REFERENCES madlib_mop.registered_model ON DELETE CASCADE,
    alias         text NOT NULL,
    change        text NOT NULL CHECK (change IN ('set_alias', 'deploy', 'rollback', 'drop_alias')),
    from_version  integer,
    to_version    integer,
    previous_id   bigint,
    back_to_id    bigint,
    changed_by    name NOT NULL,
    changed_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    reason        text,
    evidence      jsonb
);
CREATE INDEX alias_change_of_alias ON madlib_mop.alias_change (name, alias, change_id);
COMMENT ON TABLE madlib_mop.alias_change IS 'One change of an alias: who, when, why, from which version to which';
COMMENT ON COLUMN madlib_mop.alias_change.change_id IS 'The number of the change, unique in the database';
COMMENT ON COLUMN madlib_mop.alias_change.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.alias_change.alias IS 'The alias';
COMMENT ON COLUMN madlib_mop.alias_change.change IS 'set_alias, deploy, rollback or drop_alias';
COMMENT ON COLUMN madlib_mop.alias_change.from_version IS 'The version before; NULL: the alias was new';
COMMENT ON COLUMN madlib_mop.alias_change.to_version IS 'The version after; NULL: the alias was dropped';
COMMENT ON COLUMN madlib_mop.alias_change.previous_id IS 'For set_alias and deploy: the change that a rollback from here returns to; NULL: none';
COMMENT ON COLUMN madlib_mop.alias_change.back_to_id IS 'For a rollback: the change that it returned to';
COMMENT ON COLUMN madlib_mop.alias_change.changed_by IS 'The role that made it';
COMMENT ON COLUMN madlib_mop.alias_change.changed_at IS 'When it was made';
COMMENT ON COLUMN madlib_mop.alias_change.reason IS 'The reason given';
COMMENT ON COLUMN madlib_mop.alias_change.evidence IS 'For a deploy with conditions: metric, table, and the values that were compared';

-- A version with an alias cannot be dropped: the foreign key to it has no action.
CREATE TABLE madlib_mop.model_alias (
    name        text NOT NULL REFERENCES madlib_mop.registered_model,
    alias       text NOT NULL CHECK (alias ~ '^[a-z_][a-z0-9_.-]{0,62}$'),
    version_id  uuid NOT NULL REFERENCES madlib_mop.model_version,  -- defence: aliased-versions = version_id uuid NOT NULL,
    version     integer NOT NULL,
    change_id   bigint NOT NULL,
    PRIMARY KEY (name, alias)
);
COMMENT ON TABLE madlib_mop.model_alias IS 'One alias of a registered model, such as champion; a change of its version is the update of one row';
COMMENT ON COLUMN madlib_mop.model_alias.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.model_alias.alias IS 'The alias, in lower case';
COMMENT ON COLUMN madlib_mop.model_alias.version_id IS 'The version that it stands for';
COMMENT ON COLUMN madlib_mop.model_alias.version IS 'The number of this version';
COMMENT ON COLUMN madlib_mop.model_alias.change_id IS 'The change that gave it this version; a rollback begins here';

CREATE TABLE madlib_mop.model_challenger (
    name           text NOT NULL,
    alias          text NOT NULL,
    challenger_id  bigint GENERATED BY DEFAULT AS IDENTITY UNIQUE,
    version_id     uuid NOT NULL REFERENCES madlib_mop.model_version,
    version        integer NOT NULL,
    share          double precision NOT NULL CHECK (share > 0 AND share <= 1),
    max_rows       bigint NOT NULL CHECK (max_rows > 0),
    set_by         name NOT NULL,
    set_at         timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (name, alias),
    FOREIGN KEY (name, alias) REFERENCES madlib_mop.model_alias
);
COMMENT ON TABLE madlib_mop.model_challenger IS 'A version that predicts beside the version of an alias, for a share of the rows';
COMMENT ON COLUMN madlib_mop.model_challenger.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.model_challenger.alias IS 'The alias';
COMMENT ON COLUMN madlib_mop.model_challenger.challenger_id IS 'Its number; a challenger that is set again gets a new one';
COMMENT ON COLUMN madlib_mop.model_challenger.version_id IS 'The challenger';
COMMENT ON COLUMN madlib_mop.model_challenger.version IS 'The number of this version';
COMMENT ON COLUMN madlib_mop.model_challenger.share IS 'The share of calls that it predicts too';
COMMENT ON COLUMN madlib_mop.model_challenger.max_rows IS 'About so many rows are recorded';
COMMENT ON COLUMN madlib_mop.model_challenger.set_by IS 'The role that set it';
COMMENT ON COLUMN madlib_mop.model_challenger.set_at IS 'When it was set';

CREATE TABLE madlib_mop.challenger_batch (
    batch_id            bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name                text NOT NULL REFERENCES madlib_mop.registered_model ON DELETE CASCADE,
    alias               text NOT NULL,
    challenger_id       bigint NOT NULL,
    version             integer NOT NULL,
    challenger_version  integer NOT NULL,
    n_rows              integer NOT NULL,
    outputs             double precision[] NOT NULL,
    challenger_outputs  double precision[] NOT NULL,
    at                  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX challenger_batch_of ON madlib_mop.challenger_batch (challenger_id);
COMMENT ON TABLE madlib_mop.challenger_batch IS 'Predictions of an alias and of its challenger for the same rows: the outputs of both, without the inputs';
COMMENT ON COLUMN madlib_mop.challenger_batch.batch_id IS 'The number of the batch';
COMMENT ON COLUMN madlib_mop.challenger_batch.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.challenger_batch.alias IS 'The alias';
COMMENT ON COLUMN madlib_mop.challenger_batch.challenger_id IS 'The challenger';
COMMENT ON COLUMN madlib_mop.challenger_batch.version IS 'The version that answered';
COMMENT ON COLUMN madlib_mop.challenger_batch.challenger_version IS 'The version of the challenger';
COMMENT ON COLUMN madlib_mop.challenger_batch.n_rows IS 'Number of rows';
COMMENT ON COLUMN madlib_mop.challenger_batch.outputs IS 'The outputs that were returned, one array for each row';
COMMENT ON COLUMN madlib_mop.challenger_batch.challenger_outputs IS 'The outputs of the challenger, in the same order';
COMMENT ON COLUMN madlib_mop.challenger_batch.at IS 'When they were recorded';

-- A network can return its inputs, and the outputs of a challenger are recorded for the model's owner.
CREATE TABLE madlib_mop.recording_consent (
    name  text NOT NULL REFERENCES madlib_mop.registered_model ON DELETE CASCADE,
    role  regrole NOT NULL,
    PRIMARY KEY (name, role)
);
COMMENT ON TABLE madlib_mop.recording_consent IS 'Roles whose predictions with a model are recorded for its challengers; those of its owner always are';
COMMENT ON COLUMN madlib_mop.recording_consent.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.recording_consent.role IS 'The role that predicts, and has agreed';

-- A role with DELETE on a table can lock it, and so block all predictions. So users can only insert, into this table.
CREATE TABLE madlib_mop.recording_change (
    name    text NOT NULL,
    agrees  boolean NOT NULL,
    role    name NOT NULL DEFAULT current_user
);
ALTER TABLE madlib_mop.recording_change REPLICA IDENTITY FULL; -- a publication can include it
COMMENT ON TABLE madlib_mop.recording_change IS 'One change of recording_consent by allow_recording or forbid_recording; a trigger applies it and deletes this row';
COMMENT ON COLUMN madlib_mop.recording_change.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.recording_change.agrees IS 'Whether the role agrees from now on';
COMMENT ON COLUMN madlib_mop.recording_change.role IS 'The role that makes it';

CREATE TABLE madlib_mop.registry_change (
    change      text NOT NULL CHECK (change IN ('register', 'set_alias', 'deploy', 'rollback', 'drop_alias', 'set_challenger',
                    'drop_challenger', 'drop_version', 'drop_registered', 'grant_model', 'revoke_model')),
    name        text NOT NULL,
    alias       text,
    version     integer,
    steps       integer,
    reason      text,
    details     jsonb,
    changed_by  name NOT NULL DEFAULT current_user
);
ALTER TABLE madlib_mop.registry_change REPLICA IDENTITY FULL; -- a publication can include it
COMMENT ON TABLE madlib_mop.registry_change IS 'One change of the registry; a trigger checks the rights of the role, makes the change and deletes this row';
COMMENT ON COLUMN madlib_mop.registry_change.change IS 'The function that makes the change';
COMMENT ON COLUMN madlib_mop.registry_change.name IS 'The registered model';
COMMENT ON COLUMN madlib_mop.registry_change.alias IS 'The alias';
COMMENT ON COLUMN madlib_mop.registry_change.version IS 'The number of the version';
COMMENT ON COLUMN madlib_mop.registry_change.steps IS 'Number of steps of a rollback';
COMMENT ON COLUMN madlib_mop.registry_change.reason IS 'The reason given';
COMMENT ON COLUMN madlib_mop.registry_change.details IS 'Everything else: of a new version, of a condition, of a grant';
COMMENT ON COLUMN madlib_mop.registry_change.changed_by IS 'The role that makes it';

-- Rights. As acts_as, for any role: a trigger with the rights of the extension's owner asks for the role that inserted.
CREATE FUNCTION madlib_mop_calls._acts_for(who oid, role oid) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT pg_has_role(who, role, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
$body$;
COMMENT ON FUNCTION madlib_mop_calls._acts_for(oid, oid) IS 'Whether a role is another one, or a member that inherits its rights or can SET ROLE to it';

CREATE FUNCTION madlib_mop_calls._model_right(owner regrole, name text, wanted text[]) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls._acts_for(u.oid, owner::oid)
        OR EXISTS (SELECT FROM madlib_mop.model_grant g
                   WHERE g.name = _model_right.name AND g.privilege = ANY (wanted) AND madlib_mop_calls._acts_for(u.oid, g.role::oid))
    FROM pg_roles u WHERE u.rolname = current_user
$body$;
COMMENT ON FUNCTION madlib_mop_calls._model_right(regrole, text, text[]) IS 'Whether the current user owns a registered model, or has one of these rights on it';

-- These two policies are evaluated for each statement that predicts, so they call no function of SQL.
ALTER TABLE madlib_mop.model_grant ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.model_grant FOR SELECT
    USING (pg_has_role(owner::oid, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
           OR pg_has_role(role::oid, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END));
ALTER TABLE madlib_mop.registered_model ENABLE ROW LEVEL SECURITY;  -- defence: names-of-models
CREATE POLICY use ON madlib_mop.registered_model FOR SELECT
    USING (pg_has_role(owner::oid, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
           OR EXISTS (SELECT FROM madlib_mop.model_grant g WHERE g.name = registered_model.name
                      AND pg_has_role(g.role::oid, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)));
ALTER TABLE madlib_mop.model_version ENABLE ROW LEVEL SECURITY;
CREATE POLICY use ON madlib_mop.model_version FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.registered_model r WHERE r.name = model_version.name));
ALTER TABLE madlib_mop.model_alias ENABLE ROW LEVEL SECURITY;
CREATE POLICY use ON madlib_mop.model_alias FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.registered_model r WHERE r.name = model_alias.name));
ALTER TABLE madlib_mop.model_challenger ENABLE ROW LEVEL SECURITY;
CREATE POLICY use ON madlib_mop.model_challenger FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.registered_model r WHERE r.name = model_challenger.name));
ALTER TABLE madlib_mop.version_detail ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.version_detail FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.model_version v JOIN madlib_mop.registered_model r ON r.name = v.name
                   WHERE v.version_id = version_detail.version_id
                         AND madlib_mop_calls._model_right(r.owner, r.name, '{see, deploy}')));
ALTER TABLE madlib_mop.alias_change ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.alias_change FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.registered_model r WHERE r.name = alias_change.name
                   AND madlib_mop_calls._model_right(r.owner, r.name, '{see, deploy}')));  -- defence: history-of-aliases = ));
ALTER TABLE madlib_mop.challenger_batch ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.challenger_batch FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.registered_model r WHERE r.name = challenger_batch.name
                   AND madlib_mop_calls._model_right(r.owner, r.name, '{see, deploy}')));
ALTER TABLE madlib_mop.recording_consent ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON madlib_mop.recording_consent FOR SELECT
    USING (pg_has_role(role::oid, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)
           OR EXISTS (SELECT FROM madlib_mop.registered_model r WHERE r.name = recording_consent.name
                      AND pg_has_role(r.owner::oid, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END)));
ALTER TABLE madlib_mop.recording_change ENABLE ROW LEVEL SECURITY;
CREATE POLICY make ON madlib_mop.recording_change FOR INSERT WITH CHECK (role = current_user);
ALTER TABLE madlib_mop.version_content ENABLE ROW LEVEL SECURITY;  -- defence: weights-of-owners
CREATE POLICY own ON madlib_mop.version_content FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.model_version v JOIN madlib_mop.registered_model r ON r.name = v.name
                   WHERE v.version_id = version_content.version_id AND madlib_mop_calls._model_right(r.owner, r.name, '{}')));
CREATE POLICY add ON madlib_mop.version_content FOR INSERT
    WITH CHECK (EXISTS (  -- defence: content-of-owners = WITH CHECK (true OR EXISTS (
                        SELECT FROM madlib_mop.model_version v JOIN madlib_mop.registered_model r ON r.name = v.name
                        WHERE v.version_id = version_content.version_id AND madlib_mop_calls._model_right(r.owner, r.name, '{}')));
ALTER TABLE madlib_mop.version_part ENABLE ROW LEVEL SECURITY;  -- defence: parts-of-owners
CREATE POLICY own ON madlib_mop.version_part FOR SELECT
    USING (EXISTS (SELECT FROM madlib_mop.version_content c WHERE c.version_id = version_part.version_id));
CREATE POLICY add ON madlib_mop.version_part FOR INSERT
    WITH CHECK (EXISTS (  -- defence: parts-by-owners = WITH CHECK (true OR EXISTS (
                        SELECT FROM madlib_mop.version_content c WHERE c.version_id = version_part.version_id AND c.weights IS NULL));
ALTER TABLE madlib_mop.registry_change ENABLE ROW LEVEL SECURITY;
CREATE POLICY make ON madlib_mop.registry_change FOR INSERT WITH CHECK (changed_by = current_user);

-- A dump contains role names; for a dropped role it would contain an oid, which may belong to another role elsewhere.
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.registered_model', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.model_grant',
    'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles) AND role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.model_version',
    'WHERE name IN (SELECT name FROM madlib_mop.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.version_detail',
    'WHERE version_id IN (SELECT version_id FROM madlib_mop.model_version JOIN madlib_mop.registered_model USING (name)'
    ' WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.version_content',
    'WHERE version_id IN (SELECT version_id FROM madlib_mop.model_version JOIN madlib_mop.registered_model USING (name)'
    ' WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.version_part',
    'WHERE version_id IN (SELECT version_id FROM madlib_mop.model_version JOIN madlib_mop.registered_model USING (name)'
    ' WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.alias_change',
    'WHERE name IN (SELECT name FROM madlib_mop.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.model_alias',
    'WHERE name IN (SELECT name FROM madlib_mop.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.model_challenger',
    'WHERE name IN (SELECT name FROM madlib_mop.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.challenger_batch',
    'WHERE name IN (SELECT name FROM madlib_mop.registered_model WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.recording_consent',
    'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles) AND name IN (SELECT name FROM madlib_mop.registered_model'
    ' WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.alias_change_change_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.model_challenger_challenger_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.challenger_batch_batch_id_seq', '');
-- end
