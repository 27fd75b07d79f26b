"""The login role of a run's reader sessions; its password never leaves memory.

It is a member of the caller's role and nothing else, and has that role's settings and connection limit.
A superuser's run has none, because roles that can grant memberships could join it and become a superuser.

Roles belong to the whole server, runs to one database: a role's name contains both, and each database's drivers
drop the roles of their own dead runs and of dropped databases.
"""

import contextlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2 import errors, sql
from psycopg2.extensions import connection, encrypt_password, libpq_version
from psycopg2.extensions import cursor as Cursor

from madlib_mop.catalog.drivers import end_holders
from madlib_mop.catalog.rows.base import one_row
from madlib_mop.catalog.sessions.passwords import protecting
from madlib_mop.errors import OutOfResources

PREFIX = "madlib_mop_run_"
#: Jobs have such roles too (`madlib_mop.jobs`): their sessions count as the caller's.
JOB_PREFIX = "madlib_mop_job_"
_VALID_S = 60
_LOCK_TIMEOUT_MS = 2000
_NUMBERS = "([0-9]{1,10})_([0-9]{1,19})_[0-9a-f]{8}"  # defence: names-of-login-roles = r"(\d+)_(.+)_[0-9a-f]{8}"
_SWEEP_LOCK_TIMEOUT_MS = 100  # the waits for roles of several earlier runs must not add up
_MOST_OBJECTS = 1000  # dropping them takes one lock each, from the lock table that all sessions share
_MOST_LEFT = 2  # roles without any right that a sweep tries to drop: a user can prevent it, by grants elsewhere
_TRIES = 50
_PAUSE_S = 0.05
_LIMIT = """
SELECT r.rolconnlimit, (
    SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a
    WHERE a.usesysid = r.oid OR a.usesysid IN (
        SELECT m.member FROM pg_catalog.pg_auth_members m JOIN pg_catalog.pg_roles p ON p.oid = m.member
        WHERE m.roleid = r.oid
              AND (pg_catalog.starts_with(p.rolname::text, %s) OR pg_catalog.starts_with(p.rolname::text, %s))))
FROM pg_catalog.pg_roles r WHERE r.rolname = %s AND r.rolconnlimit >= 0 AND NOT r.rolsuper
"""
_SETTINGS = """
SELECT s.setdatabase <> 0, pg_catalog.split_part(c.setting, '=', 1), pg_catalog.substr(c.setting, pg_catalog.strpos(c.setting, '=') + 1)
FROM pg_catalog.pg_db_role_setting s CROSS JOIN LATERAL pg_catalog.unnest(s.setconfig) AS c (setting)
WHERE s.setrole = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = %s)
      AND s.setdatabase IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))
      AND pg_catalog.split_part(c.setting, '=', 1) <> ALL (%s)
"""  # noqa: E501
# Settings that readers set themselves (engines/sessions/access.py), or that would change the rights of the catalog
# session.
_NOT_COPIED = [
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
    "role",  # defence: roles-by-settings
    "session_authorization",
]
_N_OWNED = """
SELECT pg_catalog.count(*) FROM pg_catalog.pg_shdepend d JOIN pg_catalog.pg_roles r ON r.oid = d.refobjid
WHERE d.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND d.deptype = 'o' AND r.rolname = %s
      AND d.dbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
"""
_LEFT = """
SELECT rolname, rolcanlogin OR EXISTS (SELECT FROM pg_catalog.pg_auth_members m WHERE m.member = r.oid)
FROM pg_catalog.pg_roles r WHERE pg_catalog.starts_with(rolname::text, %s) AND NOT rolsuper ORDER BY pg_catalog.random()
"""
_END_SESSIONS = """
SELECT madlib_mop_calls.end_sessions(pg_catalog.array_agg(pid), 1000)
FROM pg_catalog.pg_stat_activity WHERE usename = %s
"""
_MEMBERSHIPS = """
SELECT g.rolname, o.rolname FROM pg_catalog.pg_auth_members m
JOIN pg_catalog.pg_roles g ON g.oid = m.roleid JOIN pg_catalog.pg_roles r ON r.oid = m.member
LEFT JOIN pg_catalog.pg_roles o ON o.oid = m.grantor WHERE r.rolname = %s
"""
_LOCK_OF_ROLE = """
l.locktype = 'object' AND l.database = 0 AND l.classid = 'pg_catalog.pg_authid'::pg_catalog.regclass
AND l.objid = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = %s)
"""


@dataclass(frozen=True)
class RunLogin:
    """Name and password of a run's login role."""

    role: str
    password: str = field(repr=False)

    def keywords(self) -> dict[str, Any]:
        """Return psycopg2's keywords of this login.

        The password is never sent as it is: while the server is down, another user's program could listen at its port
        and ask for it.
        """
        found = {"user": self.role, "password": self.password}
        return found | protecting(found, libpq_version())  # defence: protected-password = found


def is_superuser(catalog: connection, role: str) -> bool:
    """Return whether a role is a superuser."""
    with catalog.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s", [role])
        found = cursor.fetchone()
        return found is not None and bool(found[0])


def create_login(catalog: connection, run_id: int, caller: str, prefix: str = PREFIX) -> RunLogin | None:
    """Make the login role of a run or a job, a member of the caller's role, with its settings and limits.

    The server gets a SCRAM verifier instead of the password, so statement logs do not contain the password.

    Parameters
    ----------
    catalog : psycopg2 connection
        The catalog session.
    run_id : int
        Or the number of a job.
    caller : str
        The role that defines its rights.
    prefix : str
        Of the role's name: `PREFIX` or `JOB_PREFIX`.

    Returns
    -------
    RunLogin or None
        None for a superuser: then the readers log in like the catalog session.
    """
    if is_superuser(catalog, caller):  # defence: login-of-superusers
        return None
    role = f"{prefix}{_database_oid(catalog)}_{run_id}_{secrets.token_hex(4)}"
    login = RunLogin(role, secrets.token_urlsafe(32))
    verifier = encrypt_password(login.password, login.role, scope=catalog, algorithm="scram-sha-256")
    with catalog.cursor() as cursor:
        free = free_connections(catalog, caller)
        create = sql.SQL(
            "CREATE ROLE {} LOGIN INHERIT NOCREATEDB NOCREATEROLE NOSUPERUSER CONNECTION LIMIT {} PASSWORD {}"
            " VALID UNTIL {} IN ROLE {}"
        )
        limit = sql.Literal(-1 if free is None else free)
        until = sql.Literal(_expiry(cursor))
        _execute_with_retries(
            cursor, create.format(sql.Identifier(role), limit, sql.Literal(verifier), until, sql.Identifier(caller))
        )
        try:
            _copy_settings(cursor, caller, role)  # defence: settings-of-the-caller
            # The queries of the run's sessions must not be visible to other sessions of the caller's role.
            # defence: hidden-activity
            cursor.execute(sql.SQL("ALTER ROLE {} SET track_activities = off").format(sql.Identifier(role)))
        except BaseException:
            drop_login(catalog, role)
            raise
    return login


def renew_login(catalog: connection, role: str) -> None:
    """Extend the role's permission to log in by a minute; open sessions are not affected."""
    with catalog.cursor() as cursor:
        until = sql.Literal(_expiry(cursor))
        cursor.execute(sql.SQL("ALTER ROLE {} VALID UNTIL {}").format(sql.Identifier(role), until))


def free_connections(catalog: connection, role: str) -> int | None:
    """Return the number of further sessions that a role's CONNECTION LIMIT allows, counting its runs' sessions; None
    without a limit."""
    with catalog.cursor() as cursor:
        cursor.execute(_LIMIT, [PREFIX, JOB_PREFIX, role])
        found = cursor.fetchone()
    return None if found is None else max(0, found[0] - found[1])


def check_limit(catalog: connection, role: str, n_readers: int) -> None:
    """Refuse a run whose reader sessions would go beyond the caller's CONNECTION LIMIT. Raises OutOfResources."""
    free = free_connections(catalog, role)
    if free is not None and free < n_readers:
        raise OutOfResources(
            f"the run needs {n_readers} sessions to read its rows, but the CONNECTION LIMIT of role {role} leaves "
            f"{free}",
            hint="Close other sessions of the role, raise its limit, or pack the data into fewer segments.",
        )


def drop_login(catalog: connection, role: str, lock_timeout_ms: int = _LOCK_TIMEOUT_MS) -> None:
    """Revoke a role's rights, end its sessions and drop it; no effect if it does not exist.

    User code in a reader session may have made objects as this role, in open transactions too, and any role may grant
    it something, which locks it, or rights on any number of objects. So these statements have time limits. A failure to
    drop the role is not an error, neither at the end of this run nor in another user's next call, which sweeps: until
    then, only a role without rights and login remains. Commits are asynchronous: if a crash restores the role, the
    sweep drops it.
    """
    name = sql.Identifier(role)
    with catalog.cursor() as cursor:
        cursor.execute("SET lock_timeout = %s; SET synchronous_commit = off", [lock_timeout_ms])
        try:
            with contextlib.suppress(errors.UndefinedObject):
                _execute_with_retries(cursor, sql.SQL("ALTER ROLE {} NOLOGIN").format(name))
            cursor.execute(_END_SESSIONS, [role])  # defence: sessions-of-a-reader
            cursor.execute(_N_OWNED, [role])
            if one_row(cursor)[0] <= _MOST_OBJECTS:
                _attempt(cursor, sql.SQL("DROP OWNED BY {} CASCADE").format(name), 2 * lock_timeout_ms)
            drop = sql.SQL("DROP ROLE {}").format(name)
            if _attempt(cursor, drop, 2 * lock_timeout_ms) is errors.LockNotAvailable:
                end_holders(catalog, _LOCK_OF_ROLE, [role])  # defence: lockers-of-a-role
                _attempt(cursor, drop, 2 * lock_timeout_ms)
            cursor.execute(_MEMBERSHIPS, [role])
            # defence: rights-of-a-left-role
            for granted, grantor in cursor.fetchall():  # memberships remain if the role could not be dropped
                revoke: sql.Composable = sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(granted), name)
                if catalog.server_version >= 160000:  # each grantor's grant is a separate one
                    revoke += sql.SQL(" GRANTED BY {} CASCADE").format(sql.Identifier(grantor))
                _attempt(cursor, revoke)
        finally:
            cursor.execute("RESET lock_timeout; RESET synchronous_commit")


def login_roles(catalog: connection, number: int, prefix: str = PREFIX) -> list[str]:
    """Return the login roles of a run of this database, or of a job."""
    with catalog.cursor() as cursor:
        cursor.execute(_LEFT, [f"{prefix}{_database_oid(catalog)}_{number}_"])
        return [role for role, _ in cursor.fetchall() if re.fullmatch(prefix + _NUMBERS, role)]


def sweep_logins(catalog: connection, is_live: Callable[[int], bool], prefix: str = PREFIX) -> None:
    """Drop the login roles of this database's runs whose driver is gone, and those of databases that are gone.

    Parameters
    ----------
    catalog : psycopg2 connection
    is_live : callable
        Returns whether a run_id has a running driver; for `JOB_PREFIX`, whether a job has a running worker.
    prefix : str
        `PREFIX` or `JOB_PREFIX`.
    """
    own = _database_oid(catalog)
    with catalog.cursor() as cursor:
        cursor.execute(_LEFT, [prefix])
        roles = cursor.fetchall()
        cursor.execute("SELECT oid::bigint FROM pg_database")
        databases = {row[0] for row in cursor.fetchall()}
    n_left = 0
    for role, has_rights in roles:
        ours = re.fullmatch(prefix + _NUMBERS, role)
        if ours is None:
            continue
        database, run_id = map(int, ours.groups())
        n_left += not has_rights
        if n_left > _MOST_LEFT and not has_rights:  # defence: roles-that-are-left
            continue
        if database not in databases or (database == own and not is_live(run_id)):
            drop_login(catalog, role, _SWEEP_LOCK_TIMEOUT_MS)


def _attempt(cursor: Cursor, step: sql.Composable, limit_ms: int = 0) -> type[psycopg2.DatabaseError] | None:
    """Execute a statement about roles; return the class of the error if it fails, None if it does not.

    The statement fails after ``limit_ms``; 0 is no limit.
    """
    try:
        # defence: time-to-drop-a-role = cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET statement_timeout = %s", [limit_ms])
        _execute_with_retries(cursor, step)
    except psycopg2.DatabaseError as error:  # defence: errors-of-a-drop = errors.UndefinedObject
        if cursor.connection.closed:
            raise
        return type(error)
    finally:
        if not cursor.connection.closed:
            cursor.execute("RESET statement_timeout")
    return None


def _expiry(cursor: Cursor) -> str:
    cursor.execute("SELECT (now() + %s * interval '1 second')::text", [_VALID_S])
    return str(one_row(cursor)[0])


def _execute_with_retries(cursor: Cursor, step: sql.Composable) -> None:
    """Execute a statement about roles; retry if another one has just changed the same catalog row.

    PostgreSQL does not wait for such a change; it fails with "tuple concurrently updated" (XX000).
    """
    for attempt in range(_TRIES):
        try:
            cursor.execute(step)
            return
        except errors.InternalError_ as error:
            if "concurrently" not in str(error) or attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S)


def _copy_settings(cursor: Cursor, caller: str, role: str) -> None:
    """Copy the caller's ALTER ROLE ... SET settings to the run's role, for this database and for all.

    FROM CURRENT, in a transaction that sets each for itself alone, copies lists as they are; the few that cannot be set
    in a session are written as they stand. A setting that the server rejects has no effect for the caller either.
    """
    cursor.execute(_SETTINGS, [caller, _NOT_COPIED])
    for in_database, name, value in cursor.fetchall():
        where: sql.Composable = sql.SQL("")
        if in_database:
            cursor.execute("SELECT pg_catalog.current_database()::text")
            where = sql.SQL("IN DATABASE {}").format(sql.Identifier(one_row(cursor)[0]))
        parameter = sql.SQL(".").join(map(sql.Identifier, name.split(".")))
        alter = sql.SQL("ALTER ROLE {} {} SET {}").format(sql.Identifier(role), where, parameter)
        cursor.execute("BEGIN")
        try:
            cursor.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])
            cursor.execute(sql.SQL("{} FROM CURRENT").format(alter))
            cursor.execute("COMMIT")
        except psycopg2.DatabaseError:
            cursor.execute("ROLLBACK")
            _attempt(cursor, sql.SQL("{} TO {}").format(alter, sql.Literal(value)))


def _database_oid(catalog: connection) -> int:
    with catalog.cursor() as cursor:
        cursor.execute("SELECT oid::bigint FROM pg_database WHERE datname = current_database()")
        return int(one_row(cursor)[0])


