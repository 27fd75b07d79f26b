"""Functions in queries for which segments work: a function of such a query cannot begin a statement of its own.

The planner finds the model of a prediction, so predictions work there. Other functions work in cursors.
"""

import psycopg2
import pytest

from tests.helpers.columns import train_churn
from tests.helpers.greenplum import n_segments
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.training import fit

pytestmark = pytest.mark.slow

#: Queries whose segments are still at work while the coordinator evaluates the function.
AT_WORK = {
    "limit": "SELECT {} FROM (SELECT attributes AS x FROM iris_test LIMIT 3) AS rows",
    "cte": "WITH rows AS (SELECT attributes AS x FROM iris_test LIMIT 3) SELECT {} FROM rows",
    "aggregate": "SELECT {} FROM (SELECT max(attributes) AS x FROM iris_test) AS rows",
    "series": "SELECT {} FROM (SELECT (SELECT attributes FROM iris_test WHERE id = i) AS x"
    " FROM generate_series(1, 150) AS i) AS rows",
}
BYTES = "ARRAY[madlib_mop.array_bytes(x::real[])]"
FORMS = ("predict", "predict_class", "predict_named")
OF_ARRAYS = [f"{name}('models', 1, {x})" for name in FORMS for x in ("x", BYTES)]
OF_ROWS = [f"{name}('churn', 1, {{}})" for name in ("predict", "predict_class", "predict_json")]
#: The name of its model is not known when the query is planned.
OF_EACH_ROW = "predict(CASE WHEN cardinality(x) = 4 THEN 'models' END, 1, x)"
OTHERS = ["report(cardinality(x))", "cancel(cardinality(x))"]
ROW = "(SELECT madlib_mop.predict('models', 1, ARRAY[5.1, 3.5, 1.4, 0.2]::real[]))"


@pytest.fixture(scope="module")
def trained(greenplum):
    """Tables of models: ``models`` of arrays, ``churn`` of rows of the table customers."""
    load_iris(greenplum)
    pack_iris(greenplum, n_segments(greenplum), "train", "valid")
    load_perceptrons(greenplum, "iris_arch")
    greenplum.rows(
        "SELECT madlib.load_model_selection_table('iris_arch', 'iris_mst', ARRAY[1], ARRAY[%s], ARRAY['batch_size=8'])",
        [ADAM.format(0.01)],
    )
    fit(greenplum, "models", "iris_mst", 1, source_table="train", seed=9)
    train_churn(greenplum, 1, n_segments(greenplum))
    return greenplum


@pytest.fixture
def session(trained):
    connection = trained.connect()
    with connection.cursor() as cursor:
        yield cursor
    connection.close()


def rows(cursor, query, parameters=None):
    cursor.execute(query, parameters)
    return cursor.fetchall()


@pytest.mark.parametrize("query", AT_WORK)
@pytest.mark.parametrize("call", OF_ARRAYS)
def test_predictions_of_arrays(session, query, call):
    """They equal those of calls without FROM."""
    found = [one for one in rows(session, AT_WORK[query].format(f"x, madlib_mop.{call}")) if one[0] is not None]
    assert found
    for x, prediction in found:
        assert rows(session, f"SELECT madlib_mop.{call} FROM (SELECT %s::real[] AS x) AS row", [x]) == [(prediction,)]


@pytest.mark.parametrize("call", OF_ROWS)
@pytest.mark.parametrize(
    "row, source",
    [
        ("c", "(SELECT t FROM customers AS t ORDER BY id LIMIT 5) AS rows (c)"),
        ("n", "(SELECT * FROM customers ORDER BY id LIMIT 5) AS n"),
    ],
)
def test_predictions_of_rows(session, call, row, source):
    """Of rows of a table, and of anonymous rows with names."""
    query = f"SELECT madlib_mop.{call.format(row)} FROM {source}"
    alone = [
        rows(session, f"SELECT madlib_mop.{call.format(f'(SELECT t FROM customers AS t WHERE id = {i})')}")[0]
        for i in range(1, 6)
    ]
    assert rows(session, query) == alone and len({str(one) for one in alone}) > 1


def test_predictions_of_a_view(session):
    """The planner finds the model of a view's function too. What it puts at the segments is refused as elsewhere."""
    session.execute(
        "CREATE VIEW newest AS SELECT id, madlib_mop.predict_class('models', 1, attributes) AS kind"
        " FROM (SELECT * FROM iris_test ORDER BY id LIMIT 20) AS rows"
    )
    kinds = dict(rows(session, "SELECT id, kind FROM newest"))
    assert len(kinds) == 20
    for kind in {*kinds.values()}:
        of_kind = rows(session, "SELECT id FROM newest WHERE kind = %s", [kind])
        assert {id for (id,) in of_kind} == {id for id in kinds if kinds[id] == kind}
    with pytest.raises(psycopg2.errors.FeatureNotSupported, match="cannot run on a segment"):
        rows(session, "SELECT n.id FROM newest AS n JOIN iris_test AS t ON t.id = n.id WHERE n.kind = 'Iris-setosa'")


def test_an_error_is_that_of_a_call_without_from(session):
    """Also a missing model, which the planner does not find: it is no error without rows."""
    empty = AT_WORK["limit"].replace("LIMIT 3", "WHERE id < 0 LIMIT 3")
    assert rows(session, empty.format("madlib_mop.predict('missing', 1, x)")) == []
    for call, problem in (
        ("predict('missing', 1, x)", "model_table does not exist. Received: 'missing'"),
        ("predict('models', 77, x)", "77"),
        ("predict('models', 1, x || x)", "8"),
        ("predict_class('churn', 1, x)", "^predict: churn was trained on a table of pack_columns"),
        ("predict('models', 1, ROW(x))", "^predict: models was not trained on a table of pack_columns"),
    ):
        errors = []
        for query in (AT_WORK["limit"].format(f"madlib_mop.{call}"),
                      f"SELECT madlib_mop.{call} FROM (SELECT ARRAY[1, 2, 3, 4]::real[] AS x) AS row"):  # fmt: skip
            with pytest.raises(psycopg2.Error, match=problem) as caught:
                session.execute(query)
            errors.append((caught.value.pgcode, caught.value.diag.message_primary, caught.value.diag.message_hint))
            assert "Python" not in caught.value.diag.context
        assert errors[0] == errors[1]
        assert rows(session, f"SELECT {ROW}") != []


def test_a_changed_model_is_read_again(session):
    """The planner looks at the model's version for each query: the change, at segments, has no number of a transaction
    at the coordinator."""
    session.execute("CREATE TABLE changed AS TABLE models")
    for suffix in ("_info", "_summary"):
        session.execute(f"CREATE TABLE changed{suffix} AS TABLE models{suffix}")
    query = AT_WORK["aggregate"].format("madlib_mop.predict('changed', 1, x)")
    for _ in range(3):  # then it is known
        assert rows(session, query) == rows(session, query.replace("changed", "models"))
    zeros = "decode(repeat('00', length(model_weights)), 'hex')"
    session.execute(f"UPDATE changed SET weights_digest = NULL, model_weights = {zeros}")
    assert rows(session, query)[0][0] == pytest.approx([1 / 3] * 3)


def test_a_role_without_the_right_to_read_the_model_gets_an_error(trained):
    """The planner checks the rights of the role that plans, also after another role has used the model."""
    query = AT_WORK["limit"].format("madlib_mop.predict('models', 1, x)")
    trained.connect("mop_gp_predicting").close()
    trained.rows("SELECT madlib_mop.grant_use('mop_gp_predicting')")
    trained.rows("GRANT SELECT ON iris_test TO mop_gp_predicting")
    tables = "models, models_info, models_summary"
    try:
        with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="models"):
            trained.rows(query, role="mop_gp_predicting")
        trained.rows(f"GRANT SELECT ON {tables} TO mop_gp_predicting")
        assert len(trained.rows(query, role="mop_gp_predicting")) == 3
    finally:
        trained.rows("SELECT madlib_mop.revoke_use('mop_gp_predicting')")
        trained.rows(f"REVOKE ALL ON iris_test, {tables} FROM mop_gp_predicting")


def test_a_text_for_a_model_cannot_be_made_up(session):
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="not there any more"):
        session.execute(
            "SELECT madlib_mop_calls.predict('planned model ' || repeat('0', 32), 1, ARRAY[1, 2, 3, 4], false, '')"
        )


def test_a_cancel_ends_the_query_and_the_session_goes_on(trained, session):
    """The wait for the trainer sees the cancel without a statement."""
    many = (
        "SELECT count(madlib_mop.predict('models', 1, x)) FROM"
        " (SELECT attributes AS x FROM iris_test, generate_series(1, 1000000) LIMIT 90000000) AS rows"
    )
    rows(session, f"SELECT {ROW}")
    session.execute("SET statement_timeout = 2000")
    with pytest.raises(psycopg2.errors.QueryCanceled):
        session.execute(many)
    session.execute("RESET statement_timeout")
    assert rows(session, AT_WORK["limit"].format("madlib_mop.predict_class('models', 1, x)"))


@pytest.mark.parametrize("call", [ROW, "madlib_mop.version()", AT_WORK["limit"].format(f"madlib_mop.{OF_ARRAYS[0]}")])
def test_a_cancel_while_no_python_runs_leaves_nothing_to_the_next_call(session, call):
    """Python has begun in this session, so Greenplum lets it know of each signal."""
    for _ in range(3):
        rows(session, f"SELECT {ROW}")
        session.execute("SET statement_timeout = 200")
        with pytest.raises(psycopg2.errors.QueryCanceled):
            session.execute("SELECT pg_catalog.pg_sleep(10)")
        session.execute("RESET statement_timeout")
        assert rows(session, call if call.startswith("SELECT") else f"SELECT {call}")


@pytest.mark.parametrize("query", AT_WORK)
@pytest.mark.parametrize("call", [*OTHERS, OF_EACH_ROW])
def test_after_a_query_that_greenplum_refuses_the_session_goes_on(session, query, call):
    """The error is Greenplum's, raised where no Python runs: after it, PL/Python would crash the coordinator.

    Its context says what works.
    """
    for _ in range(2):
        with pytest.raises(psycopg2.errors.FeatureNotSupported) as caught:
            session.execute(AT_WORK[query].format(f"madlib_mop.{call}"))
        assert "Python" not in caught.value.diag.context
        assert "DECLARE c CURSOR FOR the query" in caught.value.diag.context
        assert rows(session, f"SELECT {ROW}, madlib_mop.version()")


@pytest.mark.parametrize("query", AT_WORK)
def test_what_the_error_says_works(session, query):
    """A query of a cursor lets its functions begin statements."""
    session.execute("BEGIN")
    session.execute("DECLARE c CURSOR FOR " + AT_WORK[query].format(f"x, madlib_mop.{OF_EACH_ROW}"))
    found = rows(session, "FETCH ALL FROM c")
    session.execute("COMMIT")
    for x, prediction in found:
        if x is not None:
            assert rows(session, "SELECT madlib_mop.predict('models', 1, %s::real[])", [x]) == [(prediction,)]
    assert any(x for x, _ in found)


def test_a_generic_plan_has_no_model_and_a_setting_helps(session):
    """The sixth execution of a prepared statement has a plan for all values."""
    session.execute("PREPARE predicting (text) AS " + AT_WORK["limit"].format("madlib_mop.predict($1, 1, x)"))
    session.execute("SET plan_cache_mode = force_generic_plan")
    with pytest.raises(psycopg2.errors.FeatureNotSupported):
        session.execute("EXECUTE predicting ('models')")
    session.execute("SET plan_cache_mode = force_custom_plan")
    assert len(rows(session, "EXECUTE predicting ('models')")) == 3
