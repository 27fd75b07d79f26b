"""What a role predicts is recorded for a challenger only if the role has agreed: a network can hand its inputs on."""

import numpy as np
import pytest

from tests.helpers.inference import User
from tests.helpers.registry import WIDTH, write_numbers
from tests.helpers.security.attacks import user

OWNER, PREDICTS, OTHER = (f"{word}_of_challengers" for word in ("owner", "predicts", "other"))
PRIVATE = [[5.0, 7.0, 9.0], [1.0, 2.0, 3.0]]
PREDICT = "SELECT madlib_mop.predict('{}@champion', NULL, x) FROM private"


@pytest.fixture(scope="module")
def models(db, keras):
    """A model whose challenger returns its inputs; a role that may predict with it, with a private table."""
    user(db, OWNER)
    for role in (PREDICTS, OTHER):
        db.cluster.create_role(role)
    owner = User(db.connect(OWNER))
    owner.rows(f"SET search_path = {OWNER}")
    write_numbers(owner, keras, "numbers", [1.0])
    identity = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, use_bias=False)])
    identity.set_weights([np.eye(WIDTH, dtype=np.float32)])
    owner.write_models("identity", {1: identity})
    for name in ("bait", "other"):
        owner.rows("SELECT madlib_mop.register(%s, 'numbers'), madlib_mop.register(%s, 'identity', 1)", name, name)
        owner.rows("SELECT madlib_mop.set_alias(%s, 'champion', 1)", name)
        owner.rows("SELECT madlib_mop.set_challenger(%s, 'champion', 2, 1)", name)
        for role in (PREDICTS, OTHER):
            db.rows("SELECT madlib_mop.grant_model(%s, %s, 'predict')", [name, role])
    db.rows(f"CREATE SCHEMA {PREDICTS} AUTHORIZATION {PREDICTS}")
    victim = User(db.connect(PREDICTS))
    victim.rows(f"SET search_path = {PREDICTS}")
    victim.rows("CREATE TABLE private (x real[])")
    for row in PRIVATE:
        victim.rows("INSERT INTO private VALUES (%s)", row)
    yield db, owner, victim
    owner.connection.close()
    victim.connection.close()


def recorded(owner: User, name: str) -> list[list[float]]:
    """Return the outputs of the challenger that the owner of the model sees."""
    batches = owner.rows("SELECT challenger_outputs FROM madlib_mop.challenger_batch WHERE name = %s", name)
    return sorted(row for (rows,) in batches for row in rows)


def test_the_owner_of_a_model_sees_no_inputs_of_a_role_that_has_not_agreed(models):
    _, owner, victim = models
    assert victim.rows(PREDICT.format("bait")) == [([1.0],), ([1.0],)]
    victim.rows(PREDICT.format("bait"))  # it would write what the first one left
    assert recorded(owner, "bait") == []


def test_a_role_agrees_for_one_model_and_withdraws_it(models):
    _, owner, victim = models
    victim.rows("SELECT madlib_mop.allow_recording('other')")
    try:
        victim.rows(PREDICT.format("other") + " LIMIT 1")
        assert recorded(owner, "other") == [PRIVATE[0]]
        assert owner.rows("SELECT name, role::text FROM madlib_mop.recording_consent") == [("other", PREDICTS)]
        victim.rows(PREDICT.format("bait") + " LIMIT 1")
        assert recorded(owner, "bait") == []
    finally:
        victim.rows("SELECT madlib_mop.forbid_recording('other')")
    victim.rows(PREDICT.format("other") + " LIMIT 1")
    assert recorded(owner, "other") == [PRIVATE[0]]


def test_what_the_owner_predicts_is_recorded(models):
    _, owner, _ = models
    before = recorded(owner, "bait")
    owner.rows("SELECT madlib_mop.predict('bait@champion', NULL, ARRAY[8, 8, 8])")
    assert recorded(owner, "bait") == sorted([*before, [8.0] * WIDTH])


def test_another_role_agrees_for_nobody_else(models):
    """The function of a victim predicts with the victim's rights, whoever calls it; a group agrees for no member."""
    db, owner, victim = models
    victim.rows(
        "CREATE FUNCTION secret() RETURNS SETOF real[] LANGUAGE sql SECURITY DEFINER AS"
        f" $$SELECT madlib_mop.predict('other@champion', NULL, x)::real[] FROM {PREDICTS}.private$$;"
        f" GRANT USAGE ON SCHEMA {PREDICTS} TO {OTHER}"
    )
    before = recorded(owner, "other")
    db.rows(f"GRANT {OTHER} TO {PREDICTS}")
    other = User(db.connect(OTHER))
    other.rows("SELECT madlib_mop.allow_recording('other')")
    try:
        assert len(other.rows(f"SELECT {PREDICTS}.secret()")) == 2
        other.rows("SELECT madlib_mop.predict('other@champion', NULL, ARRAY[6, 6, 6])")
        victim.rows(PREDICT.format("other"))
        assert recorded(owner, "other") == sorted([*before, [6.0] * WIDTH])
        for statement in (
            f"INSERT INTO madlib_mop.recording_change (name, agrees, role) VALUES ('other', true, '{PREDICTS}')",
            f"INSERT INTO madlib_mop.recording_consent (name, role) VALUES ('other', '{PREDICTS}')",
            "DELETE FROM madlib_mop.recording_consent",
            "DO $$ BEGIN LOCK TABLE madlib_mop.recording_consent IN ROW EXCLUSIVE MODE; END $$",
        ):
            assert "permission denied for table" in other.refused(other.rows, statement).message, statement
    finally:
        db.rows(f"REVOKE {OTHER} FROM {PREDICTS}")
        other.rows("SELECT madlib_mop.forbid_recording('other')")
        other.connection.close()


def test_a_name_that_a_role_may_not_use_is_refused(models):
    db, _, _ = models
    stranger = "stranger_of_challengers"
    user(db, stranger)
    mine = User(db.connect(stranger))
    for name in ("bait", "nothing"):
        error = mine.refused(mine.rows, "SELECT madlib_mop.allow_recording(%s)", name)
        assert (error.sqlstate, error.message) == (
            "22023",
            f"allow_recording: there is no registered model of this name that you may use. Received: '{name}'",
        )
    insert = "INSERT INTO madlib_mop.recording_change (name, agrees) VALUES ('bait', true)"
    assert mine.refused(mine.rows, insert).sqlstate == "22023"
    mine.connection.close()
