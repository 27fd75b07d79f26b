"""A session's trainer holds the models of all roles that predict in the session; no role gets the model of another one.

A function of the victim's, SECURITY DEFINER, predicts with a model that only the victim may read. Mallory's model is a
view: it can show anything as the version of the model, such as the version of the victim's.
"""

import pytest

from tests.helpers.inference import User
from tests.helpers.security.attacks import user

VICTIM, MALLORY = "victim_of_sessions", "mallory_of_sessions"
X = "ARRAY[1, 2]::real[]"
#: The reads of mallory's tables that a prediction makes are fewer.
N_READS = 24
VIEWS = """
CREATE SEQUENCE reads MINVALUE 0 START 0;
CREATE TABLE wanted (read bigint, version text);
CREATE VIEW fake AS SELECT o.mst_key, CASE WHEN k.is_now THEN NULL ELSE o.model_weights END AS model_weights,
    CASE WHEN k.is_now THEN NULL ELSE o.model_arch END AS model_arch
    FROM own o, LATERAL (SELECT nextval('reads') = (SELECT read FROM wanted) AS is_now OFFSET 0) k;
CREATE VIEW fake_info AS TABLE own_info;
CREATE VIEW fake_summary AS SELECT {columns}, CASE WHEN (SELECT last_value FROM reads) = (SELECT read FROM wanted)
    THEN (SELECT version FROM wanted) ELSE '1.0' END AS normalizing_const FROM own_summary;
"""


@pytest.fixture(scope="module")
def models(db, keras):
    """Two networks of one shape with other weights; return the version of the victim's and the answers of both."""
    for role in (VICTIM, MALLORY):
        user(db, role)
    answers = {}
    for role, name, seed in ((VICTIM, "private", 1), (MALLORY, "own", 2)):
        keras.utils.set_random_seed(seed)
        session = User(db.connect(role))
        session.write_models(name, {1: keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])})
        answers[role] = session.value(f"SELECT madlib_mop.predict('{name}', 1, {X})")
        session.connection.close()
    db.rows(
        f"CREATE FUNCTION {VICTIM}.score() RETURNS real[] LANGUAGE sql SECURITY DEFINER AS"
        f" $$ SELECT madlib_mop.predict('{VICTIM}.private', 1, {X}) $$; GRANT USAGE ON SCHEMA {VICTIM} TO {MALLORY}",
        role=VICTIM,
    )
    version = db.value(
        "SELECT concat_ws(' ', m.tableoid, m.ctid, m.xmin, m.cmin, s.tableoid, s.ctid, s.xmin, s.cmin)"
        f" FROM {VICTIM}.private m, {VICTIM}.private_summary s"
    )
    columns = db.value(
        "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND attname <> 'normalizing_const'", [f"{MALLORY}.own_summary"],
    )  # fmt: skip
    session = User(db.connect(MALLORY))
    session.rows(VIEWS.format(columns=columns))
    session.rows("INSERT INTO wanted VALUES (-1, %s)", version)
    session.connection.close()
    return db, answers


def tried(db, first: str | None) -> tuple[list, list]:
    """Let the view show the victim's version at each of its reads in turn; return mallory's answers, and the victim's
    function's after them. Each call has a search_path of its own, so the session looks its model up anew."""
    session = User(db.connect(MALLORY))
    if first is not None:
        session.value(first)
    answers, n_missed = [], 0
    for read in range(N_READS):
        session.rows(f"UPDATE wanted SET read = {read}; ALTER SEQUENCE reads RESTART")
        session.rows(f"SET search_path = {MALLORY}, s{read}")
        with session.connection.cursor() as cursor:
            try:
                cursor.execute(f"SELECT madlib_mop.predict('fake', 1, {X})")
                answers.append(cursor.fetchone()[0])
            except Exception as error:  # the driver has read what the view shows once only
                assert "Traceback" not in str(error), error
        reads = session.value("SELECT last_value FROM reads")
        n_missed = n_missed + 1 if reads < read else 0
        if n_missed == 2:  # a prediction makes fewer reads: further ones would be like this one
            break
    assert reads < N_READS - 1, reads
    scores = [session.value(f"SELECT {VICTIM}.score()")]
    session.connection.close()
    return answers, scores


@pytest.mark.parametrize("first", [f"SELECT {VICTIM}.score()", None])
def test_a_view_that_shows_the_version_of_another_model_gets_and_gives_no_answer_of_it(models, first):
    db, answers = models
    own, scores = tried(db, first)
    assert answers[VICTIM] not in own and answers[MALLORY] in own
    assert scores == [answers[VICTIM]]


def test_a_view_that_a_model_is_read_through_predicts_nothing(models):
    """A prediction within a prediction would use the trainer while it has a request."""
    db, answers = models
    session = User(db.connect(MALLORY))
    session.rows(f"CREATE VIEW nested AS SELECT mst_key, model_weights, model_arch FROM own"
                 f" WHERE madlib_mop.predict('{MALLORY}.own', 1, {X}) IS NOT NULL")  # fmt: skip
    session.rows("CREATE VIEW nested_info AS TABLE own_info; CREATE VIEW nested_summary AS TABLE own_summary")
    error = session.refused(session.value, f"SELECT madlib_mop.predict('nested', 1, {X})")
    assert error.sqlstate == "0A000" and "must not call a prediction function" in error.message, error
    assert session.value(f"SELECT madlib_mop.predict('own', 1, {X})") == answers[MALLORY]
    session.connection.close()
