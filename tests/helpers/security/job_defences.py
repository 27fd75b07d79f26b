"""The defences, in the format of ``defences.py``, of jobs."""

from tests.helpers.security.defence import Defence

_JOBS = "tests/security/test_jobs.py::"
_LOST = _JOBS + "test_a_job_of_a_role_that_lost_its_rights_fails_with_a_clear_error"
_STUBBORN = "tests/security/test_stubborn_jobs.py::"
_SEEN = _JOBS + "test_who_was_granted_read_access_sees_the_job_but_not_its_statement"

DEFENCES_OF_JOBS = (
    Defence(
        "path-of-an-error",
        "the error of a job is read by functions of the server, not by those on the path of its statement",
        ("tests/security/test_hostile_path.py::test_a_job_worker_springs_no_trap",),
    ),
    Defence(
        "login-of-a-job",
        "a job's session logs in with no more rights than the job's owner has",
        (_JOBS + "test_its_session_has_no_more_rights_than_its_owner",),
    ),
    Defence(
        "schema-of-learn",
        "learn makes no tables in the schema of another role, who could replace them by views before they are read",
        ("tests/integration/test_learn.py::test_its_tables_are_not_made_in_the_schema_of_another_role",),
    ),
    Defence(
        "login-of-learn",
        "the session in which learn works logs in with no more rights than the caller has",
        ("tests/integration/test_learn.py::test_its_session_has_no_more_rights_than_the_caller",),
    ),
    Defence(
        "lock-of-learn",
        "no sweep takes the login role of a call of learn for one that a dead run has left",
        ("tests/integration/test_learn.py::test_all_that_it_made_is_ordinary_and_belongs_to_the_caller",),
    ),
    Defence(
        "drop-by-oid",
        "a call with replace drops the tables that it has checked, and no other that has got the name of one since",
        ("tests/unit/driver/test_output_tables.py::test_a_table_that_has_got_the_name_of_another_is_not_dropped",),
    ),
    Defence(
        "job-acts-as-owner",
        "a job runs for who may act as its owner",
        (_JOBS + "test_a_function_of_another_role_submits_no_job_of_that_role",),
    ),
    Defence(
        "job-may-log-in",
        "a job does not run for who may no longer log in",
        (_LOST,),
    ),
    Defence(
        "job-may-use-us",
        "a job does not run for who may no longer use the extension",
        (_LOST,),
    ),
    Defence(
        "job-of-a-new-superuser",
        "a job gets no superuser's rights that its owner got later",
        (_LOST,),
    ),
    Defence(
        "columns-of-a-job",
        "users write the columns of a job that say what to run, and no others",
        (_JOBS + "test_a_row_that_is_written_by_hand_runs_as_who_wrote_it",),
    ),
    Defence(
        "statement-of-a-job",
        "a job runs no statement of another role's job",
        (_JOBS + "test_a_row_that_is_written_by_hand_runs_as_who_wrote_it", _SEEN),
    ),
    Defence(
        "jobs-of-own-roles",
        "a user sees the jobs of his own roles only",
        (_SEEN,),
    ),
    Defence(
        "session-of-a-job",
        "only the session of a job says that it is done",
        (_JOBS + "test_nobody_marks_a_job_as_done",),
    ),
    Defence(
        "members-change-a-job",
        "only members of its owner's role change a job",
        (_JOBS + "test_somebody_elses_job_is_like_one_that_is_not_there",),
    ),
    Defence(
        "jobs-to-wait-for",
        "a job learns nothing of the jobs of roles that its owner does not act as",
        (_JOBS + "test_rows_that_submit_would_refuse_stop_no_worker",),
    ),
    Defence(
        "end-of-stubborn-jobs",
        "a job that catches its cancel or its time limit is ended",
        (_STUBBORN + "test_a_job_that_catches_its_time_limit_is_ended",
         _STUBBORN + "test_a_job_that_catches_its_cancel_is_cancelled"),
    ),
    Defence(
        "turn-of-a-role",
        "a job that ends without a start is a turn of its role",
        (_STUBBORN + "test_jobs_that_end_without_a_start_keep_no_other_role_waiting",),
    ),
    Defence(
        "places-in-the-queue",
        "a role learns of no other role's jobs from the queue",
        ("tests/security/test_job_queue.py::test_a_role_sees_the_places_of_its_own_jobs",),
    ),
    Defence(
        "index-of-ended-jobs",
        "jobs that have ended do not slow down the next claim",
        ("tests/security/test_job_queue.py::test_jobs_that_have_ended_are_not_read_for_the_next_one",),
    ),
    Defence(
        "notices-of-jobs",
        "a job worker keeps no notices of the sessions of jobs",
        (_STUBBORN + "test_a_huge_error_is_cut",),
    ),
    Defence(
        "settings-of-jobs",
        "a job worker reads no large settings of users",
        (_STUBBORN + "test_a_huge_time_zone_stays_in_the_database",),
    ),
    Defence(
        "encoding-of-a-session",
        "a setting of a role does not change the encoding of a job's session",
        (_STUBBORN + "test_a_setting_of_a_role_does_not_stop_the_worker",),
    ),
    Defence(
        "lines-of-the-log",
        "an error of a user is a part of one line of the job worker's log",
        (_STUBBORN + "test_no_line_of_the_workers_log_is_a_users",),
    ),
    Defence(
        "jobs-of-dropped-roles",
        "the repetitions of a dropped role's job end",
        (_STUBBORN + "test_a_repeated_job_of_a_role_that_was_dropped_ends",),
    ),
    Defence(
        "quick-view-of-jobs",
        "the view of jobs does not check each job of other roles",
        (_STUBBORN + "test_the_view_of_jobs_does_not_wait_for_jobs_of_others",),
    ),
    Defence(
        "encoding-of-a-database",
        "no job worker runs where texts have no encoding",
        (_STUBBORN + "test_no_worker_reads_texts_without_an_encoding",),
    ),
    Defence(
        "errors-of-jobs",
        "an error of a job is cut where it is raised",
        (_STUBBORN + "test_a_huge_error_is_cut_where_it_is_raised",),
    ),
    Defence(
        "memory-of-the-worker",
        "no job takes more memory of its worker than the worker may use",
        (_STUBBORN + "test_a_message_that_is_too_large_for_the_worker_ends_its_job",),
    ),
    Defence(
        "places-of-sleepers",
        "runs whose views sleep do not keep others from training",
        ("tests/integration/test_admission.py::test_a_run_that_only_waits_for_rows_gives_its_place_back",),
    ),
)
