"""The server and the doctor size segments by what the server's own processes may use."""

from contextlib import closing
from io import StringIO

import pytest
from mop_backend.machine import examine, processors
from rich.console import Console

from madlib_mop.cli.doctor import hosts, logins, server, show
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding


def test_a_host_counts_its_processors_as_its_trainers_do(db):
    """The tests and their server have the same limits."""
    assert db.rows("SELECT madlib_mop_calls.count_cores()") == [(processors(),)]


@pytest.mark.slow
def test_the_doctors_facts_come_from_the_server(db):
    with closing(db.connect()) as connection:
        context, here = CheckContext(connection), examine()
        facts = context.probe.get("machine")
        assert (facts["processors"], facts["memory_bytes"]) == (here.processors, here.memory_bytes)
        assert facts["available_bytes"] == pytest.approx(here.available_bytes, rel=0.5)
        assert f"; {here.processors} trainer(s) need" in server._memory(context).found
        limits = [finding.state for finding in server._limits(context)]
    is_limited = here.processor_limit is not None or here.memory_limit_bytes is not None
    assert limits == ([CheckState.OK] if is_limited else [])


def test_the_doctor_goes_on_where_it_can_create_no_role(db):
    with closing(db.connect()) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        (finding,) = logins.check(CheckContext(connection))
    assert finding.state is CheckState.SKIP and "cannot execute CREATE ROLE in a read-only transaction" in finding.found


def test_the_doctor_goes_on_where_the_library_is_broken(db):
    db.rows("INSERT INTO madlib_mop.host (server, n_segments, coordinator, key) VALUES ('h', 1, 'c', sha256('x'))")
    source = db.value("SELECT pg_get_functiondef('madlib_mop.version()'::regprocedure)")
    db.rows(source.replace("BEGIN\n", "BEGIN\n    RAISE EXCEPTION 'broken' USING HINT = 'Mend it.';\n", 1))
    with closing(db.connect()) as connection:
        (finding,) = hosts.check(CheckContext(connection))
    db.rows(source)
    db.rows("DELETE FROM madlib_mop.host")
    assert (finding.check, finding.state) == ("hosts", CheckState.FAIL)
    assert finding.found == "not compared with this server: broken" and finding.mend == "Mend it."


def test_what_the_doctor_finds_is_text():
    printed = StringIO()
    assert not show(iter([Finding("host [/x]", CheckState.FAIL, "[/y]\x1b[31m\nline 2", "[z]")]), Console(file=printed))
    lines = printed.getvalue().splitlines()
    assert lines[0].startswith("FAIL  host [/x] ") and lines[0].endswith(" [/y]\\x1b[31m")
    assert lines[1] == "line 2" and lines[2].endswith("-> [z]")
