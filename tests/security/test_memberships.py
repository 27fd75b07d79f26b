"""Promise 7: a run is visible to roles with its owner's rights, which since PostgreSQL 16 not every member has."""

import pytest

from tests.helpers.security.attacks import fingerprint, record_run, refusal_of, user

ALICE, MEMBER, ALICES = "alice", "a_member", 61
CONTROLS = ("resume(%s)", "cancel(%s)", "replay(%s, 'again')", "drop_run(%s)")


@pytest.fixture(scope="module")
def runs(db):
    for role in (ALICE, MEMBER):
        user(db, role)
    record_run(db, ALICES, ALICE)
    return db


@pytest.fixture
def grant(runs):
    """Grant the membership, with the options of PostgreSQL 16."""
    options = runs.connect().info.server_version >= 160000

    def give(with_options: str = "") -> None:
        if with_options and not options:
            pytest.skip("memberships have no options before PostgreSQL 16")
        runs.rows(f"GRANT {ALICE} TO {MEMBER} {with_options}")

    yield give
    runs.rows(f"REVOKE {ALICE} FROM {MEMBER}")


def seen(db) -> list[tuple]:
    query = "SELECT (SELECT count(*) FROM madlib_mop.run), (SELECT count(*) FROM madlib_mop.model_state)"
    return db.rows(query, role=MEMBER)


@pytest.mark.parametrize("options", ["", "WITH INHERIT FALSE, SET TRUE", "WITH INHERIT TRUE, SET FALSE"])
def test_a_member_that_has_or_can_take_the_owners_rights_sees_his_runs(runs, grant, options):
    grant(options)
    assert seen(runs) == [(1, 1)]
    error = refusal_of(runs, "SELECT madlib_mop.resume(%s)", [ALICES], MEMBER)
    assert error.sqlstate == "42501"  # the run is visible, but the output tables would belong to the owner


@pytest.mark.parametrize("options", ["WITH INHERIT FALSE, SET FALSE", "WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"])
def test_a_member_without_the_owners_rights_sees_and_controls_nothing(runs, grant, options):
    grant(options)
    before = fingerprint(runs, ALICES)
    assert seen(runs) == [(0, 0)]
    for control in CONTROLS:
        error = refusal_of(runs, f"SELECT madlib_mop.{control}", [ALICES], MEMBER)
        assert "you have no run" in error.message, control
    for function in ("grant_read", "revoke_read"):
        error = refusal_of(runs, f"SELECT madlib_mop.{function}(%s, %s)", [MEMBER, ALICE], MEMBER)
        assert error.sqlstate == "42501"
    change = f"INSERT INTO madlib_mop.viewer_change VALUES ('{ALICE}', '{MEMBER}', true)"
    error = refusal_of(runs, change, role=MEMBER)
    assert error.sqlstate == "42501"
    assert fingerprint(runs, ALICES) == before
