"""The functions that predict in queries: the forms of one function differ only in how they find the model."""

import re

import pytest

from madlib_mop.calls.predictions import predict_functions
from tests.unit.test_build_extension import build_extension

CREATED = re.compile(
    r"CREATE FUNCTION (\S+)\((.*?)\)\s+(?:RETURNS (.*?) )?LANGUAGE (\w+) (.*?)AS \$body\$(.*?)\$body\$", re.DOTALL
)


@pytest.fixture(scope="module")
def functions() -> list[tuple[str, ...]]:
    """Name, parameters, type, language, clauses and body of each function on Greenplum."""
    text = build_extension.lines_for("greenplum", predict_functions(), "predictions")
    return [tuple(" ".join(part.split()) for part in found) for found in CREATED.findall(text)]


def by_schema(functions, schema: str) -> set[tuple[str, str, str]]:
    return {(name.removeprefix(schema), given, kind) for name, given, kind, *_ in functions if name.startswith(schema)}


def test_on_greenplum_users_call_a_function_of_the_same_signature_which_the_planner_puts_into_the_query(functions):
    inner = by_schema(functions, "@PREDICTIONS@.")
    outer = by_schema([f for f in functions if "_planned(" in f[5]], "madlib_mop.")
    assert inner == outer and len(inner) == 10


def test_what_the_planner_is_to_put_into_a_query_has_no_set_clause(functions):
    in_sql = [f for f in functions if f[3] == "sql"]
    assert len(in_sql) == 20 and not [f for f in in_sql if "SET" in f[4].split()]


def test_other_functions_search_no_schema_of_the_caller(functions):
    others = [f for f in functions if f[3] == "plpgsql"]
    assert len(others) == 19 and all("SET search_path = pg_catalog, pg_temp" in f[4] for f in others)


def test_an_error_of_the_library_is_raised_in_each(functions):
    assert all("_raise(madlib_mop_calls._predict_error())" in f[5] for f in functions if f[3] == "plpgsql")


def test_each_has_a_comment(functions):
    text = predict_functions()
    assert text.count("CREATE FUNCTION") == text.count("COMMENT ON FUNCTION") == len(functions)
