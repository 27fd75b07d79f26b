"""The check of the workers' login: a role with a password, over 127.0.0.1, like a run's login role."""

import secrets
from collections.abc import Iterator

import psycopg2
import psycopg2.errors
from psycopg2 import sql
from psycopg2.extensions import encrypt_password

from madlib_mop.cli.doctor.context import CheckContext, message_of
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.engines.sessions.login import RunLogin
from madlib_mop.errors import read_server_error

_LINE = "host all all 127.0.0.1/32 scram-sha-256"


def check(context: CheckContext) -> Iterator[Finding]:
    """Create a temporary role, log in as it, and drop it."""
    if not context.is_superuser:
        yield Finding(
            "worker login", CheckState.SKIP, f"role {context.role} is not a superuser and cannot create a role"
        )
        return
    if not context.is_local:
        yield Finding("worker login", CheckState.SKIP, "the server is on another machine; run the doctor there")
        return
    role, password = f"madlib_mop_doctor_{secrets.token_hex(4)}", secrets.token_urlsafe(24)
    verifier = encrypt_password(password, role, scope=context.session, algorithm="scram-sha-256")
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(verifier))
    try:
        with context.session.cursor() as cursor:
            cursor.execute(create)
            try:
                error = _try(context, role, password)
                trusting = error is None and _try(context, role, "not the password") is None
            finally:
                cursor.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    except psycopg2.errors.ReadOnlySqlTransaction as refused:
        found = f"not tried with a temporary role: {message_of(refused)}"
        mend = "A standby cannot train. On another server: default_transaction_read_only must be off for runs."
        yield Finding("worker login", CheckState.SKIP, found, mend)
        return
    except psycopg2.Error as refused:
        found = f"not tried with a temporary role: {message_of(refused)}"
        yield Finding("worker login", CheckState.FAIL, found, read_server_error(refused).hint)
        return
    yield _finding(context, error, trusting)


def _try(context: CheckContext, role: str, password: str) -> str | None:
    """Log in over 127.0.0.1; return the reason of a failure, or None."""
    try:
        psycopg2.connect(
            host="127.0.0.1",
            port=context.setting("port"),
            dbname=context.database,
            connect_timeout=10,
            **RunLogin(role, password).keywords(),
        ).close()
    except psycopg2.OperationalError as error:
        return str(error).strip()
    return None


def _finding(context: CheckContext, error: str | None, trusting: bool) -> Finding:
    file = context.setting("hba_file")
    reload = "Then: SELECT pg_reload_conf();"
    if trusting:
        found = f"{file} trusts 127.0.0.1: any user of this machine can log in as any role, superusers included"
        return Finding("worker login", CheckState.WARN, found, f"Insert this line above that one: {_LINE}   {reload}")
    if error is None:
        return Finding("worker login", CheckState.OK, "a role with a password can log in over 127.0.0.1")
    if "no pg_hba.conf entry" in error:
        mend = f"Add this line to {file}: {_LINE}   {reload}"
    elif "onnection refused" in error:
        listen = context.setting("listen_addresses")
        mend = f"listen_addresses is '{listen}': ALTER SYSTEM SET listen_addresses = 'localhost'; then restart it."
    elif "too many" in error or "remaining connection slots" in error:
        mend = "Raise max_connections, or wait until other sessions end."
    else:
        mend = f"Insert this line above the others for 127.0.0.1 in {file}: {_LINE}   {reload}"
    return Finding("worker login", CheckState.FAIL, error, mend)
