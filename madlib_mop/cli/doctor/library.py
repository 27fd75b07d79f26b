"""Checks of the library from within the server: its interpreter, TensorFlow, and equal versions."""

from collections.abc import Iterator

from mop_backend.frames import Header
from mop_backend.keras_backends import FACTS, OTHERS

from madlib_mop.cli.doctor.context import CheckContext, Probe
from madlib_mop.cli.doctor.findings import CheckState, Finding

_COMMANDS = "make server (the private server), or make install PG_CONFIG=... (another server)."
_REINSTALL = f"Reinstall it: {_COMMANDS}"


def check(context: CheckContext) -> Iterator[Finding]:
    """Return the findings about the library; all are gathered by the server's operating system user."""
    probe = context.probe
    if probe.refusal or probe.error or probe.get("library") is None:
        why = probe.refusal or probe.error or "the extension is not installed in this database"
        for name in ("interpreter", "tensorflow", "library", "catalog login"):
            yield Finding(name, CheckState.SKIP, why)
        return
    yield _interpreter(probe)
    inside = probe.get("inside")
    if inside is None:
        for name in ("tensorflow", "library", "catalog login"):
            yield Finding(name, CheckState.SKIP, "the interpreter cannot run the library")
        return
    yield _tensorflow(inside, probe.get("library"))
    yield _library(inside, context)
    yield _catalog_login(inside, context)


def _interpreter(probe: Probe) -> Finding:
    path = probe.get("interpreter")
    if not probe.get("interpreter_exists"):
        return Finding("interpreter", CheckState.FAIL, f"the server's user cannot find {path}", _REINSTALL)
    if not probe.get("interpreter_runs"):
        mend = "Every directory above it must be searchable by that user (chmod o+x), and the file must be executable."
        return Finding("interpreter", CheckState.FAIL, f"the server's user cannot execute {path}", mend)
    if not probe.get("backend_exists"):
        found = f"{probe.get('library')}/backend/mop_backend is missing, or the server's user cannot read it"
        return Finding("interpreter", CheckState.FAIL, found, _REINSTALL)
    if problem := probe.get("inside_error"):
        return Finding("interpreter", CheckState.FAIL, f"{path} cannot run the library: {problem}", _REINSTALL)
    return Finding("interpreter", CheckState.OK, path)


def _tensorflow(inside: Header, library: str) -> Finding:
    broken = {name: module["error"] for name, module in inside["modules"].items() if "error" in module}
    if broken:
        found = "; ".join(f"{name} cannot be imported: {error}" for name, error in broken.items())
        # make does not install again what it has installed
        mend = f"Install all packages again: remove the directory {library}/venv, then {_COMMANDS}"
        return Finding("tensorflow", CheckState.FAIL, found, mend)
    versions = {name: module["version"] for name, module in inside["modules"].items()}
    found = f"TensorFlow {versions['tensorflow']}, Keras {versions['keras']}"
    others = [f", {FACTS[name].title} {versions[name]}" for name in OTHERS if name in versions]
    return Finding("tensorflow", CheckState.OK, found + "".join(others))


def _library(inside: Header, context: CheckContext) -> Finding:
    versions = {inside["version"], inside["modules"]["mop_backend"].get("version", inside["version"])}
    if versions != {context.extension_version}:
        found = f"version {', '.join(sorted(versions))}, but the extension has version {context.extension_version}"
        return Finding("library", CheckState.FAIL, found, "ALTER EXTENSION madlib_mop UPDATE, or " + _REINSTALL.lower())
    return Finding("library", CheckState.OK, f"version {inside['version']}, as the extension")


def _catalog_login(inside: Header, context: CheckContext) -> Finding:
    login = inside["login"]
    if "error" in login:
        mend = (
            f"In {context.setting('hba_file')}, above the other `local` lines: `local all all peer`; the role has the "
            "name of the operating system user that runs the server. Then: SELECT pg_reload_conf();"
        )
        return Finding("catalog login", CheckState.FAIL, login["error"], mend)
    if not login["is_superuser"]:
        mend = f'As a superuser: ALTER ROLE "{login["role"]}" SUPERUSER'
        return Finding("catalog login", CheckState.FAIL, f"role {login['role']} is not a superuser", mend)
    return Finding("catalog login", CheckState.OK, f"the server's user logs in as {login['role']} by the local socket")
