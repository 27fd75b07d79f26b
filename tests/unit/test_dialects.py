"""The dialects of SQL: the lines of each, and that none uses features that its PostgreSQL lacks."""

import re
from pathlib import Path

import pytest

from madlib_mop.engines.greenplum import CLOUDBERRY, GREENPLUM
from tests.unit.test_build_extension import ROOT, build_extension, sources  # noqa: F401

DIALECTS = build_extension.DIALECTS
MARKED = """a
-- if greenplum
b
-- else
c
-- end
-- if cloudberry
d
-- else
e
-- end
-- if postgres
f
-- end
"""

#: Words of statements, clauses and functions that newer versions of PostgreSQL added and that our SQL might use.
NEWER = {
    13: ["xid8", "pg_current_xact_id", "gen_random_uuid", "WITH TIES"],
    14: ["BEGIN ATOMIC", "trim_array", "date_bin", "string_to_table", "OR REPLACE TRIGGER", "COMPRESSION"],
    15: ["security_invoker", "MERGE INTO", "NULLS NOT DISTINCT", "regexp_(?:count|instr|like|substr)", "SET NULL [(]"],
    16: ["any_value", "IS JSON", "JSON_(?:ARRAY|OBJECT)(?:AGG)?", "pg_input_is_valid", "array_(?:sample|shuffle)"],
    17: ["MERGE_ACTION", "JSON_(?:TABLE|EXISTS|QUERY|VALUE)", "to_bin", "uuid_extract_version"],
}


def newer_than(major: int, text: str) -> list[str]:
    """Return the features in a text of SQL that are newer than a version of PostgreSQL."""
    patterns = [pattern for since, words in NEWER.items() if since > major for pattern in words]
    return re.findall("|".join(rf"\b{pattern}" for pattern in patterns), text)


def sql_of(server: str) -> str:
    """Return the SQL of a dialect without comments, and without Python."""
    text = re.sub(r"--[^\n]*", "", build_extension.source_sql(ROOT, server))
    return re.sub(r"LANGUAGE plpython3u.*?\$body\$;", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("product", [GREENPLUM, CLOUDBERRY])
def test_each_product_has_a_dialect_without_what_its_postgresql_lacks(product):
    assert newer_than(product.major, sql_of(product.name)) == []


def test_what_is_newer_is_seen():
    """The SQL for PostgreSQL 15 has features of each version up to 15."""
    text = sql_of("postgres")
    assert "security_invoker" in newer_than(14, text) and "xid8" in newer_than(12, text)
    assert newer_than(15, text) == []


@pytest.mark.parametrize("product", [GREENPLUM, CLOUDBERRY])
def test_the_rows_of_partitioned_tables_are_dumped_once(product):
    """With the partitions; pg_dump of early versions of Greenplum 7 also writes partitioned configuration tables."""
    text = sql_of(product.name)
    partitioned = re.findall(r"CREATE TABLE (\S+) \([^;]*PARTITION BY", text)
    assert partitioned == ["madlib_mop.model_state"]
    assert not {*partitioned} & {*re.findall(r"pg_extension_config_dump\('([^']+)'", text)}


def test_a_function_that_greenplum_lacks_says_so():
    """Each name that is passed to `_absent` is one for which it raises an error."""
    text = sql_of(GREENPLUM.name)
    (body,) = re.findall(r"FUNCTION madlib_mop_calls\._absent\(what text\)(.*?)\$body\$;", text, re.DOTALL)
    raised = {name for names in re.findall(r"what IN \(([^)]*)\)", body) for name in re.findall("'([^']*)'", names)}
    asked = {*re.findall(r"_absent\('([^']*)'", text)}
    assert {"predict_interval", "predict_json", "grant_read"} <= asked and asked <= raised


def nullable_arrays(text: str) -> list[str]:
    """Return the beginnings of the arrays of subqueries in a text that are not within ``coalesce``."""
    return re.findall(r"(?<!coalesce\()\barray\(\s*select\b.{0,9}", text, re.IGNORECASE)


@pytest.mark.parametrize("folder", ["sql", "madlib_mop", "plpython"])
def test_an_array_of_a_subquery_without_rows_is_empty(folder):
    """On Greenplum it is NULL, unless the subquery refers to the query around it."""
    files = [path for path in Path(ROOT, folder).rglob("*") if path.suffix in (".py", ".sql")]
    texts = [path.read_text() for path in files if "released" not in path.parts]
    assert len(texts) > 5 and [found for text in texts for found in nullable_arrays(text)] == []
    assert nullable_arrays("coalesce(array(SELECT 2), '{}'), ARRAY(\n  SELECT 1)") == ["ARRAY(\n  SELECT 1)"]


def test_lines_are_for_a_dialect_and_for_those_that_take_its_lines(sources):  # noqa: F811
    (sources / "sql" / "30-third.sql").write_text(MARKED)
    taken = {name: build_extension.build_sql(sources, "/lib", name).split("30-third.sql\n")[1] for name in DIALECTS}
    assert taken == {"postgres": "a\nc\ne\nf\n", "greenplum": "a\nb\ne\n", "cloudberry": "a\nb\nd\n"}


@pytest.mark.parametrize("name, knows", [("postgres", True), ("greenplum", False), ("cloudberry", True)])
def test_the_control_file_has_what_the_server_knows(sources, tmp_path, name, knows):  # noqa: F811
    build_extension.build(sources, "/lib", tmp_path / "out", name)
    assert ("\ntrusted = false\n" in (tmp_path / "out" / "madlib_mop.control").read_text()) == knows


def test_a_dialect_is_built_for_every_server_that_make_recognizes():
    said = re.findall(r"^\s+echo (\w+)$", Path(ROOT, "make", "common.sh").read_text(), re.MULTILINE)
    assert {*said} == {*DIALECTS}
