"""The login role of a run: a member of the caller's role and nothing else, whose password never leaves memory."""

import secrets
from dataclasses import dataclass, field

from psycopg2 import sql
from psycopg2.extensions import connection, encrypt_password

PREFIX = "madlib_mop_run_"
_VALID_MINUTES = 10


@dataclass(frozen=True)
class RunLogin:
    """Name and password of a run's login role, and the token by which its sessions may write the record."""

    role: str
    password: str = field(repr=False)
    token: str = field(repr=False)


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
    login = RunLogin(f"{PREFIX}{run_id}_{secrets.token_hex(4)}", secrets.token_urlsafe(32), secrets.token_urlsafe(32))
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
    """End the role's sessions and drop it; nothing happens if it is not there."""
    with catalog.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE usename = %s", [role])
        cursor.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


def sweep_logins(catalog: connection, is_live) -> None:
    """Drop the login roles of runs whose driver is gone.

    Parameters
    ----------
    catalog : psycopg2 connection
    is_live : callable
        Tells of a run_id whether a driver works on it now.
    """
    with catalog.cursor() as cursor:
        cursor.execute(
            "SELECT rolname FROM pg_roles WHERE rolname LIKE %s AND NOT rolsuper", [PREFIX.replace("_", r"\_") + "%"]
        )
        roles = [row[0] for row in cursor.fetchall()]
    for role in roles:
        number = role[len(PREFIX) :].split("_")[0]
        if number.isdigit() and not is_live(int(number)):
            drop_login(catalog, role)
