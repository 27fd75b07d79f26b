-- Jobs: calls that run without their caller. submit() writes a job in the caller's transaction; a worker (madlib-mop work)
-- runs it in a session with the rights of the job's owner (madlib_mop/jobs/).

-- if greenplum
-- Policies cannot be used there, and users' sessions write these tables: there are no jobs.
CREATE VIEW madlib_mop.job AS
SELECT NULL::bigint AS job_id, NULL::text AS name, NULL::text AS function, NULL::name AS owner,
       NULL::text AS state, NULL::bigint AS queue_position, NULL::text AS waits_for, NULL::bigint AS run_id,
       NULL::integer AS priority, NULL::timestamptz AS submitted_at, NULL::timestamptz AS due_at,
       NULL::text AS every, NULL::bigint AS after, NULL::text AS if_running, NULL::interval AS time_limit,
       NULL::bigint AS series_id, NULL::timestamptz AS started_at, NULL::timestamptz AS ended_at,
       NULL::integer AS attempt, NULL::text AS statement, NULL::text AS error
WHERE madlib_mop_calls._absent('madlib_mop.job') OFFSET 0;
COMMENT ON VIEW madlib_mop.job IS 'Raises an error that says that this view is not on this server';
-- else
CREATE FUNCTION madlib_mop_calls.seen_owners(own boolean) RETURNS oid[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce(array_agg(r.oid), '{}') FROM pg_roles r
    WHERE CASE WHEN own THEN madlib_mop_calls.may_own(r.oid::regrole) ELSE madlib_mop_calls.may_see(r.oid::regrole) END
$body$;
COMMENT ON FUNCTION madlib_mop_calls.seen_owners(boolean) IS 'The roles whose jobs the current user may see (may_see), or has as an owner (may_own): one list for a query, because some roles have very many jobs';

CREATE TABLE madlib_mop.job_worker (
    pid            integer NOT NULL,
    session_start  timestamptz NOT NULL,
    slots          integer NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pid, session_start)
);
COMMENT ON TABLE madlib_mop.job_worker IS 'One process that runs jobs (madlib-mop work), by its catalog session';
COMMENT ON COLUMN madlib_mop.job_worker.slots IS 'Number of jobs that it runs at once';
ALTER TABLE madlib_mop.job_worker ENABLE ROW LEVEL SECURITY;

-- Apart from job_record, because roles with read access (grant_read) see that one.
CREATE TABLE madlib_mop.job_statement (
    statement_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner         regrole NOT NULL DEFAULT pg_catalog.quote_ident(current_user)::pg_catalog.regrole,
    statement     text NOT NULL CHECK (statement <> ''),
    arguments     jsonb,
    settings      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(settings) = 'object')
);
COMMENT ON TABLE madlib_mop.job_statement IS 'The statement of a job and its repetitions; its owner and members of the owner''s role see it';
COMMENT ON COLUMN madlib_mop.job_statement.arguments IS 'The arguments as given to submit(); statement has them too';
COMMENT ON COLUMN madlib_mop.job_statement.settings IS 'Settings of the submitting session that the job''s session gets';
ALTER TABLE madlib_mop.job_statement ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_jobs ON madlib_mop.job_statement FOR SELECT
    -- defence: statement-of-a-job = USING (true);
    USING (owner::oid = ANY ((SELECT madlib_mop_calls.seen_owners(true))::oid[]));
CREATE POLICY submit ON madlib_mop.job_statement FOR INSERT WITH CHECK (owner = quote_ident(current_user)::regrole);

CREATE TABLE madlib_mop.job_record (
    job_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    series_id     bigint,
    name          text CHECK (name <> '' AND length(name) <= 200),
    function      text CHECK (length(function) <= 200),
    statement_id  bigint NOT NULL,
    owner         regrole NOT NULL DEFAULT pg_catalog.quote_ident(current_user)::pg_catalog.regrole,
    submitted_by  regrole NOT NULL,
    as_superuser  boolean NOT NULL DEFAULT false,
    priority      integer NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    submitted_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    due_at        timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp() CHECK (due_at BETWEEN '2000-01-01' AND '3000-01-01'),
    every         text CHECK (length(every) <= 200),
    series_start  timestamptz,
    after         bigint,
    if_running    text NOT NULL DEFAULT 'skip' CHECK (if_running IN ('skip', 'queue', 'error')),
    time_limit    interval CHECK (time_limit BETWEEN '1 second' AND '20 days'),
    state         text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'finished', 'failed', 'cancelled', 'skipped')),
    detail        text,
    attempt       integer NOT NULL DEFAULT 0,
    run_id        bigint,
    started_at    timestamptz,
    ended_at      timestamptz,
    cancelled_by  name,
    worker_pid    integer,
    worker_start  timestamptz,
    session_pid   integer,
    login_role    name
);
COMMENT ON TABLE madlib_mop.job_record IS 'One job: what it runs, as whom, when, and what became of it; view madlib_mop.job shows it';
COMMENT ON COLUMN madlib_mop.job_record.series_id IS 'For a repeated job: the job_id that submit() returned; each repetition is a row';
COMMENT ON COLUMN madlib_mop.job_record.function IS 'The function of the library that it calls; NULL: any statement';
COMMENT ON COLUMN madlib_mop.job_record.statement_id IS 'Its statement: a row of job_statement';
COMMENT ON COLUMN madlib_mop.job_record.owner IS 'The role that it runs as, stored as its oid';
COMMENT ON COLUMN madlib_mop.job_record.submitted_by IS 'The role that had logged in; it must still be able to act as the owner when the job starts';
COMMENT ON COLUMN madlib_mop.job_record.as_superuser IS 'Whether the owner was a superuser then';
COMMENT ON COLUMN madlib_mop.job_record.every IS 'When it is repeated: an interval or a cron expression';
COMMENT ON COLUMN madlib_mop.job_record.series_start IS 'For a repeated job: the due time from which its intervals are counted; NULL: due_at';
COMMENT ON COLUMN madlib_mop.job_record.state IS 'waiting -> running -> finished, failed or cancelled; skipped: a job of the same name was still running';
COMMENT ON COLUMN madlib_mop.job_record.attempt IS 'Number of times that it was started; above 1 if a worker or the server has ended meanwhile';
COMMENT ON COLUMN madlib_mop.job_record.run_id IS 'The run that it has started';
COMMENT ON COLUMN madlib_mop.job_record.worker_pid IS 'The catalog session of its worker';
COMMENT ON COLUMN madlib_mop.job_record.session_pid IS 'The session that runs its statement';
COMMENT ON COLUMN madlib_mop.job_record.login_role IS 'The role with which this session logged in; NULL for a superuser''s job';
CREATE INDEX job_record_live ON madlib_mop.job_record (state, due_at) WHERE state IN ('waiting', 'running');
CREATE INDEX job_record_series ON madlib_mop.job_record (series_id) WHERE series_id IS NOT NULL;
-- each claim asks for the last start of a role's jobs, of which some roles have very many
CREATE INDEX job_record_last ON madlib_mop.job_record (
    owner,  -- defence: index-of-ended-jobs = job_id,
    (coalesce(started_at, CASE WHEN state <> 'cancelled' THEN ended_at END)));

CREATE TABLE madlib_mop.job_done (
    job_id   bigint PRIMARY KEY REFERENCES madlib_mop.job_record ON DELETE CASCADE,
    attempt  integer NOT NULL
);
COMMENT ON TABLE madlib_mop.job_done IS 'One job whose transaction was committed; written in this transaction, so that each job is done once';

-- Whoever logged in, also for a job that is submitted by a job: session_user is the login role of that job then.
CREATE FUNCTION madlib_mop_calls.submitter() RETURNS regrole
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce((SELECT j.submitted_by FROM madlib_mop.job_record j
                     WHERE j.state = 'running' AND j.session_pid = pg_backend_pid() AND j.login_role = session_user),
                    quote_ident(session_user)::regrole)
$body$;
COMMENT ON FUNCTION madlib_mop_calls.submitter() IS 'The role that has logged in to this session; in the session of a job, the one that submitted it';

CREATE FUNCTION madlib_mop_calls._is_superuser() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT rolsuper FROM pg_roles WHERE rolname = current_user
$body$;
COMMENT ON FUNCTION madlib_mop_calls._is_superuser() IS 'Whether the current user is a superuser';
ALTER TABLE madlib_mop.job_record ALTER submitted_by SET DEFAULT madlib_mop_calls.submitter();
ALTER TABLE madlib_mop.job_record ALTER as_superuser SET DEFAULT madlib_mop_calls._is_superuser();

-- Users insert jobs, by columns that say what to run; the others have their defaults (sql/90-grants.sql).
ALTER TABLE madlib_mop.job_record ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_jobs ON madlib_mop.job_record FOR SELECT
    -- defence: jobs-of-own-roles = USING (true);
    -- defence: quick-view-of-jobs = USING (madlib_mop_calls.may_see(owner));
    USING (owner::oid = ANY ((SELECT madlib_mop_calls.seen_owners(false))::oid[]));
CREATE POLICY submit ON madlib_mop.job_record FOR INSERT
    WITH CHECK (owner = quote_ident(current_user)::regrole AND submitted_by = madlib_mop_calls.submitter());
ALTER TABLE madlib_mop.job_done ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_session ON madlib_mop.job_done FOR INSERT WITH CHECK (EXISTS (
    SELECT FROM madlib_mop.job_record j
    WHERE j.job_id = job_done.job_id AND j.attempt = job_done.attempt AND j.state = 'running'
          AND j.session_pid = pg_backend_pid() AND madlib_mop_calls.may_own(j.owner)));  -- defence: session-of-a-job = ));

-- The statement has the settings of the session that submitted it, search_path too. Texts of its error are cut here: the
-- worker, which runs the jobs of all roles, would copy one of a gigabyte several times.
CREATE FUNCTION madlib_mop_calls.run_job(job bigint, number integer, interrupted_run bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    what record;
    setting record;
    error_state text;
    error_message text;
    error_detail text;
    error_hint text;
BEGIN
    SELECT s.statement, s.settings INTO STRICT what FROM madlib_mop.job_record j JOIN madlib_mop.job_statement s
        ON s.statement_id = j.statement_id
    WHERE j.job_id = job AND j.session_pid = pg_backend_pid();
    FOR setting IN SELECT s.key, s.value FROM jsonb_each_text(what.settings) AS s ORDER BY s.key = 'search_path' LOOP
        PERFORM pg_catalog.set_config(setting.key, setting.value, true);
    END LOOP;
    BEGIN
        IF interrupted_run IS NOT NULL THEN
            PERFORM madlib_mop.resume(interrupted_run);
        ELSE
            EXECUTE what.statement;
        END IF;
    EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN
        GET STACKED DIAGNOSTICS error_state = RETURNED_SQLSTATE, error_message = MESSAGE_TEXT,
            error_detail = PG_EXCEPTION_DETAIL, error_hint = PG_EXCEPTION_HINT;
        -- defence: path-of-an-error
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true); -- that of the statement can have functions of others
        PERFORM madlib_mop_calls._raise(json_build_object('sqlstate', error_state,
            'message', left(error_message, 10000),  -- defence: errors-of-jobs = 'message', error_message,
            'detail', nullif(left(error_detail, 10000), ''), 'hint', nullif(left(error_hint, 10000), '')));
    END;
    INSERT INTO madlib_mop.job_done (job_id, attempt) VALUES (job, number);
END
$body$;
COMMENT ON FUNCTION madlib_mop_calls.run_job(bigint, integer, bigint) IS
    'Runs the statement of a job, or resumes its run, and notes in the same transaction that it is done (called by the worker, in the session of the job)';

-- Positions count the jobs of all roles, which the caller may not see; a position tells nothing about them. The function
-- has the rights of its owner, so the role that asks is read as the session has it.
CREATE FUNCTION madlib_mop_calls.job_queue(OUT job_id bigint, OUT queue_position bigint) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    WITH due AS (
        SELECT j.job_id, j.owner, j.priority, j.due_at FROM madlib_mop.job_record j
        WHERE j.state = 'waiting' AND j.due_at <= statement_timestamp()
    ), busy AS (
        SELECT o.owner, (SELECT count(*) FROM madlib_mop.job_record r WHERE r.owner = o.owner AND r.state = 'running') AS n,
               (SELECT max(coalesce(r.started_at, CASE WHEN r.state <> 'cancelled' THEN r.ended_at END))
                FROM madlib_mop.job_record r WHERE r.owner = o.owner) AS at,
               caller.rolsuper OR pg_has_role(caller.oid, o.owner, caller.privilege) OR EXISTS (
                   SELECT FROM madlib_mop.viewer v WHERE v.owner = o.owner AND pg_has_role(caller.oid, v.viewer, caller.privilege)) AS is_seen
        FROM (SELECT DISTINCT d.owner FROM due d) o
        CROSS JOIN LATERAL (
            SELECT c.oid, c.rolsuper,
                   CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'USAGE, SET' ELSE 'MEMBER' END AS privilege
            FROM pg_roles c
            WHERE c.rolname = CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END) caller
    )
    SELECT q.job_id, q.place
    FROM (SELECT d.job_id, b.is_seen,
                 row_number() OVER (ORDER BY b.n, b.at NULLS FIRST, d.owner, d.priority DESC, d.due_at, d.job_id) AS place
          FROM due d LEFT JOIN busy b ON b.owner = d.owner) q
    WHERE q.is_seen  -- defence: places-in-the-queue
$body$;
COMMENT ON FUNCTION madlib_mop_calls.job_queue() IS 'The place of each due job that the caller may see in the queue of all roles'' jobs';

CREATE FUNCTION madlib_mop_calls.n_job_workers() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    SELECT count(*) FROM madlib_mop.job_worker w JOIN pg_stat_activity a ON a.pid = w.pid AND a.backend_start = w.session_start
$body$;
COMMENT ON FUNCTION madlib_mop_calls.n_job_workers() IS 'The number of job workers';

CREATE VIEW madlib_mop.job WITH (security_invoker = true) AS
SELECT j.job_id, j.name, coalesce(j.function, 'statement') AS function, pg_catalog.pg_get_userbyid(j.owner) AS owner,
       j.state, q.queue_position,
       CASE WHEN j.state <> 'waiting' THEN NULL
            WHEN j.detail IS NOT NULL THEN 'its next attempt: ' || j.detail
            WHEN j.due_at > pg_catalog.clock_timestamp() THEN 'its time'
            WHEN before.state IN ('waiting', 'running') THEN 'the end of job ' || before.job_id
            WHEN same.job_id IS NOT NULL AND j.if_running = 'queue' THEN 'the end of job ' || same.job_id
            WHEN madlib_mop_calls.n_job_workers() = 0 THEN 'a worker: none is running (madlib-mop work)'
            ELSE 'a free worker' END AS waits_for,
       coalesce(j.run_id, (SELECT pg_catalog.max(r.run_id) FROM madlib_mop.run r
                           WHERE j.state = 'running' AND r.caller_pid = j.session_pid AND r.owner = j.owner
                                 AND r.created_at >= j.started_at)) AS run_id,
       j.priority, j.submitted_at, j.due_at, j.every, j.after, j.if_running, j.time_limit, j.series_id,
       j.started_at, j.ended_at, j.attempt, s.statement,
       CASE WHEN j.state IN ('failed', 'cancelled', 'skipped') THEN j.detail END AS error
FROM madlib_mop.job_record j
LEFT JOIN madlib_mop.job_statement s ON s.statement_id = j.statement_id
LEFT JOIN madlib_mop_calls.job_queue() q ON q.job_id = j.job_id
LEFT JOIN madlib_mop.job_record before ON before.job_id = j.after
LEFT JOIN LATERAL (
    SELECT pg_catalog.min(o.job_id) AS job_id FROM madlib_mop.job_record o
    WHERE o.state = 'running' AND j.state = 'waiting' AND o.owner = j.owner AND (o.name = j.name OR o.series_id = j.series_id)
) same ON true;
COMMENT ON VIEW madlib_mop.job IS 'The jobs that you may see: state, place in the queue, why it waits, its run, and its error';
COMMENT ON COLUMN madlib_mop.job.job_id IS 'The job';
COMMENT ON COLUMN madlib_mop.job.name IS 'The name that submit() was given';
COMMENT ON COLUMN madlib_mop.job.function IS 'The function of the library that it calls; statement: any SQL statement';
COMMENT ON COLUMN madlib_mop.job.owner IS 'The role that it runs as';
COMMENT ON COLUMN madlib_mop.job.state IS 'waiting, running, finished, failed, cancelled or skipped';
COMMENT ON COLUMN madlib_mop.job.queue_position IS 'The place of a due job in the queue of all roles'' jobs';
COMMENT ON COLUMN madlib_mop.job.waits_for IS 'Why it waits';
COMMENT ON COLUMN madlib_mop.job.run_id IS 'The run that it has started';
COMMENT ON COLUMN madlib_mop.job.priority IS 'Among jobs of one role, the highest is next; from -100 to 100';
COMMENT ON COLUMN madlib_mop.job.submitted_at IS 'When it was submitted';
COMMENT ON COLUMN madlib_mop.job.due_at IS 'When it starts, at the earliest';
COMMENT ON COLUMN madlib_mop.job.every IS 'When it is repeated: an interval or a cron expression; NULL: never';
COMMENT ON COLUMN madlib_mop.job.after IS 'The job that must have finished before';
COMMENT ON COLUMN madlib_mop.job.if_running IS 'What happens if a job of the same name is running when it is due: skip, queue or error';
COMMENT ON COLUMN madlib_mop.job.time_limit IS 'After this time it is stopped';
COMMENT ON COLUMN madlib_mop.job.series_id IS 'For a repetition: the job_id that submit() returned';
COMMENT ON COLUMN madlib_mop.job.started_at IS 'When it was started last';
COMMENT ON COLUMN madlib_mop.job.ended_at IS 'When it ended';
COMMENT ON COLUMN madlib_mop.job.attempt IS 'Number of times that it was started; above 1 after an interruption';
COMMENT ON COLUMN madlib_mop.job.statement IS 'The statement that it runs; NULL: you may not see it';
COMMENT ON COLUMN madlib_mop.job.error IS 'Why it failed, was cancelled or was skipped';

SELECT pg_catalog.pg_extension_config_dump('madlib_mop.job_statement', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.job_statement_statement_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.job_record', 'WHERE owner::oid IN (SELECT oid FROM pg_catalog.pg_roles)'
    ' AND submitted_by::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('madlib_mop.job_record_job_id_seq', '');

-- end
