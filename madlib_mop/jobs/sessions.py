"""The session in which a job's statement runs: how it logs in, and its end after a worker has died.

It has the rights of the job's owner and holds no secret: a login role of its own, a member of the owner, as readers of
runs have (`madlib_mop.engines.sessions.access`).
"""

from dataclasses import dataclass

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.job import JobRow
from madlib_mop.catalog.sessions.session_settings import LIFT_NEW_TIMEOUTS
from madlib_mop.engines.sessions.access import BECOME
from madlib_mop.engines.sessions.login import RunLogin, drop_login
from madlib_mop.engines.sessions.session import LoginTarget

_RIGHTS = (
    " -c client_connection_check_interval=200 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0"
    " -c client_min_messages=warning -c tcp_keepalives_idle=5 -c role=none -c search_path=pg_catalog"
)
_OF_JOB = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND usename = session_user"
    " AND datname = current_database() AND pid = %s"
)
# A session of a role that was dropped has the role's oid and no name.
_OF_LOGIN = (
    "SELECT pid FROM pg_stat_activity WHERE usename = %s"
    " OR (pid = %s AND usesysid IS NOT NULL AND usename IS NULL)"
)


@dataclass(frozen=True)
class JobServer:
    """Where the sessions of jobs log in.

    Attributes
    ----------
    catalog_dsn : str
        The worker's own login, a superuser's; jobs of superusers use it.
    host, port, database : str
        For login roles, by password.
    """

    catalog_dsn: str
    host: str
    port: str
    database: str


def session_name(job_id: int) -> str:
    """Return the ``application_name`` of a job's session."""
    return f"madlib_mop job {job_id}"


def target(server: JobServer, job: JobRow, login: RunLogin | None) -> LoginTarget:
    """Return how the session of a job is opened: as its owner, without more rights than the owner has."""
    options = f"-c statement_timeout={min(job.time_limit_ms, 2**31 - 1)}{_RIGHTS}"
    common = {"application_name": session_name(job.job_id), "connect_timeout": 10, "options": options}
    steps = [(LIFT_NEW_TIMEOUTS, []), (BECOME, [job.owner_oid])]
    if login is None:  # defence: login-of-a-job = True
        return LoginTarget({"dsn": server.catalog_dsn, **common}, steps)
    where = {"host": server.host, "port": server.port, "dbname": server.database}
    return LoginTarget({**where, **login.keywords(), **common}, steps)


def end_session(record: Record, job: JobRow) -> bool:
    """End the session of a job, if it is still there, and drop its login role; return whether the session is gone."""
    if job.login_role is not None:
        drop_login(record.raw, job.login_role)
        return not record.execute(_OF_LOGIN, [job.login_role, job.session_pid])
    if job.session_pid is None:
        return True
    name = [session_name(job.job_id), job.session_pid]
    pids = [pid for (pid,) in record.execute(_OF_JOB, name)]
    record.execute("SELECT madlib_mop_calls.end_sessions(%s::pg_catalog.int4[], 10000)", [pids])
    return not record.execute(_OF_JOB, name)
