"""What the doctor says to do; ``tests/integration/test_install.py`` runs it with servers."""

from types import SimpleNamespace

import psycopg2
import pytest
from mop_backend.memory import LOADED_TRAINER_BYTES

from madlib_mop.catalog.drivers import N_LEFT_FREE
from madlib_mop.cli import doctor
from madlib_mop.cli.doctor import library, runs, server
from madlib_mop.cli.doctor.findings import CheckState


def test_packages_that_cannot_be_imported_are_removed_before_make_installs_them():
    modules = {name: {"version": "1"} for name in ("tensorflow", "keras", "mop_backend")}
    modules["torch"] = {"error": "ImportError: libtorch.so"}
    inside = {"version": "1", "modules": modules, "login": {"role": "postgres", "is_superuser": True}}
    facts = {"library": "/srv/library", "inside": inside, "backend_exists": True, "interpreter": "/srv/python",
             "interpreter_exists": True, "interpreter_runs": True}  # fmt: skip
    probe = SimpleNamespace(refusal=None, error=None, get=facts.get)
    context = SimpleNamespace(probe=probe, extension_version="1", setting=lambda name: "/etc/pg_hba.conf")
    found = {finding.check: finding for finding in library.check(context)}["tensorflow"]
    assert (found.state, found.found) == (CheckState.FAIL, "torch cannot be imported: ImportError: libtorch.so")
    assert "remove the directory /srv/library/venv, then make server" in found.mend


def test_segments_at_other_nodes_of_citus_take_no_memory_of_this_server(monkeypatch):
    monkeypatch.setattr(server.citus, "n_segments", lambda _: 8)
    probe = {"machine": {"processors": 2, "available_bytes": 5 * LOADED_TRAINER_BYTES}}
    context = SimpleNamespace(product=None, probe=probe, setting=lambda _: "")
    for has_shards_here, n_trainers in ((True, 2), (False, 0)):
        monkeypatch.setattr(server.citus, "has_shards_here", lambda _, answer=has_shards_here: answer)
        found = server._memory(context)
        assert found.state is CheckState.OK and f"{n_trainers} trainer(s) need" in found.found


@pytest.mark.parametrize("n_here, n_needed", [(2, 6), (0, 4)])
def test_connections_are_those_of_a_run(monkeypatch, n_here, n_needed):
    """2 N + 2, or 2 N + 5 beside other runs (docs/administration.md).

    A segment at another node has no reader here. The doctor's own session ends.
    """
    monkeypatch.setattr(server, "_segments", lambda _: 2)
    monkeypatch.setattr(server, "_segments_here", lambda _: n_here)
    beside = n_needed + N_LEFT_FREE
    cases = ((beside, CheckState.OK), (beside - 1, CheckState.WARN), (n_needed, CheckState.WARN))
    for n_free, state in (*cases, (n_needed - 1, CheckState.FAIL)):
        context = SimpleNamespace(product=None, number=lambda _: 9, value=lambda _, free=n_free - 1: free)
        found = server._connections(context)
        assert (found.state, found.found) == (
            state,
            f"{n_free} of 9 free; a run on 2 segment(s) needs {n_needed}, or {beside} while another one trains",
        )


@pytest.mark.parametrize(
    "error, mend",
    [
        ('connection to server on socket "/s" failed: FATAL:  role "root" does not exist', "Log in to an existing"),
        ('connection to server on socket "/s" failed: No such file or directory', "Start the server"),
    ],
)
def test_a_refused_login_is_no_server_that_does_not_run(monkeypatch, error, mend):
    def refuse(*_, **__):
        raise psycopg2.OperationalError(error)

    monkeypatch.setattr(psycopg2, "connect", refuse)
    (found,) = doctor.examine("dbname=mydb")
    assert (found.state, found.found) == (CheckState.FAIL, error) and found.mend.startswith(mend)


def test_runs_of_another_version_are_not_ended():
    """Its functions are not there: the update comes first, as another check says."""
    context = SimpleNamespace(
        is_superuser=True, extension_version="1.0.0", value=lambda query, values=None: 3 if values else True
    )
    (found,) = runs.check(context, "host=/nowhere")
    assert (found.check, found.state) == ("runs", CheckState.SKIP)
    assert found.found == "not checked in version 1.0.0; login roles of runs without a session: 3"
    assert "After the update" in found.mend
