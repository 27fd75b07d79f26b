"""What the functions on jobs check: times, intervals, and whose job it is."""

from datetime import UTC, datetime
from typing import Any

from madlib_mop.catalog.jobs import Jobs
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.job import JobRow
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.jobs.recurrence import NoNextTime, hint, is_cron, knows_zone, next_time

_INTERVAL = "SELECT pg_catalog.date_part('epoch', $1::pg_catalog.interval) AS seconds"
# The two measures differ: to compare intervals, a year has 360 days, and for the number of seconds 365.25.
_LIMIT = """
SELECT i BETWEEN '1 second' AND '20 days' AND pg_catalog.date_part('epoch', i) BETWEEN 1 AND 20 * 86400 AS is_good
FROM (SELECT $1::pg_catalog.interval) AS g (i)
"""
_TIME = "SELECT $1::pg_catalog.timestamptz BETWEEN '2000-01-01' AND '3000-01-01' AS is_good"


def check_times(call: Call, record: Record, a: dict[str, Any]) -> None:
    """Check ``at``, ``every`` and ``time_limit``."""
    if a["at"] is not None and not call.session.execute(_TIME, [a["at"]])[0]["is_good"]:
        raise InvalidParameter(f"at must be a time between the years 2000 and 3000. Received: {a['at']}")
    limit = a["time_limit"]
    if limit is not None and not (seconds_of(call, limit, "time_limit") > 0 and _is_good_limit(call, limit)):
        raise InvalidParameter(f"time_limit must be from 1 second to 20 days. Received: {limit}")
    if a["every"] is not None:
        first_time(call, record, a["every"])


def first_time(call: Call, record: Record, every: str) -> str | None:
    """Return the first time of a repeated job: for an interval now, so None. Raises InvalidParameter."""
    if is_cron(every):
        zone = call.session.caller_setting("TimeZone")
        if zone:
            check_zone(zone)
        try:
            return next_time(every, datetime.now(UTC), zone).isoformat()
        except NoNextTime as error:
            raise InvalidParameter(f"every: {error}", hint=hint()) from None
    if seconds_of(call, every, "every") < 1:
        raise InvalidParameter(f"every must be at least 1 second. Received: {every!r}", hint=hint())
    return None


def check_zone(zone: str, whose: str = "") -> None:
    """Raise InvalidParameter if cron expressions cannot be read in a time zone."""
    if not knows_zone(zone):
        raise InvalidParameter(
            f"every: cron expressions need a time zone with a name. Received: TimeZone {zone!r}{whose}",
            hint="For example SET TimeZone = 'Europe/Berlin', or 'UTC'.",
        )


def _is_good_limit(call: Call, limit: str) -> bool:
    return bool(call.session.execute(_LIMIT, [limit])[0]["is_good"])


def seconds_of(call: Call, interval: str, name: str) -> float:
    try:
        return float(call.session.execute(_INTERVAL, [interval])[0]["seconds"])
    except MopError as error:
        if not error.sqlstate.startswith("22"):
            raise
        raise InvalidParameter(f"{name} is no interval. Received: {interval!r}", hint=hint()) from None


def own_job(call: Call, record: Record, jobs: Jobs, job_id: int, what: str = "") -> JobRow:
    """Return a job of the caller's, or of a role that the caller acts as.

    Raises
    ------
    InvalidParameter
        If there is no such job, or it belongs to another role.
    """
    job = jobs.job(job_id)
    # defence: members-change-a-job = job is None
    if job is None or not record.may_see(call.info.role_oid, job.owner_oid):
        raise InvalidParameter(
            f"{what}you have no job with this number. Received: {job_id}",
            hint="SELECT job_id, name, state FROM madlib_mop.job;",
        )
    return job
