"""The functions that submit jobs and control them."""

from dataclasses import replace

from madlib_mop.calls.argument import Argument, Function, Given, Label, OneOf, Whole

_JOB_ID = Argument(
    "job_id", "bigint", "number of the job, from submit() or madlib_mop.job",
    check=Given("SELECT job_id, name, state FROM madlib_mop.job;"),
)  # fmt: skip
_NAME = Argument("name", "text", "a name for the job; see if_running", default=None, check=Label(200))
_PRIORITY = Argument(
    "priority", "integer", "from -100 to 100; among your own jobs, those with the highest priority start first",
    default=0, check=Whole(-100, 100, "0 is the usual priority.", must="must be from -100 to 100"),
)  # fmt: skip
_AT = Argument(
    "at", "timestamptz", "time of the first start; NULL: as soon as a job worker is free, or with a cron expression at"
    " its next time", default=None,
)  # fmt: skip
_EVERY = Argument(
    "every", "text", "when to repeat the job: an interval such as '1 day', or a cron expression such as '0 3 * * *'",
    default=None, check=Label(200),
)  # fmt: skip
_RULE = OneOf(("skip", "queue", "error"), "skip", "'queue' lets it wait for the end of the other one.")
_IF_RUNNING = Argument(
    "if_running", "text", "if a job of yours with the same name, or the previous repetition, is running when this job"
    " is due: 'skip' this job, 'queue' it, or let it fail ('error')", default="skip",
    check=_RULE,
)  # fmt: skip
_TIME_LIMIT = Argument(
    "time_limit", "interval", "the job is stopped after this time, from 1 second to 20 days", default=None
)

SUBMIT = Function(
    "submit",
    "Submit a call or an SQL statement as a job. Return its job_id.",
    (
        Argument(
            "statement", "text", "name of a function of the library, or an SQL statement",
            check=Given("For example 'madlib_keras_fit_multiple_model', or 'REFRESH MATERIALIZED VIEW v'."),
        ),
        Argument("arguments", "json", "arguments of the function, by name; NULL for an SQL statement", default=None),
        _NAME,
        _PRIORITY,
        _AT,
        _EVERY,
        Argument("after", "bigint", "job_id of a job of yours that must finish before this job starts", default=None),
        _IF_RUNNING,
        _TIME_LIMIT,
    ),
    schema="madlib_mop",
    comments=("Submits a call as a job, which a job worker runs with the caller's rights; returns its job_id at once",),
    returns="bigint",
    settings=("IntervalStyle = 'postgres'",),
)  # fmt: skip
CANCEL_JOB = Function(
    "cancel_job", "Cancel a job and its repetitions. Return false if it has already ended.", (_JOB_ID,),
    schema="madlib_mop",
    comments=("Cancels a job, with its repetitions; false if it has already ended",),
    returns="boolean",
    takes_path=False,
)  # fmt: skip
RUN_NOW = Function(
    "run_now",
    "Make a waiting job due now.",
    (_JOB_ID,),
    schema="madlib_mop",
    comments=("Makes a waiting job due now",),
    takes_path=False,
)
ALTER_JOB = Function(
    "alter_job",
    "Change a waiting job. Arguments that are NULL change nothing.",
    (
        _JOB_ID, _NAME, replace(_PRIORITY, default=None), replace(_AT, help="new time of its start"), _EVERY,
        replace(_IF_RUNNING, default=None, check=lambda name, value: value if value is None else _RULE(name, value)),
        _TIME_LIMIT,
    ),
    schema="madlib_mop",
    comments=("Changes a waiting job; an argument that is NULL changes nothing",),
    settings=("IntervalStyle = 'postgres'",),
    takes_path=False,
)  # fmt: skip
PURGE_JOBS = Function(
    "purge_jobs",
    "Delete ended jobs: yours, and those of roles that you are a member of. Return their number.",
    (
        Argument(
            "older_than", "interval", "jobs that ended longer ago are deleted; an interval, such as '7 days'",
            default="30 days", check=Given("For example madlib_mop.purge_jobs('7 days')."),
        ),
    ),
    schema="madlib_mop",
    comments=("Deletes your jobs that ended longer ago than older_than; returns their number",),
    returns="bigint",
    settings=("IntervalStyle = 'postgres'",),
    takes_path=False,
)  # fmt: skip

FUNCTIONS = (SUBMIT, CANCEL_JOB, RUN_NOW, ALTER_JOB, PURGE_JOBS)
