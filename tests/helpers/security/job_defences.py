"""The defences, in the format of ``defences.py``, of jobs."""

from tests.helpers.security.defence import Defence

_JOBS = "tests/security/test_jobs.py::"
_LOST = _JOBS + "test_a_job_of_a_role_that_lost_its_rights_fails_with_a_clear_error"
_STUBBORN = "tests/security/test_stubborn_jobs.py::"
_SEEN = _JOBS + "test_who_was_granted_read_access_sees_the_job_but_not_its_statement"

DEFENCES_OF_JOBS = (
    Defence(
        "a job's session logs in with no more rights than the job's owner has",
        "madlib_mop/jobs/sessions.py",
        "    if login is None:\n",
        "    if True:\n",
        (_JOBS + "test_its_session_has_no_more_rights_than_its_owner",),
    ),
    Defence(
        "a job runs for who may act as its owner",
        "madlib_mop/catalog/jobs.py",
        "        if not acts_as:\n",
        "        if False:\n",
        (_JOBS + "test_a_function_of_another_role_submits_no_job_of_that_role",),
    ),
    Defence(
        "a job does not run for who may no longer log in",
        "madlib_mop/catalog/jobs.py",
        "        if not can_login:\n",
        "        if False:\n",
        (_LOST,),
    ),
    Defence(
        "a job does not run for who may no longer use the extension",
        "madlib_mop/catalog/jobs.py",
        "        if not may_use:\n",
        "        if False:\n",
        (_LOST,),
    ),
    Defence(
        "a job gets no superuser's rights that its owner got later",
        "madlib_mop/catalog/jobs.py",
        "        if is_super and not job.as_superuser:\n",
        "        if False:\n",
        (_LOST,),
    ),
    Defence(
        "users write the columns of a job that say what to run, and no others",
        "sql/90-grants.sql",
        "GRANT INSERT (statement_id, name, function, priority, due_at, every, after, if_running, time_limit)'",
        "GRANT INSERT'",
        (_JOBS + "test_a_row_that_is_written_by_hand_runs_as_who_wrote_it",),
    ),
    Defence(
        "a job runs no statement of another role's job",
        "sql/49-jobs.sql",
        "(owner::oid = ANY ((SELECT madlib_mop_calls.seen_owners(true))::oid[]))",
        "(true)",
        (_JOBS + "test_a_row_that_is_written_by_hand_runs_as_who_wrote_it", _SEEN),
    ),
    Defence(
        "a user sees the jobs of his own roles only",
        "sql/49-jobs.sql",
        "(owner::oid = ANY ((SELECT madlib_mop_calls.seen_owners(false))::oid[]))",
        "(true)",
        (_SEEN,),
    ),
    Defence(
        "only the session of a job says that it is done",
        "sql/49-jobs.sql",
        "          AND j.session_pid = pg_backend_pid() AND madlib_mop_calls.may_own(j.owner)));",
        "          ));",
        (_JOBS + "test_nobody_marks_a_job_as_done",),
    ),
    Defence(
        "only members of its owner's role change a job",
        "madlib_mop/driver/jobs/checks.py",
        "    if job is None or not record.may_see(call.info.role_oid, job.owner_oid):\n",
        "    if job is None:\n",
        (_JOBS + "test_somebody_elses_job_is_like_one_that_is_not_there",),
    ),
    Defence(
        "a job learns nothing of the jobs of roles that its owner does not act as",
        "madlib_mop/catalog/jobs.py",
        "ON before.job_id = j.after AND pg_has_role(j.owner, before.owner, 'MEMBER')\n",
        "ON before.job_id = j.after\n",
        (_JOBS + "test_rows_that_submit_would_refuse_stop_no_worker",),
    ),
    Defence(
        "a job that catches its cancel or its time limit is ended",
        "madlib_mop/jobs/working.py",
        "                self._terminate()\n",
        "",
        (_STUBBORN + "test_a_job_that_catches_its_time_limit_is_ended",
         _STUBBORN + "test_a_job_that_catches_its_cancel_is_cancelled"),
    ),
    Defence(
        "a job that ends without a start is a turn of its role",
        "madlib_mop/catalog/jobs.py",
        "max(coalesce(o.started_at, CASE WHEN o.state <> 'cancelled' THEN o.ended_at END)) AS at\n",
        "max(o.started_at) AS at\n",
        (_STUBBORN + "test_jobs_that_end_without_a_start_keep_no_other_role_waiting",),
    ),
    Defence(
        "a job worker keeps no notices of the sessions of jobs",
        "madlib_mop/engines/sessions/session.py",
        "        self._connection.notices = _Ignored()\n",
        "",
        (_STUBBORN + "test_a_huge_error_is_cut",),
    ),
    Defence(
        "a job worker reads no large settings of users",
        "madlib_mop/catalog/jobs.py",
        "left(w.settings ->> 'TimeZone', 100) AS time_zone",
        "w.settings ->> 'TimeZone' AS time_zone",
        (_STUBBORN + "test_a_huge_time_zone_stays_in_the_database",),
    ),
    Defence(
        "a setting of a role does not change the encoding of a job's session",
        "madlib_mop/engines/sessions/session.py",
        ', client_encoding="UTF8", async_=1',
        ", async_=1",
        (_STUBBORN + "test_a_setting_of_a_role_does_not_stop_the_worker",),
    ),
    Defence(
        "an error of a user is a part of one line of the job worker's log",
        "madlib_mop/jobs/working.py",
        '    return "".join(c if c.isprintable() else " " for c in text',
        '    return "".join(c for c in text',
        (_STUBBORN + "test_no_line_of_the_workers_log_is_a_users",),
    ),
    Defence(
        "the repetitions of a dropped role's job end",
        "madlib_mop/jobs/working.py",
        "not (self._jobs.is_last(job) and self._jobs.has_roles(job))",
        "not self._jobs.is_last(job)",
        (_STUBBORN + "test_a_repeated_job_of_a_role_that_was_dropped_ends",),
    ),
    Defence(
        "the view of jobs does not check each job of other roles",
        "sql/49-jobs.sql",
        "(owner::oid = ANY ((SELECT madlib_mop_calls.seen_owners(false))::oid[]))",
        "(madlib_mop_calls.may_see(owner))",
        (_STUBBORN + "test_the_view_of_jobs_does_not_wait_for_jobs_of_others",),
    ),
    Defence(
        "no job worker runs where texts have no encoding",
        "madlib_mop/jobs/working.py",
        '    if encoding == "SQL_ASCII":',
        "    if False:",
        (_STUBBORN + "test_no_worker_reads_texts_without_an_encoding",),
    ),
    Defence(
        "an error of a job is cut where it is raised",
        "sql/49-jobs.sql",
        "'message', left(error_message, 10000)",
        "'message', error_message",
        (_STUBBORN + "test_a_huge_error_is_cut_where_it_is_raised",),
    ),
    Defence(
        "no job takes more memory of its worker than the worker may use",
        "madlib_mop/cli/work.py",
        "    limit_memory()\n",
        "",
        (_STUBBORN + "test_a_message_that_is_too_large_for_the_worker_ends_its_job",),
    ),
    Defence(
        "runs whose views sleep do not keep others from training",
        "madlib_mop/driver/running/place.py",
        "            self._record.give_place_back(self._run_id)\n",
        "",
        ("tests/integration/test_admission.py::test_a_run_that_only_waits_for_rows_gives_its_place_back",),
    ),
)
