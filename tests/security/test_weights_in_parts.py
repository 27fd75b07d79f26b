"""Any role that may create tables in a schema could make one with the name of another role's parts of weights."""

import pytest

from tests.helpers.inference import User
from tests.helpers.registry import X, write_numbers
from tests.helpers.security.attacks import refusal_of, user

OWNER, ATTACKER = "owner_of_parts", "attacker_of_parts"
CODE = """
CREATE TABLE {attacker}.seen (who name);
GRANT INSERT ON {attacker}.seen TO PUBLIC; GRANT USAGE ON SCHEMA {attacker} TO PUBLIC;
CREATE FUNCTION {attacker}.spy() RETURNS bytea LANGUAGE sql VOLATILE AS
    'INSERT INTO {attacker}.seen VALUES (current_user) RETURNING NULL::bytea';
CREATE VIEW common.numbers_weights WITH (security_invoker = true) AS
    SELECT 1 AS mst_key, 0 AS part, {attacker}.spy() AS data;
GRANT SELECT ON common.numbers_weights TO PUBLIC
"""


@pytest.fixture(scope="module")
def models(db, keras):
    for role in (OWNER, ATTACKER):
        user(db, role)
    db.rows(f"CREATE SCHEMA common; GRANT USAGE, CREATE ON SCHEMA common TO {OWNER}, {ATTACKER}")
    owner = User(db.connect(OWNER))
    owner.rows("SET search_path = common")
    write_numbers(owner, keras, "numbers", [1.0, 2.0])
    owner.rows("UPDATE numbers SET model_weights = NULL WHERE mst_key = 1")
    owner.connection.close()
    for statement in CODE.format(attacker=ATTACKER).split(";\n"):
        db.rows(statement, role=ATTACKER)
    return db


@pytest.mark.parametrize(
    "statement",
    [
        f"SELECT madlib_mop.predict('common.numbers', 1, {X})",
        "SELECT madlib_mop.register('spied', 'common.numbers', 1)",
        "SELECT madlib_mop.make_ensemble('common.numbers', 'common.valid', 'common.together', mst_keys => '{1}')",
        "SELECT madlib.load_keras_model('common.arch', (SELECT model_arch FROM common.numbers LIMIT 1),"
        " weights => 'common.numbers', weights_key => 1)",
    ],
)
def test_parts_of_another_role_are_not_read(models, statement):
    refusal_of(models, statement, role=OWNER)
    assert models.rows(f"SELECT * FROM {ATTACKER}.seen") == []


def test_parts_of_the_same_owner_are_read(models):
    models.rows("DROP VIEW common.numbers_weights", role=ATTACKER)
    models.rows(
        "CREATE TABLE common.numbers_weights AS SELECT 1 AS mst_key, 0 AS part, model_weights AS data"
        " FROM common.numbers WHERE mst_key = 2",
        role=OWNER,
    )
    assert models.value(f"SELECT madlib_mop.predict('common.numbers', 1, {X})", role=OWNER) == [2.0]
