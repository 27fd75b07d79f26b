"""madlib_mop.predict: Keras' values, for single rows or many rows per call, by a trainer that the session keeps."""

import os
import pathlib
import select
import signal
import threading
import time

import numpy as np
import psycopg2
import pytest

from tests.helpers.faults import alive, children, forkservers
from tests.helpers.inference import Dependent, ModelTable, User, weights_of
from tests.helpers.unit.trainer import BACKEND

N_ROWS, WIDTH, CONSTANT = 30, 4, 2.0


@pytest.fixture(scope="module")
def nets(keras):
    keras.utils.set_random_seed(3)
    layers = keras.layers
    made = [
        keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]) for _ in range(2)
    ]
    inputs = [keras.Input((2, 2), name="left"), keras.Input((1,), name="right")]
    both = layers.Concatenate()([layers.Flatten()(inputs[0]), inputs[1]])
    many = keras.Model(inputs, [layers.Dense(2, "softmax")(both), layers.Dense(1)(both)])
    return {1: made[0], 2: made[1], "many": many}


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(N_ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def scores(nets, x):
    return {key: nets[key].predict(x / np.float32(CONSTANT), verbose=0) for key in (1, 2)}


@pytest.fixture(scope="module")
def database(db, nets, x):
    """The models and points, written by a superuser; analyst may read them, stranger may not."""
    user = User(db.connect())
    facts = ModelTable(normalizing_const=CONSTANT, dependent=[Dependent(values=list("abc"))])
    user.write_models("models", {1: nets[1], 2: nets[2]}, facts)
    user.write_one_model("single", nets[1], facts)
    numbers = ModelTable(independent=["left", "right"], dependent=[Dependent("y"), Dependent("z", "real")])
    user.write_one_model("many", nets["many"], numbers)
    user.table("points", "id integer, x real[]", [(i, row.tolist()) for i, row in enumerate(x)])
    for role in ("analyst", "stranger"):
        db.connect(role).close()
        user.rows(f"SELECT madlib_mop.grant_use('{role}'); GRANT SELECT ON points TO {role}")
    user.rows("GRANT SELECT ON models, models_info, models_summary TO analyst")
    yield db
    user.connection.close()


@pytest.fixture(scope="module")
def user(database):
    """A session of a role with only the granted rights; its trainer is started once for all tests."""
    user = User(database.connect("analyst"))
    yield user
    user.connection.close()


@pytest.fixture(scope="module")
def owner(database):
    user = User(database.connect())
    yield user
    user.connection.close()


def trainer_of(user) -> list[int]:
    """Return the trainers of the session's backend."""
    return children(user.connection.info.backend_pid, "madlib_mop.trainer")


def close(given, expected) -> bool:
    return np.allclose(np.array(given, np.float64), expected, atol=1e-6)


def test_each_row_of_a_select_gets_its_probabilities(user, scores):
    rows = user.rows("SELECT madlib_mop.predict('models', 1, x), pg_typeof(madlib_mop.predict('models', 2, x))::text"
                     " FROM points ORDER BY id")  # fmt: skip
    assert close([first for first, _ in rows], scores[1]) and {kind for _, kind in rows} == {"real[]"}
    assert len(trainer_of(user)) == 1  # one trainer serves both models


def test_arrays_of_rows_give_arrays_of_results(user, scores):
    """With one more dimension, or as rows with their ids by predict_rows."""
    assert close(user.value("SELECT madlib_mop.predict('models', 1, array_agg(x ORDER BY id)) FROM points"), scores[1])
    rows = user.rows(
        "SELECT r.id, r.p FROM (SELECT array_agg(id ORDER BY id) AS ids, array_agg(x ORDER BY id) AS xs FROM points"
        " GROUP BY id / 7) AS b, ROWS FROM (unnest(b.ids), madlib_mop.predict_rows('models', 2, b.xs)) AS r(id, p)"
        " ORDER BY r.id"
    )
    assert [i for i, _ in rows] == list(range(N_ROWS)) and close([p for _, p in rows], scores[2])
    assert user.rows("SELECT madlib_mop.predict_rows('models', 1, x) FROM points WHERE id = 3")[0][0] == user.value(
        "SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 3"
    )


def test_nulls_and_every_type_of_number(user, scores):
    assert user.rows("SELECT madlib_mop.predict('models', 1, NULL::real[])") == [(None,)]
    assert user.rows("SELECT madlib_mop.predict_rows('models', 1, NULL::real[])") == []
    expected = user.value("SELECT madlib_mop.predict('models', 1, ARRAY[1, 2, 3, 4]::real[])")
    for kind in ("smallint", "integer", "bigint", "double precision", "numeric"):
        given = user.value(f"SELECT madlib_mop.predict('models', 1, ARRAY[1, 2, 3, 4]::{kind}[])")
        assert given == expected, kind
    idle = "(ARRAY[1, 2, 3, NULL]::real[])[1:3] || 4::real"  # it has a NULL bitmap without NULLs
    assert user.value(f"SELECT madlib_mop.predict('models', 1, {idle})") == expected


def test_several_inputs_and_outputs_and_a_table_with_one_model(owner, nets, x, scores):
    got = owner.value("SELECT madlib_mop.predict('single', NULL, x) FROM points WHERE id = 0")
    assert close(got, scores[1][0])
    (left, right) = x[:1].reshape(1, 2, 2), x[:1, :1]
    first, second = nets["many"].predict([left, right], verbose=0)
    got = owner.value(
        "SELECT madlib_mop.predict('many', NULL, ARRAY[madlib_mop.array_bytes(ARRAY[x[1:2], x[3:4]]),"
        " madlib_mop.array_bytes(x[1:1]::float8[])]) FROM points WHERE id = 0"
    )
    assert close(got, [*first[0], *second[0]])


def test_views_prepared_statements_and_a_retrained_model(user, owner, nets, scores):
    """A prepared plan uses the current model; a view reads it with the rights of the querying role."""
    owner.rows("CREATE VIEW scored AS SELECT id, madlib_mop.predict('public.models', 2, x) AS p FROM points;"
               " GRANT SELECT ON scored TO analyst, stranger; CREATE TABLE kept AS TABLE models")  # fmt: skip
    user.rows("PREPARE one AS SELECT p FROM scored WHERE id = $1")
    for _ in range(7):
        assert close(user.value("EXECUTE one (5)"), scores[2][5])
    owner.rows("UPDATE models SET model_weights = %s WHERE mst_key = 2", weights_of(nets[1]))
    try:
        assert close(user.value("EXECUTE one (5)"), scores[1][5])
        owner.rows("BEGIN; UPDATE models_summary SET normalizing_const = 1; ")
        owner.rows("UPDATE models SET model_weights = %s WHERE mst_key = 2", weights_of(nets[2]))
        # the owner's own uncommitted changes
        assert close(owner.value("SELECT p FROM scored WHERE id = 5"), _of(nets[2], owner, 5))
        assert close(user.value("EXECUTE one (5)"), scores[1][5])  # not visible to others yet
        owner.rows("ROLLBACK")
        assert close(owner.value("SELECT p FROM scored WHERE id = 5"), scores[1][5])
    finally:
        owner.rows("UPDATE models SET model_weights = %s WHERE mst_key = 2", weights_of(nets[2]))
    assert close(user.value("EXECUTE one (5)"), scores[2][5])


def _of(net, user, row):
    return net.predict(np.array([user.value("SELECT x FROM points WHERE id = %s", row)], np.float32), verbose=0)[0]


def test_statements_that_find_a_model_are_not_compiled(owner, scores):
    owner.rows("CREATE VIEW uncompiled AS SELECT * FROM models WHERE current_setting('jit') = 'off'")
    owner.rows("CREATE VIEW uncompiled_info AS TABLE models_info")
    owner.rows("CREATE VIEW uncompiled_summary AS TABLE models_summary")
    owner.rows("SET jit = on")
    ((found, jit),) = owner.rows(
        "SELECT madlib_mop.predict('uncompiled', 1, x), current_setting('jit') FROM points WHERE id = 0"
    )
    owner.rows("RESET jit")
    np.testing.assert_allclose(found, scores[1][0], rtol=1e-5)
    assert jit == "on"
    assert not owner.rows(  # the other functions that may start a driver
        "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'madlib_mop_calls'::regnamespace"
        " AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpython3u')"
        " AND 'caller_path' = ANY(proargnames) AND 'jit=off' <> ALL(coalesce(proconfig, '{}'))"
    )


def test_a_name_means_what_the_callers_path_says_at_each_call(owner, scores, nets):
    call = "SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 2"
    assert close(owner.value(call), scores[1][2])
    owner.rows("CREATE TEMP TABLE models AS TABLE models; CREATE TEMP TABLE models_info AS TABLE public.models_info;"
               " CREATE TEMP TABLE models_summary AS TABLE public.models_summary")  # fmt: skip
    owner.rows("UPDATE pg_temp.models SET model_weights = %s WHERE mst_key = 1", weights_of(nets[2]))
    assert close(owner.value(call), scores[2][2])
    owner.rows("DROP TABLE pg_temp.models, pg_temp.models_info, pg_temp.models_summary")
    assert close(owner.value(call), scores[1][2])


def test_the_callers_rights_and_policies_count_at_each_call(user, owner, scores):
    call = "SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 2"
    assert close(user.value(call), scores[1][2])
    try:
        owner.rows("REVOKE SELECT ON models FROM analyst")  # loaded, but without the right to read it any more
        assert user.refused(user.value, call).sqlstate == "42501"
        owner.rows("GRANT SELECT ON models TO analyst; ALTER TABLE models ENABLE ROW LEVEL SECURITY;"
                   " CREATE POLICY only_two ON models USING (mst_key = 2)")  # fmt: skip
        refusal = user.refused(user.value, call)
        assert (refusal.sqlstate, "mst_key 1 is not in public.models" in refusal.message) == ("22023", True)
        assert close(user.value(call.replace(", 1,", ", 2,")), scores[2][2])
    finally:
        owner.rows("DROP POLICY IF EXISTS only_two ON models; ALTER TABLE models DISABLE ROW LEVEL SECURITY;"
                   " GRANT SELECT ON models TO analyst")  # fmt: skip
    assert close(user.value(call), scores[1][2])
    owner.rows("SELECT madlib_mop.predict('models', 1, x) FROM points LIMIT 1")
    try:
        owner.rows("SET ROLE stranger")  # same session, with the model in its trainer
        assert owner.refused(owner.value, call).sqlstate == "42501"
    finally:
        owner.rows("RESET ROLE")


REFUSED = [
    ("'nothing', 1, ARRAY[1, 2, 3, 4]", "42P01", "predict: model_table does not exist. Received: 'nothing'"),
    ("'models', NULL, ARRAY[1, 2, 3, 4]", "22023", "predict: mst_key is missing: public.models has 2 models"),
    ("'models', 9, ARRAY[1, 2, 3, 4]", "22023", "mst_key 9 is not in public.models"),
    ("NULL, 1, ARRAY[1, 2, 3, 4]", "22023", "model_table is missing"),
    ("'models', 1, ARRAY[1, 2, 3]", "22023", "x has the shape [3], but the model takes [4]"),
    ("'models', 1, ARRAY[[[1, 2, 3, 4]]]", "22023", "x has the shape [1, 1, 4], but the model takes [4]"),
    ("'models', 1, ARRAY[1, 2, 3, NULL]", "22023", "x contains a NULL element at [4]"),
    ("'models', 1, ARRAY[1, 2, 3, 'NaN'::real]", "22023", "x contains NaN"),
    ("'models', 1, '{}'::real[]", "22023", "x is an empty array"),
    ("'models', 1, ARRAY['\\x00'::bytea]", "22023", "an input is not an array of numbers"),
    ("'models', 1, ARRAY['\\x06000000000000bc02000001000000'::bytea]", "22023", "an input is not an array of numbers"),
    ("'models', 1, ARRAY[madlib_mop.array_bytes(ARRAY[1]), madlib_mop.array_bytes(ARRAY[1])]", "22023",
     "the model has 1 input(s). Received: 2"),
    ("'points', 1, ARRAY[1, 2, 3, 4]", "42703", "public.points has no column 'model_weights'"),
]  # fmt: skip


def test_one_clear_error_each_and_the_trainer_goes_on(user):
    before = trainer_of(user)
    for arguments, sqlstate, message in REFUSED:
        refusal = user.refused(user.value, f"SELECT madlib_mop.predict({arguments})")
        assert (refusal.sqlstate, message in refusal.message) == (sqlstate, True), (arguments, refusal)
    with pytest.raises(psycopg2.Error) as caught:
        user.value(f"SELECT madlib_mop.predict({REFUSED[4][0]})")
    assert "Traceback" not in caught.value.diag.context
    assert trainer_of(user) == before


def test_a_read_only_session_predicts(database, scores):
    """The rules of a standby: no writes, and no transaction number is assigned."""
    connection = database.connect("analyst", autocommit=False)
    reader = User(connection)
    try:
        reader.rows("SET default_transaction_read_only = on")
        connection.commit()
        assert close(reader.value("SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 1"), scores[1][1])
        assert reader.value("SELECT pg_current_xact_id_if_assigned()") is None
    finally:
        connection.close()


def test_declared_as_what_it_is(owner):
    rows = owner.rows("SELECT DISTINCT provolatile::text, proparallel::text, prosecdef FROM pg_proc p"
                      " JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname IN ('madlib_mop', 'madlib_mop_calls')"
                      " AND proname IN ('predict', 'predict_rows', '_predict')")  # fmt: skip
    assert rows == [("s", "u", False)]  # one trainer for each session: parallel workers would each start their own


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        select.select([], [], [], 0.05)


def test_a_cancelled_call_stops_at_once_and_the_next_one_works(database, user, scores):
    """The trainer is stopped by SIGSTOP, so the cancel arrives while it works."""
    os.kill(trainer_of(user)[0], 19)  # SIGSTOP: the trainer does not answer
    canceller = threading.Timer(0.5, user.connection.cancel)
    canceller.start()
    started = time.monotonic()
    assert user.refused(user.value, "SELECT madlib_mop.predict('models', 1, x) FROM points").sqlstate == "57014"
    assert time.monotonic() - started < 3
    canceller.join()
    assert trainer_of(user) == []
    assert close(user.value("SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 4"), scores[1][4])


def test_a_cancelled_select_of_many_rows_ends_within_a_second(user, scores):
    """Also if neither process sleeps between two rows (mop_backend/spinning.py)."""
    ended = []

    def run():
        many = "SELECT count(madlib_mop.predict('models', 1, x)) FROM points, generate_series(1, 1000000)"
        ended.append((user.refused(user.value, many).sqlstate, time.monotonic()))

    user.rows("SELECT madlib_mop.predict('models', 1, x) FROM points")
    (trainer,) = trainer_of(user)
    thread = threading.Thread(target=run)
    used_ns = processor_ns(trainer)
    thread.start()
    wait_until(lambda: processor_ns(trainer) > used_ns + 50_000_000)  # rows are being exchanged
    cancelled = time.monotonic()
    user.connection.cancel()
    thread.join()
    ((sqlstate, at),) = ended
    assert sqlstate == "57014" and at - cancelled < 1
    assert close(user.value("SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 4"), scores[1][4])


def test_an_idle_trainer_uses_no_processor_time(user):
    user.rows("SELECT madlib_mop.predict('models', 1, x) FROM points")
    (trainer,) = trainer_of(user)
    used_ns = processor_ns(trainer)
    select.select([], [], [], 0.5)
    assert processor_ns(trainer) - used_ns < 10_000_000


def processor_ns(pid) -> int:
    """Return the processor time of a process' threads, in nanoseconds."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)


def test_the_trainer_ends_with_its_session_or_when_idle(database, scores):
    session = User(database.connect("analyst"))
    session.rows("SET madlib_mop.predict_idle_s = 1")
    call = "SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 6"
    assert close(session.value(call), scores[1][6])
    first = trainer_of(session)
    wait_until(lambda: trainer_of(session) == [])
    assert close(session.value(call), scores[1][6])  # another trainer, without a message
    (second,) = trainer_of(session)
    assert [second] != first
    session.connection.close()
    wait_until(lambda: not os.path.exists(f"/proc/{second}"))


def test_the_servers_trainers_are_forked_from_one_process(database, scores):
    """TensorFlow is imported once per server; the fork server waits for the next request and has no data.

    A call waits for it two seconds at most, and then starts a trainer of its own: also on a machine that is busy.
    """

    def have_one_parent() -> bool:
        parents = {parent_of_a_trainer(database, scores) for _ in range(2)}
        return len(parents) == 1 and is_forkserver(*parents)

    wait_until(have_one_parent)


@pytest.mark.slow
def test_it_is_started_when_rows_are_packed(database, scores):
    """A user who packs will train: TensorFlow is imported in the meantime."""
    before = parent_of_a_trainer(database, scores)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not alive(before))  # its socket is closed
    owner = User(database.connect())
    owner.table("few", "x real[], y text", [([1.0, 2.0], "a"), ([3.0, 4.0], "b")])
    owner.rows("SELECT madlib.training_preprocessor_dl('few', 'few_packed', 'y', 'x')")
    owner.connection.close()
    wait_until(lambda: len(forkservers(database, backend=BACKEND)) == 1)
    (started,) = forkservers(database, backend=BACKEND)
    assert started != before and parent_of_a_trainer(database, scores) == started


def is_forkserver(process):
    with open(f"/proc/{process}/comm") as name:
        return name.read() == "mop forkserver\n"


def parent_of_a_trainer(database, scores):
    session = User(database.connect("analyst"))
    assert close(session.value("SELECT madlib_mop.predict('models', 1, x) FROM points WHERE id = 6"), scores[1][6])
    (trainer,) = trainer_of(session)
    with open(f"/proc/{trainer}/stat") as stat:
        parent = int(stat.read().rpartition(")")[2].split()[1])
    session.connection.close()
    wait_until(lambda: not os.path.exists(f"/proc/{trainer}"))
    return parent


def test_the_only_model_of_a_table_needs_no_key(database, nets, x):
    user = User(database.connect())
    facts = ModelTable(normalizing_const=CONSTANT, dependent=[Dependent(values=list("abc"))])
    user.write_models("lonely", {7: nets[1]}, facts)
    row = x[0].tolist()
    query = "SELECT madlib_mop.predict('lonely', %s::integer, %s::real[])"
    assert user.value(query, None, row) == user.value(query, 7, row)
    user.predict("lonely", "points", "by_only")
    user.predict("lonely", "points", "by_key", mst_key=7)
    assert user.rows("TABLE by_only") == user.rows("TABLE by_key")
    user.rows("INSERT INTO lonely SELECT 8, model_weights, model_arch FROM lonely")
    assert "mst_key is missing: public.lonely has 2 models" in user.refused(user.value, query, None, row).message
    user.connection.close()
