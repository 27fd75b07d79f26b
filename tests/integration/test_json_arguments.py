"""Functions that take JSON take json, jsonb, texts and literals."""

import json

import pytest

from tests.helpers.inference import User
from tests.helpers.unit.perceptron import ARCH

pytestmark = pytest.mark.one_session

FORMS = ("%s", "%s::text", "%s::json", "%s::jsonb", "%s::varchar")


@pytest.fixture(scope="module")
def user(db):
    user = User(db.connect())
    yield user
    user.connection.close()


def test_each_function_that_takes_json_takes_jsonb_and_texts(user):
    """Unknown literals are of the form for texts: between json and jsonb, the server could not choose."""
    signatures = user.rows(
        "SELECT p.oid::regproc::text, p.proargtypes::regtype[]::text[] FROM pg_proc p"
        " WHERE p.pronamespace IN ('madlib'::regnamespace, 'madlib_mop'::regnamespace) AND p.prokind = 'f'"
    )
    known = {(name, tuple(types)) for name, types in signatures}
    of_json = {(name, types) for name, types in known if {"json", "jsonb"} & set(types)}
    assert {name for name, _ in of_json} == {"madlib.load_keras_model", "madlib_mop.submit", "madlib_mop.explain_fit"}
    for name, types in of_json:
        for form in ("json", "jsonb", "text"):
            other = tuple(form if sql_type in ("json", "jsonb") else sql_type for sql_type in types)
            assert (name, other) in known, (name, other)


@pytest.mark.parametrize("form", FORMS)
def test_an_architecture_comes_in_any_form(user, form):
    user.rows(f"SELECT madlib.load_keras_model('archs', {form})", ARCH)
    user.rows(f"SELECT madlib.load_keras_model('archs', {form}, NULL, 'named', NULL)", ARCH)
    user.rows(f"SELECT madlib.load_keras_model('archs', model_arch => {form}, name => 'named')", ARCH)
    assert user.value("SELECT count(DISTINCT model_arch::text) FROM archs") == 1
    user.rows("DROP TABLE archs")


def test_an_architecture_that_is_no_json_is_one_error(user):
    for form in FORMS[:2]:
        error = user.refused(user.rows, f"SELECT madlib.load_keras_model('archs', {form})", "{broken")
        assert error.sqlstate == "22P02" and error.message.startswith("load_keras_model: model_arch"), error.message


def test_a_number_that_json_lacks_is_named_with_its_layer(user):
    """Keras writes Masking(nan) so; a literal is of the form for texts, so no cast to json comes first."""
    mask = {"class_name": "Masking", "config": {"name": "mask", "mask_value": float("nan")}}
    text = json.dumps({"class_name": "Sequential", "config": {"name": "m", "layers": [mask]}})
    for form in FORMS[:2]:
        error = user.refused(user.rows, f"SELECT madlib.load_keras_model('archs', {form})", text)
        assert error.sqlstate == "22P02" and "mask_value is NaN" in error.message, error.message
        assert "load_keras_model: model_arch: layer 'mask'" in error.message, error.message


@pytest.mark.parametrize("form", FORMS)
def test_a_job_takes_its_arguments_in_any_form(user, form):
    call = f"SELECT madlib_mop.submit('drop_run', {form}, at => '2999-01-01')"
    number = user.value(call.replace("'drop_run', ", "'drop_run', arguments => "), '{"run_id": 1}')
    other = user.value(call, '{"run_id": 1}')
    statements = user.rows(
        "SELECT arguments FROM madlib_mop.job_record JOIN madlib_mop.job_statement USING (statement_id)"
        " WHERE job_id IN (%s, %s)",
        *(number, other),
    )
    assert statements == [({"run_id": 1},)] * 2
    user.rows("SELECT madlib_mop.cancel_job(%s), madlib_mop.cancel_job(%s)", number, other)


def test_a_statement_is_submitted_without_arguments(user):
    for call in ("submit('SELECT 1', at => '2999-01-01')", "submit('SELECT 1', NULL, at => '2999-01-01')"):
        number = user.value(f"SELECT madlib_mop.{call}")
        assert user.value("SELECT madlib_mop.cancel_job(%s)", number)

