"""The row of a job, as workers and the commands on jobs read it."""

from dataclasses import dataclass

from madlib_mop.catalog.rows.base import Row, column
from madlib_mop.catalog.rows.states import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow(Row):
    """A job: columns of a row of `madlib_mop.job_record`.

    Times are not among them: users may write any that the server accepts, and Python's are more limited.

    Attributes
    ----------
    job_id : int
    series_id : int or None
        For a repeated job, the first one's job_id.
    name : str or None
    function : str or None
        The function of the library that its statement calls.
    owner : str
        Name of the role that it runs as.
    owner_oid : int
    submitted_by : str
    submitted_by_oid : int
    as_superuser : bool
        Whether the owner was a superuser when it was submitted.
    every : str or None
    after : int or None
    if_running : str
    time_limit_ms : int
        0: none.
    time_zone : str or None
        The TimeZone of the session that submitted it.
    state : JobState
    attempt : int
        Number of times that it was started.
    run_id : int or None
        The run that it has started.
    session_pid : int or None
    login_role : str or None
    cancelled_by : str or None
    """

    job_id: int
    series_id: int | None
    name: str | None
    function: str | None
    owner: str
    owner_oid: int
    submitted_by: str
    submitted_by_oid: int
    as_superuser: bool
    every: str | None
    after: int | None
    if_running: str
    time_limit_ms: int
    time_zone: str | None
    state: JobState = column(JobState)
    attempt: int
    run_id: int | None
    session_pid: int | None
    login_role: str | None
    cancelled_by: str | None


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The catalog session of a worker; ``session_start`` as the server's text, so that no digit is lost."""

    pid: int
    session_start: str
