"""The SQL functions are made from their specifications: signatures, bodies and comments.

tests/security/test_limits.py compares the functions of an installed extension with the specifications.
"""

import re

import pytest

from madlib_mop.calls import Argument, Function
from madlib_mop.calls.sql_functions import function_sql

A, B = Argument("a", "varchar", "first"), Argument("b", "integer", "second", default=None)


def sql_of(*arguments: Argument, **facts) -> str:
    return function_sql(Function("f", "Do it.", arguments, **{"comments": ("Does it",)} | facts))


def test_a_function_passes_its_arguments_and_the_callers_path():
    assert sql_of(A, B, comments=("A's work",)) == """CREATE FUNCTION madlib.f(
    a varchar,
    b integer DEFAULT NULL,
    caller_path text DEFAULT pg_catalog.current_setting('search_path')
) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT madlib_mop_calls.call('f', json_build_object('a', a, 'b', b), caller_path);
$body$;
COMMENT ON FUNCTION madlib.f(varchar, integer, text) IS
    'A''s work';"""


def test_one_that_is_given_no_names_of_tables_has_no_path():
    text = sql_of(A, takes_path=False, schema="madlib_mop", settings=("IntervalStyle = 'postgres'", "jit = off"))
    assert "CREATE FUNCTION madlib_mop.f(\n    a varchar\n)" in text and "'a', a), NULL);" in text
    assert "SET search_path = pg_catalog, pg_temp SET IntervalStyle = 'postgres' SET jit = off AS" in text
    assert "COMMENT ON FUNCTION madlib_mop.f(varchar) IS" in text


@pytest.mark.parametrize("kind, body", [
    ("bigint", "SELECT (CALL #>> '{}')::bigint;"),
    ("text[]", "SELECT coalesce(ARRAY(SELECT json_array_elements_text(CALL)), '{}');"),
    ("integer[]", "SELECT coalesce(ARRAY(SELECT json_array_elements_text(CALL)::integer), '{}');"),
    ("TABLE (x text, y real)", "SELECT r.* FROM json_to_recordset( CALL ) AS r (x text, y real);"),
])  # fmt: skip
def test_the_answer_becomes_the_functions_type(kind, body):
    text = sql_of(A, returns=kind)
    assert f") RETURNS {kind} LANGUAGE sql" in text
    made = " ".join(re.search(r"\$body\$(.*?)\$body\$", text, re.DOTALL)[1].split())
    assert made == body.replace("CALL", "madlib_mop_calls.call('f', json_build_object('a', a), caller_path)")


def test_bytes_go_beside_the_json():
    text = sql_of(A, Argument("file", "bytea", "a file"))
    call = "json_build_object('a', a), caller_path, payload_name => 'file', payload => file);"
    assert "    file bytea,\n" in text and call in text


def test_json_has_forms_for_jsonb_and_texts_of_which_only_the_first_has_a_default():
    text = sql_of(A, Argument("j", "json", "an object", default=None), B)
    assert re.findall(r"^    j (.*),$", text, re.MULTILINE) == ["json DEFAULT NULL", "jsonb", "text"]
    assert re.findall(r"'j', (.*?), 'b'", text) == ["j::text", "j::text", "j"]
    assert re.findall(r"COMMENT ON FUNCTION madlib.f\(varchar, (\w+), int", text) == ["json", "jsonb", "text"]


def test_each_type_of_an_argument_is_a_signature_with_a_comment_and_its_kind():
    kinds = Argument("k", "varchar", "some", default="all", other_types=("integer", "double precision"))
    added = (Argument("k_kind", "text", "the type of k", default="text"),)
    text = sql_of(kinds, added=added, comments=("by name", "by number", "by share"))
    assert re.findall(r"^    k (.*),$", text, re.MULTILINE) == ["varchar DEFAULT 'all'", "integer", "double precision"]
    assert re.findall(r"json_build_object\('k', k, 'k_kind', '(\w+)'\)", text) == ["text", "integer", "float8"]
    assert re.findall(r"^    '(by \w+)';$", text, re.MULTILINE) == ["by name", "by number", "by share"]
    with pytest.raises(ValueError, match="f needs 3 comments"):
        sql_of(kinds, comments=("by name",))


def test_forms_have_the_arguments_that_they_name():
    text = sql_of(A, B, forms=(("a",), ("b",)), takes_path=False, comments=("by a", "by b"))
    assert re.findall(r"json_build_object\((.*?)\)", text) == ["'a', a", "'b', b"]


def test_a_key_word_of_a_server_is_quoted():
    text = sql_of(Argument("exclude", "text", "what to leave out"))
    assert '    "exclude" text,\n' in text and """json_build_object('exclude', "exclude")""" in text


@pytest.mark.parametrize("kind, answer, content", [
    ("text", "json", "answer ->> 'result'"), ("bytea", "record", "answer.content"),
])  # fmt: skip
def test_one_for_readers_starts_no_other_command(kind, answer, content):
    text = sql_of(A, returns=kind, starter="_only_f")
    assert "LANGUAGE plpgsql" in text and f"    answer {answer};\n" in text and f"    RETURN {content};\n" in text
    assert "madlib_mop_calls._only_f(json_build_object('a', a)::text, caller_path)" in text
    assert "madlib_mop_calls.call(" not in text and "madlib_mop_calls._at_coordinator('f')" in text


def test_one_that_returns_parts_is_a_query_of_them():
    text = sql_of(A, returns="SETOF bytea", starter="_only_f")
    assert "RETURNS SETOF bytea LANGUAGE sql" in text and "madlib_mop_calls._raise(p.error::json) IS NULL" in text
    assert "FROM madlib_mop_calls._only_f(json_build_object('a', a)::text, caller_path) AS p;" in text
