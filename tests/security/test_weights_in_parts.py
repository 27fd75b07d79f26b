"""Any role that may create tables in a schema could make one with the name of another role's parts of weights."""

import pytest

from tests.helpers.inference import User
from tests.helpers.registry import X, write_numbers
from tests.helpers.security.attacks import SOFTMAX, refusal_of, user
from tests.helpers.training import ADAM, load_digits, pack, select_configurations

OWNER, ATTACKER = "owner_of_parts", "attacker_of_parts"
#: The sequence counts the calls, also those whose transaction is rolled back.
CODE = """
CREATE SEQUENCE {attacker}.seen;
GRANT USAGE ON SEQUENCE {attacker}.seen TO PUBLIC; GRANT USAGE ON SCHEMA {attacker} TO PUBLIC;
CREATE FUNCTION {attacker}.spy() RETURNS bytea LANGUAGE sql VOLATILE AS
    $$SELECT nextval('{attacker}.seen'); SELECT NULL::bytea$$;
CREATE VIEW common.numbers_weights WITH (security_invoker = true) AS
    SELECT 1 AS mst_key, 0 AS part, {attacker}.spy() AS data;
GRANT SELECT ON common.numbers_weights TO PUBLIC
"""
#: Takes what a run writes, as the role that has called it.
TRAP = """
CREATE TABLE common.trained_weights (mst_key integer, part integer, data bytea);
CREATE FUNCTION {attacker}.take() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM nextval('{attacker}.seen'); RETURN NEW; END$$;
CREATE TRIGGER take BEFORE INSERT ON common.trained_weights FOR EACH ROW EXECUTE FUNCTION {attacker}.take();
GRANT ALL ON common.trained_weights TO PUBLIC
"""
#: More than 1 MB of weights.
DENSE = '{"class_name": "Dense", "config": {"units": 4000}}, '
LARGE = SOFTMAX.replace('{"class_name": "Dense"', DENSE + '{"class_name": "Dense"')


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
    assert n_seen(models) == 0


def n_seen(db):
    """Return how often code of the attacker has run."""
    return db.value(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {ATTACKER}.seen")


def test_weights_are_not_written_into_a_table_of_another_role(models):
    """A warm start writes into the tables that are there; most have no table of parts, so any role could make one."""
    db = models
    load_digits(db, 40, 20)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [LARGE])
    pack(db, 1)
    select_configurations(db, "mst", [(1, ADAM, "batch_size=40, epochs=1")])
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {OWNER}")
    call = "SELECT madlib.madlib_keras_fit_multiple_model('train', 'common.trained', 'mst', 1, warm_start := {})"
    db.rows(call.format("false"), role=OWNER)
    for statement in TRAP.format(attacker=ATTACKER).split(";\n"):
        db.rows(statement, role=ATTACKER)
    db.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('weights_field_mb', '1')")
    error = refusal_of(db, call.format("true"), role=OWNER)
    assert error.sqlstate == "42P07" and "trained_weights" in error.message and "madlib_mop.resume" in error.hint
    assert n_seen(db) == 0 and db.value("SELECT count(*) FROM common.trained_weights", role=ATTACKER) == 0
    db.rows("DROP TABLE common.trained_weights", role=ATTACKER)
    db.rows(f"SELECT madlib_mop.resume({error.hint.split('resume(')[1].split(',')[0].split(')')[0]})", role=OWNER)
    assert db.value("SELECT count(*) FROM common.trained_weights", role=OWNER) == 2
    assert db.value("SELECT model_weights IS NULL FROM common.trained", role=OWNER)


def test_parts_of_the_same_owner_are_read(models):
    models.rows("DROP VIEW common.numbers_weights", role=ATTACKER)
    models.rows(
        "CREATE TABLE common.numbers_weights AS SELECT 1 AS mst_key, 0 AS part, model_weights AS data"
        " FROM common.numbers WHERE mst_key = 2",
        role=OWNER,
    )
    assert models.value(f"SELECT madlib_mop.predict('common.numbers', 1, {X})", role=OWNER) == [2.0]
