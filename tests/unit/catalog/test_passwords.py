"""Which methods of a login may get a password, by the server's address and TLS; without a server."""

import pytest

from madlib_mop.catalog.sessions.passwords import HINT, is_refused, protecting

TCP = {"host": "db.example", "password": "x"}


def test_without_a_proof_the_password_goes_by_scram_only():
    assert protecting(TCP, 160000) == {"require_auth": "!password,!md5"}
    assert protecting(TCP, 180006, never=("gss", "sspi")) == {"require_auth": "!gss,!sspi,!password,!md5"}
    assert protecting(TCP, 160000, may_be_let_in=False) == {"require_auth": "scram-sha-256"}
    for mode in ("prefer", "require", "verify-ca"):
        assert protecting({**TCP, "sslmode": mode}, 160000) == {"require_auth": "!password,!md5"}


@pytest.mark.parametrize("where", [{"host": "db.example"}, {"host": "a,b"}, {"hostaddr": "10.1.2.3"},
                                   {"host": "/run", "hostaddr": "10.1.2.3"}])  # fmt: skip
def test_a_server_that_tls_has_proven_may_ask_in_any_way(where):
    """For LDAP, PAM and RADIUS, a server must ask for the password itself."""
    proven = {**where, "sslmode": "verify-full", "password": "x"}
    assert protecting(proven, 160000) == protecting(proven, 160000, may_be_let_in=False) == {}
    assert protecting(proven, 160000, never=("gss",)) == {"require_auth": "!gss"}


@pytest.mark.parametrize("host", ["/run/postgresql", "@abstract", "", "a,/run", "a,"])
def test_a_socket_is_no_proof(host):
    """libpq uses no TLS there, whatever sslmode is."""
    given = {"host": host, "sslmode": "verify-full", "password": "x"}
    assert protecting(given, 160000) == {"require_auth": "!password,!md5"}


def test_what_an_administrator_has_chosen_stays():
    assert protecting({**TCP, "require_auth": "password"}, 160000, may_be_let_in=False) == {}


def test_an_old_libpq_binds_the_password_to_the_tls_connection():
    assert protecting({**TCP, "sslmode": "require"}, 150000) == {"channel_binding": "require"}
    assert protecting({"host": "db.example", "sslmode": "require"}, 150000) == {}
    assert protecting(TCP, 150000) == {}


def test_the_reason_of_libpq_is_known():
    assert is_refused('authentication method requirement "scram-sha-256" failed: server requested a hashed password')
    assert not is_refused("password authentication failed") and "verify-full" in HINT
