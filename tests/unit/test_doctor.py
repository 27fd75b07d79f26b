"""What the doctor says to do; ``tests/integration/test_install.py`` runs it with servers."""

from types import SimpleNamespace

from madlib_mop.cli.doctor import library
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
