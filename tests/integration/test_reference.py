"""docs/reference.md lists all functions, tables of the record, settings and messages."""

import re

from madlib_mop.calls import USER_FUNCTIONS
from tests.helpers.pages import ROOT, section

PAGE = "docs/reference.md"


def test_every_function_and_its_arguments_are_in_the_reference(db):
    listed = re.sub(r"\s+", " ", section(PAGE, "Functions"))
    functions = db.rows(
        "SELECT n.nspname || '.' || proname, proargnames[1:pronargs] FROM pg_proc p"
        " JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname IN ('madlib', 'madlib_mop')"
        " AND NOT coalesce(proargnames <@ ARRAY['message', 'usage'], true)"
    )
    assert len(functions) > 10
    # documented in docs/arguments.md: see tests/unit/calls
    specified = {f"{f.schema}.{f.name}" for f in USER_FUNCTIONS}
    for name, arguments in functions:
        if name in specified:
            continue
        signatures = re.findall(rf"{re.escape(name)}\((.*?)\) ->", listed)
        names = [[item.split()[0] for item in signature.split(",") if item] for signature in signatures]
        assert [argument for argument in arguments if argument != "caller_path"] in names, name


def test_the_tables_and_views_of_the_record_are_in_the_reference_and_have_a_comment(db):
    listed = re.findall(r"^\| `(\w+)` \| .+ \|$", section(PAGE, "Record"), re.MULTILINE)
    rows = db.rows(
        "SELECT relname, obj_description(oid, 'pg_class') FROM pg_class WHERE relkind IN ('r', 'v', 'p')"
        " AND relnamespace = 'madlib_mop'::regnamespace AND relname !~ '^model_state_'"
    )
    assert sorted(listed) == sorted(name for name, _ in rows)
    assert [name for name, comment in rows if not comment] == []


def test_every_setting_is_listed():
    from madlib_mop.driver.session import settings

    listed = re.findall(r"^\| `(\w+)`", section(PAGE, "Settings"), re.MULTILINE)
    superusers = {"worker_host", "accepted_functions", "sandbox", "pickled_functions", "max_runs", "reading_limit_s"}
    superusers |= {"shard_directory", "hop_address", "hop_ports"}
    callers = {"segments", "hosts", "admission"}
    assert set(listed) == {*callers, *superusers, *settings.CALLER_SETTINGS, *settings.CALLER_SWITCHES}


def test_messages_that_the_reference_explains_are_those_of_the_program():
    folders = ("madlib_mop", "plpython", "make", "sql")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".sh", ".sql")]
    sources = "\n".join(file.read_text() for file in files)
    rows = re.findall(r"^\| (`.*?) \|", section(PAGE, "Errors and what to do"), re.MULTILINE)
    assert len(rows) > 8
    for fragment in [text for row in rows for text in re.findall("`(.*?)`", row)]:
        assert fragment in sources or fragment.startswith("permission denied"), fragment
