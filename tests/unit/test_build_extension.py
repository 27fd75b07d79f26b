"""The extension's files are built from the sources, complete and without placeholders."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("build_extension", ROOT / "make" / "build_extension.py")
build_extension = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_extension)

BODY = "CREATE FUNCTION f() RETURNS text LANGUAGE plpython3u AS $body$\n@PRELUDE@\nreturn '@VERSION@'\n$body$;\n"


@pytest.fixture
def sources(tmp_path):
    """A clone with two SQL files, and its own prelude and control file."""
    root = tmp_path / "clone"
    for name in ("sql", "madlib_mop", "plpython/mop_backend"):
        (root / name).mkdir(parents=True)
    (root / "madlib_mop" / "__init__.py").write_text('"""Doc."""\n__version__ = "1.2.3"\n')
    (root / "plpython" / "mop_backend" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (root / "plpython" / "prelude.py").write_text((ROOT / "plpython" / "prelude.py").read_text())
    (root / "madlib_mop.control").write_text((ROOT / "madlib_mop.control").read_text())
    (root / "sql" / "20-second.sql").write_text(BODY)
    (root / "sql" / "10-first.sql").write_text("CREATE SCHEMA s;\n")
    return root


def test_files_are_concatenated_in_the_order_of_their_names(sources):
    text = build_extension.build_sql(sources, "/lib")
    assert text.index("CREATE SCHEMA s") < text.index("CREATE FUNCTION f")


def test_markers_of_defences_are_left_out(sources):
    (sources / "sql" / "30-third.sql").write_text(
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY;  -- defence: policies\nCREATE POLICY p ON t -- of rows\n"
        "    -- defence: rows = USING (true)\n    USING (b);  -- defence: more = ;\n"
    )
    text = build_extension.build_sql(sources, "/lib")
    assert text.endswith(
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY;\nCREATE POLICY p ON t -- of rows\n    USING (b);\n"
    )
    assert not re.search(r"(--|#) defence:", build_extension.build_sql(ROOT, "/lib"))


def test_psql_refuses_the_file_by_its_first_line(sources):
    first = build_extension.build_sql(sources, "/lib").splitlines()[0]
    assert first.startswith('\\echo Use "CREATE EXTENSION madlib_mop') and first.endswith("\\quit")


def test_a_body_puts_the_backend_of_its_library_on_the_path_and_is_python(sources):
    text = build_extension.build_sql(sources, "/srv/a library")
    body = re.search(r"\$body\$\n(.*?)\$body\$", text, re.S)[1]
    ast.parse("def f():\n" + "\n".join("    " + line for line in body.splitlines()))
    assert 'sys.path.insert(0, "/srv/a library/backend")' in body
    assert "return '1.2.3'" in body


def test_version_and_file_names_come_from_the_library(sources, tmp_path):
    files = build_extension.build(sources, "/lib", tmp_path / "out")
    assert [file.name for file in files] == ["madlib_mop--1.2.3.sql", "madlib_mop.control"]
    assert "default_version = '1.2.3'" in files[1].read_text()


def test_files_of_an_older_version_go_and_others_stay(sources, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "madlib_mop--1.0.sql").touch()
    (out / "plpgsql--1.0.sql").touch()
    build_extension.build(sources, "/lib", out)
    names = ["madlib_mop--1.2.3.sql", "madlib_mop.control", "plpgsql--1.0.sql"]
    assert sorted(file.name for file in out.iterdir()) == names


def test_a_second_build_of_the_same_sources_writes_nothing(sources, tmp_path):
    files = build_extension.build(sources, "/lib", tmp_path / "out")
    before = [file.stat().st_mtime_ns for file in files]
    build_extension.build(sources, "/lib", tmp_path / "out")
    assert [file.stat().st_mtime_ns for file in files] == before


def test_an_unknown_placeholder_is_an_error_that_names_it(sources):
    (sources / "sql" / "30-third.sql").write_text("SELECT '@LIBARY@';\n")
    with pytest.raises(build_extension.BuildError, match="@LIBARY@"):
        build_extension.build_sql(sources, "/lib")


@pytest.mark.parametrize("library", ["relative", "/o'brien", '/a"b', "/a\\b", "/a$b", "/a\nb"])
def test_a_path_that_cannot_stand_in_a_string_is_refused(sources, library):
    with pytest.raises(build_extension.BuildError, match="absolute path without quotes"):
        build_extension.build_sql(sources, library)


def test_different_versions_of_library_and_backend_are_refused(sources):
    (sources / "plpython" / "mop_backend" / "__init__.py").write_text('__version__ = "1.2.4"\n')
    with pytest.raises(build_extension.BuildError, match="1.2.3.*1.2.4"):
        build_extension.read_version(sources)


def test_the_projects_own_sql_builds():
    text = build_extension.build_sql(ROOT, "/lib")
    assert "CREATE SCHEMA madlib_mop" in text
    assert not re.search(r"@[A-Z]+@", text)


@pytest.mark.parametrize("server", build_extension.DIALECTS)
def test_what_a_function_in_sql_calls_is_created_before_it(server):
    """PostgreSQL does not look at bodies while it creates an extension; Greenplum does."""
    text = build_extension.build_sql(ROOT, "/lib", server)
    form = r"CREATE FUNCTION (\S+?)\((?:(?!\$body\$).)*?LANGUAGE sql .*?\$body\$(.*?)\$body\$"
    functions = re.finditer(form, text, re.S)
    called = [
        (found[1], name, found.start()) for found in functions for name in re.findall(r"(madlib\w*\.\w+)\(", found[2])
    ]
    assert len(called) > 20
    late = [(caller, name) for caller, name, at in called if not 0 <= text.find(f"FUNCTION {name}(") < at]
    assert not late


def test_install_scripts_create_and_never_replace():
    for server in build_extension.DIALECTS:
        assert not re.search(r"(?i)\bcreate\s+or\s+replace\b", build_extension.source_sql(ROOT, server)), server


def test_the_control_file_asks_for_a_superuser_and_no_schema_of_the_users():
    settings = dict(line.split(" = ", 1) for line in (ROOT / "madlib_mop.control").read_text().splitlines())
    assert settings["requires"] == "'plpython3u'"
    assert settings["superuser"] == "true" and settings["trusted"] == "false"
    assert settings["schema"] == "pg_catalog" and settings["relocatable"] == "false"


MARKED = "a\n-- if greenplum\nb\n-- else\nc\n-- end\nd\n    -- if postgres\n    e\n    -- end\n-- if it is a comment\n"


def test_lines_are_for_the_server_that_their_marks_name(sources):
    (sources / "sql" / "30-third.sql").write_text(MARKED)
    assert "a\nc\nd\n    e\n-- if it is a comment\n" in build_extension.build_sql(sources, "/lib")
    assert "a\nb\nd\n-- if it is a comment\n" in build_extension.build_sql(sources, "/lib", "greenplum")


@pytest.mark.parametrize("text", ["-- if greenplum", "-- end", "-- else", "-- if postgres\n-- if postgres\n-- end"])
def test_marks_that_do_not_go_together_are_refused(sources, text):
    (sources / "sql" / "30-third.sql").write_text(text)
    with pytest.raises(build_extension.BuildError, match="30-third.sql"):
        build_extension.build_sql(sources, "/lib")


def test_functions_of_the_specifications_are_where_their_placeholder_is(sources):
    (sources / "sql" / "15-third.sql").write_text("@FUNCTIONS@\n")
    text = build_extension.build_sql(sources, "/lib")
    parts = ("CREATE SCHEMA s", "CREATE FUNCTION madlib_mop.pause(", "CREATE FUNCTION f()")
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)


def test_the_build_needs_no_package_of_the_library(tmp_path):
    """make install builds it with -I, and the Python may have no package installed (-S)."""
    command = [sys.executable, "-I", "-S", ROOT / "make" / "build_extension.py", "--library", "/lib"]
    done = subprocess.run([*command, "--output", tmp_path], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob(f"madlib_mop--{build_extension.read_version(ROOT)}.sql")
    assert built.read_text() == build_extension.build_sql(ROOT, "/lib")


@pytest.fixture
def released(sources):
    """Sources after a release: 1.2.2 exists, with one update script from it."""
    for folder in ("upgrade", "released"):
        (sources / "sql" / folder).mkdir()
    (sources / "sql" / "upgrade" / "1.2.2--1.2.3.sql").write_text("ALTER TABLE t ADD COLUMN c text;\n")
    (sources / "sql" / "upgrade" / "drop.sql").write_text("SELECT 'drop';\n")
    (sources / "sql" / "upgrade" / "after.sql").write_text("SELECT 'after';\n")
    (sources / "sql" / "released" / "1.2.2.sql").write_text(BODY)
    return sources


def test_an_update_changes_the_tables_then_replaces_the_functions(released, tmp_path):
    names = [file.name for file in build_extension.build(released, "/lib", tmp_path / "out")]
    assert names == ["madlib_mop--1.2.3.sql", "madlib_mop--1.2.2--1.2.3.sql", "madlib_mop.control"]
    text = (tmp_path / "out" / names[1]).read_text()
    assert text.startswith('\\echo Use "ALTER EXTENSION madlib_mop UPDATE"')
    parts = ("ALTER TABLE t", "CREATE OR REPLACE FUNCTION f()", "SELECT 'drop'", "SELECT 'after'")
    order = [text.index(part) for part in parts]
    assert order == sorted(order) and "return '1.2.3'" in text and "CREATE SCHEMA" not in text


def test_the_sql_of_a_released_version_is_of_that_version_and_built_for_tests_only(released, tmp_path):
    build_extension.build(released, "/lib", tmp_path / "out", released=True)
    assert "return '1.2.2'" in (tmp_path / "out" / "madlib_mop--1.2.2.sql").read_text()
    build_extension.build(released, "/lib", tmp_path / "out")
    assert not (tmp_path / "out" / "madlib_mop--1.2.2.sql").exists()


def test_a_released_version_from_which_no_file_leads_on_is_an_error(released):
    (released / "sql" / "upgrade" / "1.2.2--1.2.3.sql").rename(released / "sql" / "upgrade" / "1.2.1--1.2.2.sql")
    with pytest.raises(build_extension.BuildError, match="no files lead from 1.2.1 to 1.2.3"):
        build_extension.build_updates(released, "/lib")
