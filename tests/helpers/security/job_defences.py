"""The defences, in the format of ``defences.py``, of jobs."""

from tests.helpers.security.defence import Defence

_JOBS = "tests/security/test_jobs.py::"
_LOST = _JOBS + "test_a_job_of_a_role_that_lost_its_rights_fails_with_a_clear_error"
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
        "CREATE POLICY own_jobs ON madlib_mop.job_statement FOR SELECT USING (madlib_mop_calls.may_own(owner));",
        "CREATE POLICY own_jobs ON madlib_mop.job_statement FOR SELECT USING (true);",
        (_JOBS + "test_a_row_that_is_written_by_hand_runs_as_who_wrote_it", _SEEN),
    ),
    Defence(
        "a user sees the jobs of his own roles only",
        "sql/49-jobs.sql",
        "CREATE POLICY own_jobs ON madlib_mop.job_record FOR SELECT USING (madlib_mop_calls.may_see(owner));",
        "CREATE POLICY own_jobs ON madlib_mop.job_record FOR SELECT USING (true);",
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
)
