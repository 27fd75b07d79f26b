"""The login role of a run: a member of the caller's role and nothing else, whose password never leaves memory.

Roles belong to the whole server, runs to one database: a role's name tells both, and each database's drivers sweep
their own dead runs' roles, and those of databases that are no more.
"""

import contextlib
import hashlib
import secrets
from dataclasses import dataclass, field

from psycopg2 import errors, sql
from psycopg2.extensions import connection, encrypt_password

PREFIX = "madlib_mop_run_"
_VALID_MINUTES = 10
_LOCK_TIMEOUT_MS = 2000
_HINDRANCES = (errors.UndefinedObject, errors.LockNotAvailable, errors.DependentObjectsStillExist)


@dataclass(frozen=True)
class RunLogin:
    """Name and password of a run's login role."""

    role: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Token:
    """The secret by which one worker session may write the record; it is of no use in another process of the server."""

    text: str = field(repr=False)
    digest: bytes

    @classmethod
    def draw(cls, pid: int) -> "Token":
        """Draw the token of the session with this process number; ``digest`` is what the record keeps of it."""
        text = secrets.token_urlsafe(32)
        return cls(text, hashlib.sha256(f"{pid}:{text}".encode()).digest())


def create_login(catalog: connection, run_id: int, caller: str) -> RunLogin:
    """Make the login role of a run, a member of the caller's role.

    The server is given a SCRAM verifier, not the password, so that no log of statements holds it.

    Parameters
    ----------
    catalog : psycopg2 connection
        The catalog session.
    run_id : int
    caller : str
        The role whose rights the run has.
    """
    role = f"{PREFIX}{_database_oid(catalog)}_{run_id}_{secrets.token_hex(4)}"
    login = RunLogin(role, secrets.token_urlsafe(32))
    verifier = encrypt_password(login.password, login.role, scope=catalog, algorithm="scram-sha-256")
    with catalog.cursor() as cursor:
        cursor.execute(
            sql.SQL("CREATE ROLE {} LOGIN INHERIT NOCREATEDB NOCREATEROLE NOSUPERUSER PASSWORD {} IN ROLE {}").format(
                sql.Identifier(login.role), sql.Literal(verifier), sql.Identifier(caller)
            )
        )
    renew_login(catalog, login.role)
    return login


def renew_login(catalog: connection, role: str) -> None:
    """Let the role log in for some minutes more; its open sessions do not end then."""
    with catalog.cursor() as cursor:
        cursor.execute("SELECT (now() + %s * interval '1 minute')::text", [_VALID_MINUTES])
        until = cursor.fetchone()[0]
        cursor.execute(sql.SQL("ALTER ROLE {} VALID UNTIL {}").format(sql.Identifier(role), sql.Literal(until)))


def drop_login(catalog: connection, role: str) -> None:
    """Take a role's rights, end its sessions and drop it; nothing happens if it is not there.

    User code in a worker session may have made objects as this role, in open transactions too. What cannot be done at
    once, because of these, the next sweep tries again: a role without rights and login is all that stays till then.
    Nothing waits for the disk: what a crash brings back, the sweep drops.
    """
    name = sql.Identifier(role)
    with catalog.cursor() as cursor:
        steps = [sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(g), name) for g in _memberships(cursor, role)]
        steps += [
            sql.SQL("ALTER ROLE {} NOLOGIN").format(name),
            sql.SQL("SELECT madlib_mop.end_session(pid, 2000) FROM pg_stat_activity WHERE usename = {}").format(
                sql.Literal(role)
            ),
            sql.SQL("DROP OWNED BY {} CASCADE").format(name),
            sql.SQL("DROP ROLE {}").format(name),
        ]
        cursor.execute("SET lock_timeout = %s; SET synchronous_commit = off", [_LOCK_TIMEOUT_MS])
        try:
            for step in steps:
                with contextlib.suppress(*_HINDRANCES):
                    cursor.execute(step)
        finally:
            cursor.execute("RESET lock_timeout; RESET synchronous_commit")


def sweep_logins(catalog: connection, is_live) -> None:
    """Drop the login roles of this database's runs whose driver is gone, and those of databases that are gone.

    Parameters
    ----------
    catalog : psycopg2 connection
    is_live : callable
        Tells of a run_id whether a driver works on it now.
    """
    own = _database_oid(catalog)
    with catalog.cursor() as cursor:
        cursor.execute("SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s) AND NOT rolsuper", [PREFIX])
        roles = [row[0] for row in cursor.fetchall()]
        cursor.execute("SELECT oid::bigint FROM pg_database")
        databases = {row[0] for row in cursor.fetchall()}
    for role in roles:
        numbers = role[len(PREFIX) :].split("_")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers[:2]):
            continue
        database, run_id = map(int, numbers[:2])
        if database not in databases or (database == own and not is_live(run_id)):
            drop_login(catalog, role)


def _database_oid(catalog: connection) -> int:
    with catalog.cursor() as cursor:
        cursor.execute("SELECT oid::bigint FROM pg_database WHERE datname = current_database()")
        return cursor.fetchone()[0]


def _memberships(cursor, role: str) -> list[str]:
    cursor.execute(
        "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid"
        " JOIN pg_roles r ON r.oid = m.member WHERE r.rolname = %s",
        [role],
    )
    return [row[0] for row in cursor.fetchall()]
