"""A challenger predicts beside the version of an alias; what both answer is recorded, and no prediction fails by it."""

import time

import pytest

from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.registry import answer, write_classifiers, write_numbers
from tests.helpers.sessions import undone

pytestmark = pytest.mark.one_session

ROWS = "(SELECT ARRAY[i, 0, 1]::real[] AS x FROM generate_series(1, {n}) i) AS rows"


@pytest.fixture(scope="module")
def user(db, keras):
    user = User(db.connect())
    write_numbers(user, keras, "numbers", [1.0, 1.5])
    write_classifiers(user, keras, "classifiers", [1.0, 0.0])
    user.write_models("narrow", {1: _narrow(keras)})
    for name, table, keys in (("n", "numbers", 2), ("k", "classifiers", 2), ("odd", "numbers", 1)):
        for key in range(1, keys + 1):
            user.rows("SELECT madlib_mop.register(%s, %s, %s)", name, table, key)
        user.rows("SELECT madlib_mop.set_alias(%s, 'champion', 1)", name)
    user.rows("SELECT madlib_mop.register('odd', 'narrow')")
    yield user
    user.connection.close()


def _narrow(keras):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])


@pytest.fixture
def challenged(user):
    """The name n with version 2 as challenger of all calls; no rows are recorded yet."""
    user.rows("SELECT madlib_mop.set_challenger('n', 'champion', 2, 1)")
    yield user
    user.rows("SELECT madlib_mop.drop_challenger('n', 'champion')")


def compared(user, name="n"):
    """Return number of rows, share of the same class, mean and greatest difference, of the newest challenger."""
    rows = user.rows(
        "SELECT n_rows, same_best_share, mean_difference, max_difference FROM madlib_mop.challenger_comparison"
        " WHERE name = %s AND challenger_id = (SELECT challenger_id FROM madlib_mop.model_challenger WHERE name = %s)",
        *(name, name),
    )
    return rows[0] if rows else (0, None, None, None)


def test_single_calls_are_recorded_at_once_and_get_the_champions_answer(challenged):
    assert [answer(challenged, "n@champion") for _ in range(3)] == [1.0] * 3
    assert compared(challenged) == (3, None, 0.5, 0.5)
    batch = "SELECT version, challenger_version, n_rows, outputs, challenger_outputs FROM madlib_mop.challenger_batch"
    assert challenged.rows(f"{batch} ORDER BY batch_id DESC LIMIT 1") == [(1, 2, 1, [[1.0]], [[1.5]])]


def test_many_rows_of_a_statement_are_written_in_few_batches(challenged):
    assert challenged.rows(f"SELECT DISTINCT madlib_mop.predict('n@champion', NULL, x) FROM"
                           f" {ROWS.format(n=300)}") == [([1.0],)]
    assert compared(challenged)[0] == 255, "1 + 2 + 4 + ... + 128; the rest waits for the next statement"
    answer(challenged, "n@champion")
    assert compared(challenged)[0] == 301
    batches = (
        "SELECT count(*) FROM madlib_mop.challenger_batch WHERE challenger_id = (SELECT challenger_id FROM"
        " madlib_mop.model_challenger WHERE name = 'n')"
    )
    assert challenged.value(batches) == 10
    challenged.rows(f"SELECT madlib_mop.predict_rows('n@champion', NULL, array_agg(x)) FROM {ROWS.format(n=50)}")
    assert compared(challenged)[0] == 351


def test_a_share_of_the_calls_is_chosen_by_the_inputs(user):
    user.rows("SELECT madlib_mop.set_challenger('n', 'champion', 2, 0.25)")
    try:
        for _ in range(2):  # the same inputs are chosen again
            for i in range(1, 201):
                user.rows("SELECT madlib_mop.predict('n@champion', NULL, ARRAY[%s, 0, 1])", i)
        n = compared(user)[0]
        assert n % 2 == 0 and 50 <= n <= 150, n
    finally:
        user.rows("SELECT madlib_mop.drop_challenger('n', 'champion')")
    before = user.value("SELECT count(*) FROM madlib_mop.challenger_batch")
    answer(user, "n@champion")
    assert user.value("SELECT count(*) FROM madlib_mop.challenger_batch") == before


def test_classes_are_compared(user):
    user.rows("SELECT madlib_mop.set_challenger('k', 'champion', 2, 1)")
    one_hot = "(SELECT ARRAY[i % 3 = 0, i % 3 = 1, i % 3 = 2]::integer[] AS x FROM generate_series(1, 30) i) AS rows"
    user.rows(f"SELECT madlib_mop.predict_class_rows('k@champion', NULL, array_agg(x)) FROM {one_hot}")
    n_rows, same, mean, most = compared(user, "k")
    assert (n_rows, same) == (30, pytest.approx(1 / 3)) and 0 < mean < most < 1


def test_outputs_of_different_numbers_are_not_compared(user, keras):
    four = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "softmax")])
    user.write_models("four", {1: four}, ModelTable(dependent=[Dependent(values=list("abcd"))]))
    user.rows("SELECT madlib_mop.register('mixed', 'classifiers', 1); SELECT madlib_mop.register('mixed', 'four', 1)")
    user.rows("SELECT madlib_mop.set_alias('mixed', 'champion', 1)")
    user.rows("SELECT madlib_mop.set_challenger('mixed', 'champion', 2, 1)")
    for _ in range(3):
        user.rows("SELECT madlib_mop.predict('mixed@champion', NULL, ARRAY[1, 0, 0])")
    assert compared(user, "mixed") == (3, None, None, None)


def test_a_large_batch_is_compared_as_many_small_ones(user):
    """A call of predict_rows records up to 10,000 rows at once; reading them for each of their values takes minutes."""
    insert = (
        "INSERT INTO madlib_mop.challenger_batch (name, alias, challenger_id, version, challenger_version, n_rows,"
        " outputs, challenger_outputs) SELECT 'k', 'large', %s, 1, 2, count(*), array_agg(one ORDER BY i),"
        " array_agg(other ORDER BY i) FROM (SELECT i, array_agg((7 * i + 3 * j) %% 11 ORDER BY j) AS one,"
        " array_agg((5 * i + 4 * j) %% 13 ORDER BY j) AS other FROM generate_series(1, 10000) i, generate_series(1, 10)"
        " j GROUP BY i) AS rows GROUP BY i / %s"
    )
    compare = "SELECT n_rows, same_best_share, mean_difference, max_difference FROM madlib_mop.challenger_comparison"
    rows = []
    for challenger_id, batch_rows in ((-1, 20000), (-2, 50)):
        user.rows(insert, challenger_id, batch_rows)
        user.rows("SET statement_timeout = '30s'")
        rows += user.rows(f"{compare} WHERE challenger_id = %s", challenger_id)
        user.rows("RESET statement_timeout")
    one = [[(7 * i + 3 * j) % 11 for j in range(1, 11)] for i in range(1, 10001)]
    other = [[(5 * i + 4 * j) % 13 for j in range(1, 11)] for i in range(1, 10001)]
    n_same = sum(a.index(max(a)) == b.index(max(b)) for a, b in zip(one, other, strict=True))
    differences = [abs(a - b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)]
    assert rows == [(10000, n_same / 10000, sum(differences) / 100000, max(differences))] * 2
    user.rows("DELETE FROM madlib_mop.challenger_batch WHERE challenger_id < 0")


def test_a_challenger_that_cannot_predict_does_not_fail_the_call(user):
    user.rows("SELECT madlib_mop.set_challenger('odd', 'champion', 2, 1)")
    began = time.monotonic()
    assert [answer(user, "odd@champion") for _ in range(3)] == [1.0] * 3
    assert time.monotonic() - began < 20 and compared(user, "odd")[0] == 0


def test_where_a_write_could_harm_nothing_is_recorded(db, challenged):
    before = compared(challenged)[0]
    for mode in ("READ ONLY", "ISOLATION LEVEL SERIALIZABLE"):
        with undone(db, User) as other:
            other.rows(f"SET TRANSACTION {mode}")
            assert answer(other, "n@champion") == 1.0
            assert other.value("SELECT txid_current_if_assigned()") is None, mode
    assert compared(challenged)[0] == before
    with undone(db, User) as other:
        other.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert answer(other, "n@champion") == 1.0
        assert compared(other)[0] == before + 1
    assert compared(challenged)[0] == before, "rolled back with the transaction"


def test_recording_ends_at_its_limit(db, user):
    user.rows("SELECT madlib_mop.set_challenger('n', 'champion', 2, 1, 5)")
    try:
        other = User(db.connect())
        for session in (user, other):
            for _ in range(5):
                assert answer(session, "n@champion") == 1.0
        other.connection.close()
        assert compared(user)[0] == 5
    finally:
        user.rows("SELECT madlib_mop.drop_challenger('n', 'champion')")


def test_rows_that_wait_are_not_recorded_for_another_model_of_the_same_name(db, user, challenged):
    def register():
        for key in (1, 2):
            user.rows("SELECT madlib_mop.register('left', 'numbers', %s)", key)
        user.rows("SELECT madlib_mop.set_alias('left', 'champion', 1)")

    register()
    user.rows("SELECT madlib_mop.set_challenger('left', 'champion', 2, 1)")
    other = User(db.connect())
    other.rows(f"SELECT madlib_mop.predict('left@champion', NULL, x) FROM {ROWS.format(n=2)}")  # the second row waits
    assert compared(user, "left")[0] == 1
    user.rows("SELECT madlib_mop.drop_alias('left', 'champion'); SELECT madlib_mop.drop_registered('left')")
    register()
    before = compared(user)[0]
    assert answer(other, "n@champion") == 1.0
    other.connection.close()
    assert compared(user)[0] == before + 1, "another challenger is recorded"
    assert user.value("SELECT count(*) FROM madlib_mop.challenger_batch WHERE name = 'left'") == 0
    user.rows("SELECT madlib_mop.drop_alias('left', 'champion'); SELECT madlib_mop.drop_registered('left')")


def test_a_challenger_cannot_be_dropped_as_a_version(challenged):
    error = challenged.refused(challenged.rows, "SELECT madlib_mop.drop_version('n', 2)")
    assert (error.sqlstate, error.message) == ("2BP01", "drop_version: version 2 of n is the challenger of champion")


def test_called_from_sql_the_functions_of_the_backend_do_nothing(challenged):
    before = challenged.value("SELECT count(*) FROM madlib_mop.challenger_batch")
    assert challenged.rows("SELECT madlib_mop_calls._record_challenger()::text,"
                           " madlib_mop_calls._read_version()::text") == [("", "")]
    assert challenged.value("SELECT count(*) FROM madlib_mop.challenger_batch") == before
