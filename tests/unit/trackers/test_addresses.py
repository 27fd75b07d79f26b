"""Addresses of trackers: no password in arguments and outputs, and one error for what cannot be reached."""

import pytest

from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.trackers.addresses import is_database, reach_database, refuse_password, shown


@pytest.mark.parametrize(
    "address",
    ["http://ann:secret@host:5000", "postgresql+psycopg2://ann:secret@host/db", "https://:secret@host",
     "mysql://ann:a/secret@b@host", "postgresql://host/db?user=ann&password=secret", "https://host?api_token=secret"],
)  # fmt: skip
def test_a_password_in_an_argument_is_refused_and_not_repeated(address):
    with pytest.raises(InvalidParameter, match="--storage must not have a password") as raised:
        refuse_password(address, "--storage", "Set OPTUNA_STORAGE.")
    assert "secret" not in str(raised.value) and "host" in str(raised.value)


@pytest.mark.parametrize(
    "address", ["http://host:5000", "sqlite:///a.db", "postgresql://ann@host/db", "a.journal", "/a/b", "databricks"]
)
def test_other_addresses_are_accepted(address):
    refuse_password(address, "--storage", "")
    assert shown(address) == address.replace("ann@", "")


def test_no_message_has_users_and_passwords_of_addresses():
    assert shown("cannot reach https://ann:secret@host/x and y\x1b[31m") == "cannot reach https://host/x and y\\x1b[31m"
    assert shown("x://a:p@q@host/db?PassWord=p&sslmode=on") == "x://host/db?PassWord=***&sslmode=on"


@pytest.mark.parametrize(
    ("address", "expected"),
    [("sqlite:///a", True), ("postgresql+psycopg2://h/d", True), ("http://h", False), ("/a/b", False), ("a.db", False)],
)
def test_databases_are_recognized(address, expected):
    assert is_database(address) is expected


@pytest.mark.parametrize(
    "address",
    ["sqlite:////no/such/directory/a.db", "postgresql+psycopg2://ann:secret@127.0.0.1:1/x", "mysql+nodriver://h/d", "://"],
)
def test_a_database_that_cannot_be_reached_is_one_error(address):
    with pytest.raises(NotReady, match="--storage cannot be reached") as raised:
        reach_database(address, "--storage")
    assert "secret" not in str(raised.value) and "\n" not in raised.value.message


def test_a_database_that_is_there_is_reached(tmp_path):
    reach_database(f"sqlite:///{tmp_path}/a.db", "--storage")
    assert (tmp_path / "a.db").exists()
