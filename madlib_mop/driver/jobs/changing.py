"""cancel_job, run_now, alter_job, purge_jobs: they change the record at once, and wake the workers."""

from typing import Any

from madlib_mop.catalog.jobs import Jobs
from madlib_mop.catalog.rows.job import JobRow
from madlib_mop.catalog.rows.states import JobState
from madlib_mop.driver.jobs.checks import check_times, check_zone, own_job, seconds_of
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import open_record
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.jobs.recurrence import is_cron

_AGES_S = 1e11  # older than any job; the server has no times that are much older


def cancel_job(call: Call) -> bool:
    """Cancel a job and its repetitions; return False, with a NOTICE, if it has already ended."""
    jobs, job = _job_of_call(call)
    if jobs.cancel(job, call.info.role):
        return True
    call.session.notice(f"job {job.job_id} has already ended: it is {jobs.known(job.job_id).state}")
    return False


def run_now(call: Call) -> None:
    """Make a waiting job due now; later repetitions keep their times."""
    jobs, job = _waiting_job(call)
    if not jobs.make_due(job):
        raise _not_waiting(jobs.known(job.job_id))


def alter_job(call: Call) -> None:
    """Change a waiting job."""
    jobs, job = _waiting_job(call)
    a = call.arguments
    check_times(call, open_record(call.info), a)
    names = {"name": "name", "priority": "priority", "at": "due_at", "every": "every", "if_running": "if_running",
             "time_limit": "time_limit"}  # fmt: skip
    if a["every"] is not None and is_cron(a["every"]) and job.time_zone is not None:
        check_zone(job.time_zone, ", of the session that submitted the job")
    changes = {column: a[name] for name, column in names.items() if a[name] is not None}
    if not changes:
        raise InvalidParameter(
            "all arguments but job_id are NULL: there is nothing to change",
            hint=f"For example madlib_mop.alter_job({job.job_id}, priority => 10).",
        )
    _change(jobs, job, changes)


def purge_jobs(call: Call) -> int:
    """Delete the caller's jobs that ended longer ago; return their number."""
    older_than = call.arguments["older_than"]
    seconds = seconds_of(call, older_than, "older_than")
    if seconds < 0:
        raise InvalidParameter(f"older_than must not be negative. Received: {older_than}")
    record = open_record(call.info)
    jobs = Jobs(record)
    owners = [owner for owner in jobs.owners() if record.may_see(call.info.role_oid, owner)]
    return jobs.purge(owners, min(seconds, _AGES_S))


def _job_of_call(call: Call) -> tuple[Jobs, JobRow]:
    record = open_record(call.info)
    jobs = Jobs(record)
    return jobs, own_job(call, record, jobs, call.arguments["job_id"])


def _waiting_job(call: Call) -> tuple[Jobs, JobRow]:
    jobs, job = _job_of_call(call)
    if job.state is not JobState.WAITING:
        raise _not_waiting(job)
    return jobs, job


def _change(jobs: Jobs, job: JobRow, changes: dict[str, Any]) -> None:
    if not jobs.change(job, changes):
        raise _not_waiting(jobs.known(job.job_id))


def _not_waiting(job: JobRow) -> NotReady:
    return NotReady(
        f"job {job.job_id} is {job.state}: only a waiting job can be changed",
        hint="SELECT job_id, state, error FROM madlib_mop.job; madlib_mop.submit() submits another one.",
    )
