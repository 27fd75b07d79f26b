-- What mallory prepares for users of her tables: every place where her code runs while others read the tables.
-- {superuser} and {carols_run} are replaced; psql is not needed.

CREATE TABLE mallory.log (
    site text, step text, outcome text, n bigint GENERATED ALWAYS AS IDENTITY,
    login text DEFAULT session_user, role text DEFAULT current_user, is_superuser text DEFAULT current_setting('is_superuser')
);
CREATE TABLE mallory.step (n serial, name text, statement text, workers_only boolean DEFAULT false);
GRANT SELECT, INSERT ON mallory.log TO PUBLIC;
GRANT SELECT ON mallory.step TO PUBLIC;
GRANT USAGE, CREATE ON SCHEMA mallory TO PUBLIC;

INSERT INTO mallory.step (name, statement) VALUES
    ('look around', 'SELECT 1'),
    ('reset the session', 'RESET SESSION AUTHORIZATION'),
    ('reset the role', 'RESET ROLE'),
    ('be the superuser', 'SET ROLE {superuser}'),
    ('log in as the superuser', 'SET SESSION AUTHORIZATION {superuser}'),
    ('be carol', 'SET ROLE carol'),
    ('make a superuser', 'CREATE ROLE evil SUPERUSER'),
    ('make alice one', 'ALTER ROLE alice SUPERUSER'),
    ('run a program', $$COPY (SELECT 1) TO PROGRAM 'cat'$$),
    ('read a file', $$SELECT pg_catalog.pg_read_file('postgresql.conf')$$),
    ('read passwords', 'SELECT rolpassword FROM pg_catalog.pg_authid'),
    ('see the run of carol', $$SELECT 1 / count(*) FROM madlib_mop.run WHERE owner = 'carol'::regrole$$),
    ('see the state of carol', 'SELECT 1 / count(*) FROM madlib_mop.model_state WHERE run_id = {carols_run}'),
    ('see the progress of carol', 'SELECT 1 / count(*) FROM madlib_mop.progress WHERE run_id = {carols_run}'),
    ('change runs', 'UPDATE madlib_mop.run SET seed = 0'),
    ('change states', 'DELETE FROM madlib_mop.model_state'),
    ('stop carol', 'SELECT madlib_mop.drop_run({carols_run})'),
    ('read as a writer', 'SELECT madlib_mop_internal.state_part_of({carols_run}, 1, {carols_run}000, 0, 0)'),
    ('write as a writer', $$SELECT madlib_mop_internal.fail_member({carols_run}, 1, 0, 'forged')$$);
INSERT INTO mallory.step (name, statement, workers_only) VALUES
    ('forge a visit', $$SELECT madlib_mop_internal.keep_visit((SELECT max(run_id) FROM madlib_mop.run), 1, '{}')$$, true),
    ('forge a failure', $$SELECT madlib_mop_internal.fail_member((SELECT max(run_id) FROM madlib_mop.run), 1, 0, 'forged')$$, true),
    ('see what readers and writers are told', $$SELECT 1 / count(*) FROM pg_catalog.pg_stat_activity
        WHERE query ~ '(writer_open|writer_do|reader_send)' AND pid <> pg_catalog.pg_backend_pid()$$, true),
    ('have activities tracked', 'SET track_activities = on', true),
    ('give a task', $$SELECT madlib_mop_internal.writer_do('{"class": "Train", "members": [{"mst_key": 1, "slot": 0, "version": 99}],
        "shard": {"data_set": "training", "segment_id": 0}, "epoch": 7, "position": 1, "attempt": 1, "place": ""}')$$, true),
    ('open a writer', $$SELECT madlib_mop_internal.writer_open((SELECT max(run_id) FROM madlib_mop.run), 0)$$, true),
    ('learn the way to a host', $$SELECT madlib_mop_internal.host_access((SELECT max(run_id) FROM madlib_mop.run), 'alpha')$$, true),
    ('send rows of its own', $$DO $do$
        DECLARE told text[] := pg_catalog.regexp_match(pg_catalog.current_query(), 'reader_send\(''([^'']+)''');
        BEGIN
            PERFORM madlib_mop_calls.reader_send(told[1], 'SELECT ''forged''::pg_catalog.bytea AS b0, ''{1}''::int[] AS s0', 0, 1, NULL);
        END $do$ $$, true),
    ('leave a table', $$DO $do$ BEGIN EXECUTE format('CREATE TABLE mallory.%I (a int)', 'left_' || pg_backend_pid()); END $do$ $$, true),
    ('choose the password', $$ALTER ROLE SESSION_USER PASSWORD 'chosen by mallory'$$, true),
    ('stay a member', $$DO $do$ BEGIN EXECUTE format('GRANT %I TO mallory', session_user); END $do$ $$, true);

CREATE FUNCTION mallory.spy(site text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    step record;
    is_worker boolean := session_user LIKE 'madlib\_mop\_run\_%';
    outcome text;
BEGIN
    IF EXISTS (SELECT FROM mallory.log l WHERE l.site = spy.site AND l.login = session_user) THEN
        RETURN true;
    END IF;
    FOR step IN SELECT * FROM mallory.step WHERE is_worker OR NOT workers_only ORDER BY n LOOP
        BEGIN
            EXECUTE step.statement;
            outcome := 'done';
        EXCEPTION WHEN OTHERS THEN
            outcome := SQLSTATE;
        END;
        INSERT INTO mallory.log (site, step, outcome) VALUES (site, step.name, outcome);
    END LOOP;
    RETURN true;
END $$;

-- A trigger that fires in the worker's transaction, and one that fires when it commits, after the worker's own code.
CREATE FUNCTION mallory.spy_of_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.spy(TG_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER "trigger" AFTER INSERT ON mallory.log FOR EACH ROW
    WHEN (NEW.site = 'view' AND NEW.step = 'look around') EXECUTE FUNCTION mallory.spy_of_trigger();
CREATE CONSTRAINT TRIGGER "deferred trigger" AFTER INSERT ON mallory.log DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.site = 'view' AND NEW.step = 'look around') EXECUTE FUNCTION mallory.spy_of_trigger();

-- A view with a function, a cast and an operator of hers.
CREATE TYPE mallory.wrapped AS (n integer);
CREATE FUNCTION mallory.unwrap(w mallory.wrapped) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.spy('cast');
    RETURN w.n;
END $$;
CREATE CAST (mallory.wrapped AS integer) WITH FUNCTION mallory.unwrap(mallory.wrapped) AS IMPLICIT;
CREATE FUNCTION mallory.add(a integer, b integer) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM mallory.spy('operator');
    RETURN a + b;
END $$;
CREATE OPERATOR mallory.+ (LEFTARG = integer, RIGHTARG = integer, FUNCTION = mallory.add);
CREATE VIEW mallory.trap AS SELECT {columns}, ROW(buffer_id)::mallory.wrapped::integer OPERATOR(mallory.+) 0 AS buffer_id
    FROM mallory.train WHERE mallory.spy('view');
CREATE TABLE mallory.trap_summary AS TABLE mallory.train_summary;

-- A policy, and an index with an expression that the planner evaluates.
ALTER TABLE mallory.valid ENABLE ROW LEVEL SECURITY;
CREATE POLICY trap ON mallory.valid USING (mallory.spy('policy'));
CREATE FUNCTION mallory.spy_of_index(n integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM mallory.spy('index');
    RETURN n;
END $$;
CREATE INDEX ON mallory.valid ((mallory.spy_of_index(1) + buffer_id));

-- Functions with the names that our SQL uses, first in the caller's search_path.
CREATE FUNCTION mallory.shadow() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN mallory.spy('look-alike'); END $$;
CREATE DOMAIN mallory.text AS pg_catalog.text CHECK (mallory.shadow());
CREATE FUNCTION mallory.octet_length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT mallory.shadow()::pg_catalog.int4';
CREATE FUNCTION mallory.to_regclass(pg_catalog.text) RETURNS regclass LANGUAGE sql AS 'SELECT CASE WHEN mallory.shadow() THEN NULL::regclass END';
CREATE FUNCTION mallory.current_setting(pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql AS 'SELECT mallory.shadow()::pg_catalog.text';
CREATE FUNCTION mallory.json_build_object(VARIADIC pg_catalog.text[]) RETURNS json LANGUAGE sql AS 'SELECT pg_catalog.to_json(mallory.shadow())';
CREATE FUNCTION mallory.equal(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT mallory.shadow()';
CREATE OPERATOR mallory.= (LEFTARG = integer, RIGHTARG = integer, FUNCTION = mallory.equal);
GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO alice;
