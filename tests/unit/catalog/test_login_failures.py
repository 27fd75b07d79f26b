"""Promise 8: a rejected login gets an error with its reason and the solution."""

import pytest

from madlib_mop.catalog.sessions.login_failures import LoginFailure, diagnose

AT = 'connection to server at "127.0.0.1", port 5432 failed: FATAL:  '
LINE = "host all all 127.0.0.1/32 scram-sha-256"
SAID = {  # messages of PostgreSQL 15's server and libpq
    LoginFailure.NO_ENTRY: 'no pg_hba.conf entry for host "127.0.0.1", user "a", database "d", no encryption',
    LoginFailure.REJECTED: 'pg_hba.conf rejects connection for host "127.0.0.1", user "a", database "d"',
    LoginFailure.WRONG_PASSWORD: 'password authentication failed for user "a"',
    LoginFailure.OTHER_METHOD: 'Ident authentication failed for user "a"',
    LoginFailure.NO_ROLE: 'role "a" does not exist',
    LoginFailure.NO_LOGIN: 'role "a" is not permitted to log in',
    LoginFailure.ROLE_FULL: 'too many connections for role "a"',
    LoginFailure.DATABASE_FULL: 'too many connections for database "d"',
    LoginFailure.SERVER_FULL: "sorry, too many clients already",
    LoginFailure.NO_DATABASE: 'database "d" does not exist',
    LoginFailure.CLOSED_DATABASE: 'database "d" is not currently accepting connections',
    LoginFailure.NO_CONNECT_RIGHT: 'permission denied for database "d"',
    LoginFailure.NOT_UP: "the database system is starting up",
    LoginFailure.UNREACHABLE: "Connection refused",
    LoginFailure.UNKNOWN: "terminating connection due to unexpected postmaster exit",
}
WANTED = {
    LoginFailure.NO_ENTRY: f"Add the line `{LINE}` to pg_hba.conf",
    LoginFailure.REJECTED: "rejects this login",
    LoginFailure.WRONG_PASSWORD: "VALID UNTIL",
    LoginFailure.OTHER_METHOD: "another authentication method",
    LoginFailure.NO_ROLE: "was dropped",
    LoginFailure.NO_LOGIN: "NOLOGIN",
    LoginFailure.ROLE_FULL: "ALTER ROLE ... CONNECTION LIMIT",
    LoginFailure.DATABASE_FULL: "ALTER DATABASE ... CONNECTION LIMIT",
    LoginFailure.SERVER_FULL: "max_connections",
    LoginFailure.NO_DATABASE: "dropped or renamed",
    LoginFailure.CLOSED_DATABASE: "ALLOW_CONNECTIONS true",
    LoginFailure.NO_CONNECT_RIGHT: "GRANT CONNECT",
    LoginFailure.NOT_UP: "until the server is up",
    LoginFailure.UNREACHABLE: "listen_addresses",
    LoginFailure.UNKNOWN: "server's log",
}
PASSING = {"ROLE_FULL", "DATABASE_FULL", "SERVER_FULL", "NOT_UP", "UNREACHABLE", "UNKNOWN"}


@pytest.mark.parametrize("failure", SAID, ids=lambda failure: failure.name)
def test_a_reason_has_its_own_hint(failure):
    found = diagnose(AT + SAID[failure], None, LINE)
    assert found.failure is failure
    assert WANTED[failure] in found.hint
    assert found.may_pass == (failure.name in PASSING)
    if failure not in (LoginFailure.NO_ENTRY, LoginFailure.REJECTED, LoginFailure.WRONG_PASSWORD,
                       LoginFailure.OTHER_METHOD):  # fmt: skip
        assert "pg_hba.conf" not in found.hint


@pytest.mark.parametrize(
    "sqlstate, failure",
    [("28P01", LoginFailure.WRONG_PASSWORD), ("53300", LoginFailure.SERVER_FULL), ("57P03", LoginFailure.NOT_UP),
     ("3D000", LoginFailure.NO_DATABASE), ("28000", LoginFailure.UNKNOWN), (None, LoginFailure.UNKNOWN)],
)  # fmt: skip
def test_words_in_another_language_leave_the_sqlstate(sqlstate, failure):
    assert diagnose("die Anmeldung ist gescheitert", sqlstate, LINE).failure is failure
