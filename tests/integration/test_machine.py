"""The server and the doctor size segments by what the server's own processes may use."""

from contextlib import closing

import pytest
from mop_backend.machine import examine, processors

from madlib_mop.cli.doctor import server
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import State


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
    assert limits == ([State.OK] if is_limited else [])
