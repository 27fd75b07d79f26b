"""The SQL of an update is built from the sources: whole statements, and a script from each released version."""

import re

import pytest

from tests.unit.test_build_extension import ROOT, build_extension

upgrade_sql = build_extension.upgrade_sql

SQL = """-- Before; with a semicolon.
CREATE TABLE t (a text DEFAULT 'it''s; one');
COMMENT ON TABLE t IS 'a; b';

-- what it does; and why
CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $body$
BEGIN
    RETURN ';'; -- and $$ here
END
$body$;
CREATE VIEW v AS SELECT $$;$$ AS x;
CREATE AGGREGATE g(a text) (sfunc = s, stype = text);
INSERT INTO t VALUES ('x');
REVOKE ALL ON SCHEMA s FROM PUBLIC;
"""


def test_statements_are_cut_at_their_own_semicolons():
    assert [s.splitlines()[-1] for s in upgrade_sql.statements(SQL)] == [
        "CREATE TABLE t (a text DEFAULT 'it''s; one');", "COMMENT ON TABLE t IS 'a; b';", "$body$;",
        "CREATE VIEW v AS SELECT $$;$$ AS x;", "CREATE AGGREGATE g(a text) (sfunc = s, stype = text);",
        "INSERT INTO t VALUES ('x');", "REVOKE ALL ON SCHEMA s FROM PUBLIC;",
    ]  # fmt: skip


def test_an_update_replaces_what_can_be_replaced_and_makes_no_table():
    text = upgrade_sql.replacing(SQL)
    assert "CREATE OR REPLACE FUNCTION f()" in text and "CREATE OR REPLACE VIEW v" in text
    assert "CREATE OR REPLACE AGGREGATE g" in text and "COMMENT ON TABLE t IS 'a; b';" in text
    assert "CREATE TABLE" not in text and "INSERT" not in text
    assert upgrade_sql.revoking(SQL) == "REVOKE ALL ON SCHEMA s FROM PUBLIC;\n"


def test_an_unfinished_statement_is_refused():
    with pytest.raises(ValueError, match="the last statement has no semicolon: 'SELECT 1"):
        list(upgrade_sql.statements("SELECT 0;\nSELECT 1 -- ;\n"))


def test_all_statements_of_the_sources_are_of_a_known_kind():
    """An update leaves statements of unknown kinds to the files of sql/upgrade, so each kind must be listed."""
    kinds = {
        " ".join(re.sub(r"\A(?:\s*--[^\n]*\n)*\s*", "", statement).split()[:2])
        for server in build_extension.DIALECTS
        for statement in upgrade_sql.statements(build_extension.source_sql(ROOT, server))
    }
    assert {kind for kind in kinds if not kind.startswith("SELECT pg_catalog.pg_extension_config_dump(")} <= {
        "CREATE FUNCTION", "CREATE AGGREGATE", "CREATE VIEW", "COMMENT ON", "REVOKE ALL", "SET LOCAL", "DO $do$",
        "CREATE SCHEMA", "CREATE TABLE", "ALTER TABLE", "CREATE POLICY", "CREATE TRIGGER", "CREATE INDEX",
        "CREATE UNIQUE", "INSERT INTO",
    }  # fmt: skip


def test_comments_name_the_arguments_of_their_functions():
    """During an update, other functions of that name exist already."""
    for server in build_extension.DIALECTS:
        text = build_extension.source_sql(ROOT, server)
        assert not re.search(r"^COMMENT ON (FUNCTION|AGGREGATE) [\w.]+\s+IS", text, re.MULTILINE), server


def test_each_version_has_one_way_to_the_newest(tmp_path):
    for name in ("1.0.0--1.1.0.sql", "1.1.0--1.2.0.sql"):
        (tmp_path / name).touch()
    paths = upgrade_sql.path_of_steps(tmp_path, "1.2.0")
    assert {version: [file.name for file in steps] for version, steps in paths.items()} == {
        "1.0.0": ["1.0.0--1.1.0.sql", "1.1.0--1.2.0.sql"], "1.1.0": ["1.1.0--1.2.0.sql"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["1.0.0--1.3.0.sql", "1.0--1.2.0.sql", "1.2.0--1.1.0.sql"])
def test_a_file_that_leads_nowhere_is_refused(tmp_path, name):
    (tmp_path / "1.1.0--1.2.0.sql").touch()
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="lead from|name must be"):
        upgrade_sql.path_of_steps(tmp_path, "1.2.0")
