"""The statement of a job: the call of a function with the arguments of a JSON object, or any statement."""

import pytest

from madlib_mop.calls import USER_FUNCTIONS
from madlib_mop.errors import InvalidParameter
from madlib_mop.jobs.statements import STARTS_RUN, compose, find_function


def quoted(texts: list[str]) -> list[str]:
    return ["'" + text.replace("'", "''") + "'" for text in texts]


@pytest.mark.parametrize("text", ["cancel", "madlib_mop.cancel", " Madlib_Mop . Cancel ", "CANCEL"])
def test_a_function_is_found_by_its_name(text):
    assert find_function(text).name == "cancel"


@pytest.mark.parametrize("text", ["SELECT 1", "cancel()", "TABLE t;", "madlib_mop.cancel(1)", '"cancel"'])
def test_anything_else_is_a_statement(text):
    assert find_function(text) is None


@pytest.mark.parametrize("text", ["nothing", "madlib.cancel", "madlib_mop.madlib_keras_fit"])
def test_a_name_of_no_function_is_an_error(text):
    with pytest.raises(InvalidParameter, match="there is no function"):
        find_function(text)


def test_every_value_is_a_literal_of_its_type():
    call = compose(
        find_function("load_model_selection_table"),
        {
            "model_arch_table": "it's", "model_selection_table": "m", "model_id_list": [1, None],
            "compile_params_list": ["a'b"], "fit_params_list": [],
        },
        quoted,
    )  # fmt: skip
    assert call == (
        "SELECT madlib.load_model_selection_table(\"model_arch_table\" => 'it''s'::varchar,"
        " \"model_selection_table\" => 'm'::varchar, \"model_id_list\" => ARRAY['1', NULL]::integer[],"
        " \"compile_params_list\" => ARRAY['a''b']::varchar[], \"fit_params_list\" => ARRAY[]::varchar[])"
    )


@pytest.mark.parametrize(
    "function, argument, value, kind",
    [
        ("pack_columns", "validation", 0.2, "double precision"),
        ("pack_columns", "validation", "last 20% by day", "text"),
        ("report", "run_id", 3, "bigint"),
        ("report", "run_id", "churn@champion", "text"),
    ],
)
def test_a_value_has_the_first_type_of_its_argument_that_fits(function, argument, value, kind):
    found = find_function(function)
    needed = {a.name: "x" for a in found.arguments if a.is_required and a.name != argument}
    assert f"'{value}'::{kind}" in compose(found, {**needed, argument: value}, quoted)


def test_booleans_numbers_and_null():
    given = {"run_id": 7, "mst_key": 1, "from_state": False, "fit_params": None}
    call = compose(find_function("clone_model"), given, quoted)
    assert "\"run_id\" => '7'::bigint" in call and "\"from_state\" => 'false'::boolean" in call
    assert '"fit_params" => NULL::text' in call


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "must be a JSON object"),
        ("x", "must be a JSON object"),
        ({"run": 1}, "cancel has no argument 'run'"),
        ({}, "cancel needs run_id"),
        ({"run_id": None}, "cancel needs run_id"),
        ({"run_id": "1"}, "run_id must be of type bigint"),
        ({"run_id": True}, "run_id must be of type bigint"),
        ({"run_id": 2**70}, "run_id must be of type bigint"),
    ],
)
def test_wrong_arguments_are_one_error(arguments, message):
    with pytest.raises(InvalidParameter, match=message):
        compose(find_function("cancel"), arguments, quoted)


def test_functions_that_start_runs_are_functions():
    assert {function.name for function in USER_FUNCTIONS} >= STARTS_RUN
