"""The registry: each bad input is one clear error before any work."""

import re
from pathlib import Path

import pytest
from mop_backend.registered_names import ALIAS, NAME, UnreadableName, is_registered, read_name

from tests.helpers.inference import User
from tests.helpers.registry import X, write_classifiers, write_numbers

SQL = (Path(__file__).resolve().parents[2] / "sql" / "47-registry.sql").read_text()


@pytest.fixture(scope="module")
def user(db, keras):
    user = User(db.connect())
    write_numbers(user, keras, "numbers", [1.0, 2.0])
    write_classifiers(user, keras, "classifiers", [1.0])
    user.rows("CREATE TABLE points AS SELECT 'abc'::text AS y, ARRAY[1, 0, 0]::real[] AS x FROM generate_series(1, 4)")
    user.rows("SET madlib_mop.segments = 1; SELECT madlib.training_preprocessor_dl('points', 'packed', 'y', 'x')")
    user.rows("CREATE TABLE no_weights AS SELECT mst_key, NULL::bytea AS model_weights, model_arch FROM numbers;"
              " CREATE TABLE no_weights_info AS TABLE numbers_info; CREATE TABLE no_weights_summary AS TABLE"
              " numbers_summary")  # fmt: skip
    user.rows("SELECT madlib_mop.register('m', 'numbers', 1); SELECT madlib_mop.register('m', 'numbers', 2)")
    user.rows("SELECT madlib_mop.register('k', 'classifiers'); SELECT madlib_mop.set_alias('m', 'champion', 1)")
    yield user
    user.connection.close()


LONG = "a" * 64
NAMES = "name must have 1 to 63 letters (a to z), digits, _, . or -, and begin with a letter, a digit or _. Received: "
ALIASES = "alias must have 1 to 63 letters (a to z), digits, _, . or -, and begin with a letter or _. Received: "
REFUSED = [
    ("register('', 'numbers', 1)", "22023", "register: " + NAMES + "''"),
    ("register(NULL, 'numbers', 1)", "22023", "register: " + NAMES + "NULL"),
    ("register('a b', 'numbers', 1)", "22023", "register: " + NAMES + "'a b'"),
    ("register('é', 'numbers', 1)", "22023", "register: " + NAMES + "'é'"),
    (f"register('{LONG}', 'numbers', 1)", "22023", "register: " + NAMES + f"'{LONG}'"),
    ("register('x@y', 'numbers', 1)", "22023", "register: " + NAMES + "'x@y'"),
    ("register('x', 'nothing', 1)", "42P01", "register: model_table does not exist. Received: 'nothing'"),
    ("register('x', NULL)", "22023", "register: model_table is missing. Received: NULL"),
    ("register('x', 'm@1')", "22023", "register: model_table must be an output table, not a registered model."
                                      " Received: 'm@1'"),
    ("register('x', 'points')", "42703", "register: model_table: public.points has no column 'model_weights'."
                                         " Received: 'points'"),
    ("register('x', 'numbers', 9)", "22023", "register: mst_key 9 is not in public.numbers. Received: 9"),
    ("register('x', 'no_weights', 1)", "0A000", "register: model_table: mst_key 1 of public.no_weights has no"
                                                " weights: model_weights is NULL"),
    ("set_alias('M', 'Champion', 9)", "22023", "set_alias: m has no version 9"),
    ("set_alias('m', 'champion', 0)", "22023", "set_alias: version must be at least 1. Received: 0"),
    ("set_alias('m', 'champion', NULL)", "22023", "set_alias: version must be at least 1. Received: NULL"),
    ("set_alias('m', '3', 1)", "22023", "set_alias: " + ALIASES + "'3'"),
    ("set_alias('m', NULL, 1)", "22023", "set_alias: " + ALIASES + "NULL"),
    ("set_alias('none', 'champion', 1)", "22023", "set_alias: there is no registered model of this name that you may"
                                                  " use. Received: 'none'"),
    ("drop_alias('m', 'other')", "22023", "drop_alias: m has no alias 'other'"),
    ("rollback('m', 'other')", "22023", "rollback: m has no alias 'other'"),
    ("rollback('m', 'champion', 0)", "22023", "rollback: steps must be at least 1. Received: 0"),
    ("rollback('m', 'champion', 5)", "22023", "rollback: m@champion can go back 0 steps. Received: 5"),
    ("drop_version('m', 9)", "22023", "drop_version: m has no version 9"),
    ("drop_registered('none')", "22023", "drop_registered: there is no registered model of this name that you may"
                                         " use. Received: 'none'"),
    ("set_challenger('m', 'champion', 1)", "22023", "set_challenger: version 1 is the version of m@champion itself"),
    ("set_challenger('m', 'champion', 2, 0)", "22023", "set_challenger: share must be above 0 and at most 1."
                                                       " Received: 0"),
    ("set_challenger('m', 'champion', 2, 'NaN')", "22023", "set_challenger: share must be above 0 and at most 1."
                                                           " Received: NaN"),
    ("set_challenger('m', 'champion', 2, 0.5, 0)", "22023", "set_challenger: max_rows must be at least 1. Received: 0"),
    ("set_challenger('m', 'other', 2)", "22023", "set_challenger: m has no alias 'other'"),
    ("drop_challenger('m', 'champion')", "22023", "drop_challenger: m@champion has no challenger"),
    ("grant_model('m', 'nobody_there', 'see')", "42704", "grant_model: there is no such role. Received:"
                                                         " 'nobody_there'"),
    ("grant_model('m', current_user, 'write')", "22023",
     "grant_model: privilege must be predict, see, deploy or export. Received: 'write'"),
    ("grant_model('none', current_user, 'see')", "22023", "grant_model: there is no registered model of this name"
                                                          " that you may use. Received: 'none'"),
    ("deploy('m', 'champion', 9)", "22023", "deploy: m has no version 9"),
    ("deploy('m', 'champion', NULL)", "22023", "deploy: version must be at least 1. Received: NULL"),
    ("deploy('m', 'champion', 2, at_least => 1)", "22023", "deploy: test_table is missing: at_least needs rows on"
                                                           " which the metric is computed. Received: NULL"),
    ("deploy('m', 'champion', 2, 'loss')", "22023", "deploy: test_table is missing: metric needs rows on which the"
                                                    " metric is computed. Received: NULL"),
    ("deploy('m', 'champion', 2, test_table => 'packed')", "22023", "deploy: test_table is given, but no condition."
                                                                    " Received: 'packed'"),
    ("deploy('m', 'champion', 2, 'loss', 'points', at_most => 1)", "deploy: test_table", None),
    ("deploy('k', 'champion', 1, 'f1', 'packed_k', at_least => 1)", "22023", "deploy: metric must be one of loss,"
                                                                             " accuracy, those of k@1. Received: 'f1'"),
    ("deploy('k', 'champion', 1, 'loss', 'packed_k', at_least => 1)", "22023", "deploy: at_least does not fit loss,"
                                                                               " of which lower values are better."
                                                                               " Received: 1"),
    (f"predict('m@', NULL, {X})", "22P02", "predict: model_table is no name of a registered model. Received: 'm@'"),
    (f"predict('@1', NULL, {X})", "22P02", "predict: model_table is no name of a registered model. Received: '@1'"),
    (f"predict('m@a@b', NULL, {X})", "22P02", "predict: model_table is no name of a registered model. Received:"
                                              " 'm@a@b'"),
    (f"predict('m@7', NULL, {X})", "22023", "predict: m has no version 7. Received: 'm@7'"),
    (f"predict('m@other', NULL, {X})", "22023", "predict: m has no alias other. Received: 'm@other'"),
    (f"predict('none@1', NULL, {X})", "22023", "predict: there is no registered model of this name that you may use."
                                               " Received: 'none@1'"),
    (f"predict('m@champion', 1, {X})", "22023", "predict: mst_key is for tables; m@champion names one model."
                                                " Received: 1"),
    ("predict('m@champion', NULL, ARRAY[1, 2])", "22023", "predict: x has the shape [2], but the model takes [3]"),
    ("predict_version('m')", "22023", "predict_version: m has no alias newest. Received: 'm@newest'"),
    ("predict_version('\"m\"')", "22023", "predict_version: model_table must name a registered model, such as"
                                          " 'churn@champion'. Received: '\"m\"'"),
    ("predict_version(NULL)", "22023", "predict_version: model_table must name a registered model, such as"
                                       " 'churn@champion'. Received: NULL"),
]  # fmt: skip


@pytest.fixture(scope="module")
def packed_k(user):
    user.rows("CREATE TABLE points_k AS SELECT (ARRAY['a', 'b', 'c'])[1 + i % 3] AS y, ARRAY[1, 0, 0]::real[] AS x"
              " FROM generate_series(1, 6) i; SELECT madlib.training_preprocessor_dl('points_k', 'packed_k', 'y',"
              " 'x')")  # fmt: skip


@pytest.mark.parametrize(("call", "sqlstate", "message"), REFUSED)
def test_bad_input_is_one_clear_error(user, packed_k, call, sqlstate, message):
    registry = "SELECT md5(string_agg(r::text, '' ORDER BY r)) FROM madlib_mop.registry r"
    before = user.value(registry)
    error = user.refused(user.rows, f"SELECT madlib_mop.{call}")
    if message is None:
        assert error.message.startswith(sqlstate), error
    else:
        assert (error.sqlstate, error.message) == (sqlstate, message)
    assert user.value(registry) == before and user.value("SELECT count(*) FROM madlib_mop.registry_change") == 0


def test_functions_that_take_tables_only_say_so(user):
    error = user.refused(user.rows, "SELECT madlib_mop.make_ensemble('m@1', 'packed', 'ensemble')")
    assert error.message == "make_ensemble: model_table cannot be read. Received: 'm@1'"


def test_a_document_that_was_written_by_hand_is_checked(user):
    user.rows("SELECT madlib_mop.register('forged', 'numbers', 1)")
    good = (
        "(SELECT document FROM madlib_mop.version_content JOIN madlib_mop.model_version USING (version_id) WHERE"
        " name = 'm' AND version = 1)"
    )
    number = 1
    for document, message in [
        ("'[]'", "the document of forged@"),
        ("'{'", "the document of forged@"),
        (f"replace({good}, '\"Dense\"', '\"Lambda\"')", "Lambda is not allowed"),
        (f"replace({good}, '\"outputs\": [', '\"outputs\": [7, ')", "the document of forged@"),
    ]:
        number += 1
        assert user.value("SELECT madlib_mop.register('forged', 'numbers', 1)") == number
        user.rows("UPDATE madlib_mop.version_content SET document = " + document + " WHERE version_id = (SELECT"
                                                                                   " version_id"
                  " FROM madlib_mop.model_version WHERE name = 'forged' AND version = %s)", number)  # fmt: skip
        error = user.refused(user.rows, f"SELECT madlib_mop.predict('forged@{number}', NULL, {X})")
        assert message in error.message and error.sqlstate != "XX000", error


@pytest.mark.parametrize("text", ["a@1", "A.b-c_9@champion", "9@x", " a@x "])
def test_names_of_registered_models(text):
    assert is_registered(text) and str(read_name(text)) == text.strip().lower()


@pytest.mark.parametrize("text", ["a", '"a@b"', 'public."a@b"', None])
def test_names_of_tables(text):
    assert not is_registered(text)


NOT_NAMES = ["@", "a@", "@b", "a@b@c", "a b@c", "a@1x", "\u212a@b", "a@1234567890", "-a@b", "a@b\n\n@"]


@pytest.mark.parametrize("text", NOT_NAMES)
def test_what_is_no_name(text):
    with pytest.raises(UnreadableName):
        read_name(text)


def test_the_patterns_of_names_are_the_same_in_sql():
    (check,) = re.findall(r"CASE what WHEN 'alias' THEN '(.*?)' ELSE '(.*?)' END\) THEN", SQL)
    assert check == (f"^{ALIAS}$", f"^{NAME}$")
